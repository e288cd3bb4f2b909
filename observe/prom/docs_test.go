package prom_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/observe/prom"
)

// Names with their labels, and the words that labels can have.
func TestTheDocumentationListsEveryMetric(t *testing.T) {
	t.Parallel()
	m := prom.New(prom.Config{})
	everything(m, "table:12")

	documented := map[string]string{}
	words := map[string]string{}
	page, err := os.ReadFile("../../docs/observing.md")
	require.NoError(t, err)
	row := regexp.MustCompile("(?m)^\\| `((?:redis_lease|fencedb)_\\w+)` \\| (.*?) \\| (.*) \\|$")
	for _, match := range row.FindAllStringSubmatch(string(page), -1) {
		documented[match[1]] = strings.ReplaceAll(match[2], "`", "")
		words[match[1]] = match[3]
	}
	require.Equal(t, labelled(m), documented)

	for _, f := range gather(t, m) {
		if f.GetName() == "fencedb_write_duration_seconds" || f.GetName() == "fencedb_writes_failing_seconds" { // as those of fencedb_writes_total
			continue
		}
		for _, series := range f.GetMetric() {
			for _, l := range series.GetLabel() {
				if l.GetName() == "outcome" || l.GetName() == "cause" || l.GetName() == "failure" {
					require.Regexp(t, `\b`+l.GetValue()+`\b`, words[f.GetName()], f.GetName())
				}
			}
		}
	}
}

// labelled are the names of all metrics with those of their labels.
func labelled(m *prom.Metrics) map[string]string {
	descs := make(chan *prometheus.Desc, 100)
	m.Describe(descs)
	close(descs)
	all := map[string]string{}
	for d := range descs {
		match := regexp.MustCompile(`fqName: "(\w+)".*variableLabels: \{([\w,]*)\}`).FindStringSubmatch(d.String())
		labels := strings.Split(match[2], ",")
		// In the order of a scrape.
		if len(labels) == 2 && labels[0] > labels[1] {
			labels[0], labels[1] = labels[1], labels[0]
		}
		all[match[1]] = strings.Join(labels, " ")
	}
	return all
}

// declared are the names of all metrics, from their descriptions, in order.
func declared() []string {
	descs := make(chan *prometheus.Desc, 100)
	prom.New(prom.Config{}).Describe(descs)
	close(descs)
	var names []string
	for d := range descs {
		names = append(names, regexp.MustCompile(`fqName: "(\w+)"`).FindStringSubmatch(d.String())[1])
	}
	slices.Sort(names)
	return names
}

func TestNames(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{
		"fencedb_commit_duration_seconds",
		"fencedb_events_dropped_total",
		"fencedb_write_duration_seconds",
		"fencedb_writes_failing_seconds",
		"fencedb_writes_total",
		"redis_lease_acquire_duration_seconds",
		"redis_lease_acquire_total",
		"redis_lease_contention_total",
		"redis_lease_extend_total",
		"redis_lease_failing_seconds",
		"redis_lease_fencing_rejected_total",
		"redis_lease_held",
		"redis_lease_hold_duration_seconds",
		"redis_lease_lost_total",
		"redis_lease_not_owned_total",
		"redis_lease_oldest_held_seconds",
		"redis_lease_oldest_wait_seconds",
		"redis_lease_overtaken_total",
		"redis_lease_raised_total",
		"redis_lease_release_total",
		"redis_lease_revoked_total",
		"redis_lease_stale_release_total",
		"redis_lease_wait_duration_seconds",
		"redis_lease_waiters",
	}, declared())
}

// named are the metrics that a file speaks of. Recorded rules have a colon in front.
func named(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var names []string
	for _, match := range regexp.MustCompile(`(^|[^:\w])((?:redis_lease|fencedb)_[a-z_]+[a-z])`).FindAllStringSubmatch(string(text), -1) {
		name := match[2]
		for _, part := range []string{"_bucket", "_sum", "_count"} {
			name = strings.TrimSuffix(name, part)
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func TestTheDashboardShowsEveryMetricAndNoOther(t *testing.T) {
	t.Parallel()
	require.Equal(t, declared(), named(t, "../dashboards/fencedb.json"))
}

func TestTheRulesKnowTheirMetrics(t *testing.T) {
	t.Parallel()
	ofPostgres := named(t, "../dashboards/fencedb.collector.yml")
	require.Subset(t, append(declared(), ofPostgres...), named(t, "../dashboards/rules.yml"))
}

// A panel whose query names a label wrongly shows nothing, and nobody notices until the night it is
// needed. So a Prometheus scrapes a service to which everything keeps happening, and is asked what
// the panels ask.
func TestEveryPanelHasSomethingToShow(t *testing.T) {
	t.Parallel()
	service, scraped := busyService(t)
	server := scraping(t, strings.TrimPrefix(service, "http://"))
	// A rate takes two, a scrape is stored by the time the next one begins, and one may have been
	// reported long ago.
	for range 4 {
		<-scraped
	}
	anything := strings.NewReplacer("$__rate_interval", "1m", "$job", ".*", "$resource_type", ".*", "$namespace", ".*")
	for panel, queries := range panelQueries(t) {
		for _, query := range queries {
			values, err := server.Ask(anything.Replace(query))
			require.NoError(t, err)
			require.NotEmpty(t, values, "%s: %s", panel, query)
			for _, value := range values {
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

func scraping(t *testing.T, target string) *testenv.PrometheusServer {
	t.Helper()
	config := filepath.Join(t.TempDir(), "prometheus.yml")
	require.NoError(t, os.WriteFile(config, []byte(`
global: {scrape_interval: 500ms, scrape_timeout: 500ms}
scrape_configs: [{job_name: shop, static_configs: [{targets: ["`+target+`"]}]}]`), 0o600))
	return testenv.Prometheus(t, config)
}

func panelQueries(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("../dashboards/fencedb.json")
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
