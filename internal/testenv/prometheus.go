package testenv

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// PrometheusServer is a Prometheus with a configuration file of the test's own.
type PrometheusServer struct{ url string }

// runPrometheus ends it when its own input ends, which happens also when the test is killed; and
// ends when Prometheus does.
const runPrometheus = `exec 3<&0; prometheus "$@" 3<&- & server=$!; { read -r _ <&3; kill -KILL $server; } & wait $server; kill $!`

// Prometheus starts one that ends with the test.
func Prometheus(t testing.TB, config string) *PrometheusServer {
	t.Helper()
	shell := exec.Command("/bin/sh", "-c", runPrometheus, "sh",
		"--config.file="+config, "--storage.tsdb.path="+t.TempDir(), "--web.listen-address=127.0.0.1:0")
	hold, err := shell.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	log, err := shell.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = hold.Close()
		_ = shell.Wait()
	})
	var said []string
	for lines := bufio.NewScanner(log); lines.Scan(); said = append(said, lines.Text()) {
		if found := regexp.MustCompile(`msg="Listening on".* address=(\S+)`).FindStringSubmatch(lines.Text()); found != nil {
			go func() { _, _ = io.Copy(io.Discard, log) }()
			return &PrometheusServer{"http://" + found[1]}
		}
	}
	t.Fatalf("Prometheus does not start; make alerts installs it\n%s", strings.Join(said, "\n"))
	return nil
}

// Sample is a series in an answer, with its value as Prometheus writes it.
type Sample struct {
	Metric map[string]string
	Value  string
}

// Ask returns what query has now.
func (p *PrometheusServer) Ask(query string) ([]Sample, error) {
	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, p.url+"/api/v1/query?query="+url.QueryEscape(query), nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	var answer struct {
		Error string
		Data  struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil || answer.Error != "" {
		return nil, errors.Join(fmt.Errorf("%s: %s", query, answer.Error), err)
	}
	var samples []Sample
	for _, r := range answer.Data.Result {
		samples = append(samples, Sample{r.Metric, fmt.Sprint(r.Value[1])})
	}
	return samples, nil
}
