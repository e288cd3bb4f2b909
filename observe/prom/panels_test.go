package prom_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/observe/prom"
)

// A panel whose query names a label wrongly shows nothing, and nobody notices until the night it is needed. So a Prometheus
// scrapes a service to which everything keeps happening, and is asked what the panels ask.
func TestEveryPanelHasSomethingToShow(t *testing.T) {
	t.Parallel()
	service, scraped := busyService(t)
	api := startPrometheus(t, strings.TrimPrefix(service, "http://"))
	for range 4 { // a rate takes two, a scrape is stored by the time the next one begins, and one may have been reported long ago
		<-scraped
	}
	anything := strings.NewReplacer("$__rate_interval", "1m", "$job", ".*", "$resource_type", ".*", "$namespace", ".*")
	for panel, queries := range panelQueries(t) {
		for _, query := range queries {
			for _, value := range ask(t, api, anything.Replace(query)) {
				require.Regexp(t, `^[0-9.e+-]+$`, value, "%s: %s", panel, query)
			}
		}
	}
}

// busyService serves metrics that have gone up with each scrape, which it reports.
func busyService(t *testing.T) (address string, scraped <-chan struct{}) {
	t.Helper()
	m := prom.New(prom.Config{})
	registry := prometheus.NewRegistry()
	registry.MustRegister(m)
	m.TraceLeaseStart(t.Context(), lease.TraceStart{Op: lease.OpHold, Kind: "lease", Resource: "table:12"}) // goes on
	page, scrapes := promhttp.HandlerFor(registry, promhttp.HandlerOpts{}), make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		everything(m, "table:12")
		page.ServeHTTP(w, r)
		select {
		case scrapes <- struct{}{}:
		default:
		}
	}))
	t.Cleanup(server.Close)
	return server.URL, scrapes
}

// runPrometheus ends it when its own input ends, which happens also when the test is killed; and ends when Prometheus does.
const runPrometheus = `exec 3<&0; prometheus "$@" 3<&- & server=$!; { read -r _ <&3; kill -KILL $server; } & wait $server; kill $!`

// startPrometheus returns the address of its API.
func startPrometheus(t *testing.T, target string) (address string) {
	t.Helper()
	config := filepath.Join(t.TempDir(), "prometheus.yml")
	require.NoError(t, os.WriteFile(config, []byte(`
global: {scrape_interval: 500ms, scrape_timeout: 500ms}
scrape_configs: [{job_name: shop, static_configs: [{targets: ["`+target+`"]}]}]`), 0o600))
	shell := exec.Command("/bin/sh", "-c", runPrometheus, "sh",
		"--config.file="+config, "--storage.tsdb.path="+t.TempDir(), "--web.listen-address=127.0.0.1:0")
	hold, err := shell.StdinPipe()
	require.NoError(t, err)
	log, err := shell.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, shell.Start())
	t.Cleanup(func() {
		_ = hold.Close()
		_ = shell.Wait()
	})
	var said []string
	for lines := bufio.NewScanner(log); lines.Scan(); said = append(said, lines.Text()) {
		if found := regexp.MustCompile(`msg="Listening on".* address=(\S+)`).FindStringSubmatch(lines.Text()); found != nil {
			go func() { _, _ = io.Copy(io.Discard, log) }()
			return "http://" + found[1] + "/api/v1/query"
		}
	}
	require.Fail(t, "Prometheus does not start; make alerts installs it", strings.Join(said, "\n"))
	return ""
}

func panelQueries(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("../grafana/dashboards/fencedb.json")
	require.NoError(t, err)
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	require.NoError(t, json.Unmarshal(text, &dashboard))
	queries := map[string][]string{}
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			queries[panel.Title] = append(queries[panel.Title], target.Expr)
		}
	}
	require.NotEmpty(t, queries)
	return queries
}

// ask returns the values of all series in the answer, of which there must be one.
func ask(t *testing.T, api, query string) (values []string) {
	t.Helper()
	request, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodGet, api+"?query="+url.QueryEscape(query), nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	var answer struct {
		Error string
		Data  struct {
			Result []struct{ Value [2]any }
		}
	}
	require.NoError(t, json.NewDecoder(response.Body).Decode(&answer))
	require.Empty(t, answer.Error, query)
	require.NotEmpty(t, answer.Data.Result, query)
	for _, series := range answer.Data.Result {
		values = append(values, series.Value[1].(string))
	}
	return values
}
