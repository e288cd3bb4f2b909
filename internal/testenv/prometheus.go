package testenv

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"testing"
)

// PrometheusServer is a Prometheus with a configuration file of the test's own.
type PrometheusServer struct{ url string }

var listeningOn = regexp.MustCompile(`msg="Listening on".* address=(\S+)`)

// Prometheus starts one that ends with the test.
func Prometheus(t testing.TB, config string) *PrometheusServer {
	t.Helper()
	node := must(newNode(nil))(t)
	t.Cleanup(func() { check(t, node.stop()) })
	err := node.run(starting(t), listeningOn, stopByKill, "prometheus",
		"--config.file="+config, "--storage.tsdb.path="+node.dir, "--web.listen-address="+loopback+":0")
	if err != nil {
		t.Fatalf("Prometheus does not start; make lint installs it: %v", err)
	}
	return &PrometheusServer{"http://" + node.logged(listeningOn)}
}

// Ask returns what query has now: the value of each series, as Prometheus writes it.
func (p *PrometheusServer) Ask(query string) (values []string, err error) {
	response, err := http.Get(p.url + "/api/v1/query?query=" + url.QueryEscape(query))
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	var answer struct {
		Error string
		Data  struct{ Result []struct{ Value [2]any } }
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil || answer.Error != "" {
		return nil, errors.Join(fmt.Errorf("%s: %s", query, answer.Error), err)
	}
	for _, series := range answer.Data.Result {
		values = append(values, fmt.Sprint(series.Value[1]))
	}
	return values, nil
}
