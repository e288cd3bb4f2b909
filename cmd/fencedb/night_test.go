package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	promclient "github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/observe/feed"
	"github.com/fencedb/fencedb/observe/prom"
)

// In minutes: how long an incident lasts, and how long is waited for the alert to go.
const lasts = 26

// night is a world of which every step is a minute of metrics.
type night struct {
	*world
	section          string
	fail, miss, well func()
	ends             func()                   // what is true when somebody looks
	quiet            bool                     // nothing of the type goes well beside the incident
	begins           int                      // in which minute
	apart            bool                     // the clocks of the servers
	named            func(line string) string // a line of the runbook with the names and numbers of here
	db               fencedb.DB
	metrics          *prom.Metrics
	registry         *promclient.Registry
	events           *feed.Feed

	minute  int
	at      []time.Time         // when each minute was
	samples map[string][]string // by series
	gauges  map[string]gauge    // the latest, by series
}

// gauge is a time in seconds, as it was and as the night has it.
type gauge struct {
	real, told float64
	began      time.Time // at the latest: what it measures may have ended a while before the sample
}

func newNight(t *testing.T) *night {
	t.Helper()
	n := &night{
		world: sound(t), registry: promclient.NewRegistry(),
		samples: map[string][]string{}, gauges: map[string]gauge{}, begins: 1,
	}
	n.named = strings.NewReplacer("{table:12}", "{"+n.namespace+"/table:12}", "fencedb:v1:events", "fencedb:v1:"+n.namespace+":events").Replace // as the page says
	n.events = feed.New(n.redis, feed.Namespace(n.namespace), feed.Worker("worker-7"))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = n.events.Close(ctx)
	})
	n.metrics = prom.New(prom.Config{Dropped: n.events.Dropped})
	n.registry.MustRegister(n.metrics, newSQLExporter(n.world))
	n.issuer = n.lease(lease.Config{TTL: 10 * time.Minute}) // the whole night takes less
	n.db = fencedb.With(n.pool, fencedb.Trace(n.metrics, n.events))
	n.exec(`SELECT fencedb.keep_history('30 days')`)
	n.fail, n.miss, n.well = func() {}, func() {}, func() {}
	return n
}

func (n *night) lease(cfg lease.Config) *lease.Issuer {
	n.Helper()
	cfg.Namespace, cfg.RenewEvery, cfg.Holder = cmp.Or(cfg.Namespace, n.namespace), lease.Never, label
	cfg.Tracers = []lease.Tracer{n.metrics, n.events}
	i, err := lease.New(n.redis, cfg)
	require.NoError(n, err)
	return i
}

// blocked writes while another transaction is in the way, with a deadline that is shorter than the
// lease, and with a later one if the write may not have begun to wait.
func (n *night) blocked() {
	n.Helper()
	var err error
	for within := 60 * time.Millisecond; within < 10*time.Second && !errors.Is(err, fencedb.ErrBusy); within *= 2 {
		ctx, cancel := context.WithTimeout(n.Context(), within)
		err = fencedb.Tx(ctx, n.db, n.grant("table:12", 42), func(pgx.Tx) error { return nil })
		cancel()
	}
	n.refused(err, fencedb.ErrBusy)
}

// lose holds a resource until its lease has run out, in Redis too, which is a little later. Redis
// may be too slow for so short a lease.
func (n *night) lose(short *lease.Issuer, resource string) *lease.Lease {
	n.Helper()
	l, err := short.Acquire(n.Context(), resource)
	for errors.Is(err, lease.ErrUnreachable) {
		l, err = short.Acquire(n.Context(), resource)
	}
	require.NoError(n, err)
	<-l.Context().Done()
	for n.redis.Exists(n.Context(), "lease:v1:{"+n.namespace+"/"+resource+"}:owner").Val() > 0 {
	}
	return l
}

func (n *night) grant(resource string, token int64) fencedb.Grant {
	return fencedb.NewGrant(resource, token, uuid.NewSHA1(uuid.Nil, []byte(resource)), fencedb.NoEnd)
}

// ahead is a token that Redis issues after that time.
func (n *night) ahead(d time.Duration) int64 { return time.Now().Add(d).UnixMicro() }

// enter writes with a token, which thereby is the newest.
func (n *night) enter(resource string, token int64) {
	n.Helper()
	require.NoError(n, n.write(n.grant(resource, token)))
}

func (n *night) write(g fencedb.Grant) error {
	_, err := fencedb.Exec(n.Context(), n.db, g, `SELECT`)
	return err
}

func (n *night) refused(err, want error) {
	n.Helper()
	require.ErrorIs(n, err, want)
}

// told and wrote tell the metrics what has not happened here.
func (n *night) told(resource string, op lease.Op, err error) {
	s := lease.TraceStart{Op: op, Kind: "lease", Namespace: n.namespace, Resource: resource}
	n.metrics.TraceLeaseEnd(n.metrics.TraceLeaseStart(context.Background(), s), lease.TraceEnd{TraceStart: s, Err: err})
}

func (n *night) wrote(resource string, err error) {
	s := fencedb.TraceStart{Op: fencedb.OpWrite, Grants: []fencedb.Grant{n.grant(resource, 7)}}
	n.metrics.TraceWriteEnd(n.metrics.TraceWriteStart(context.Background(), s), fencedb.TraceEnd{TraceStart: s, Err: err})
}

// pass lets minutes pass: in each, something happens once, and a hundred times as much goes well.
func (n *night) pass(minutes int, happens func()) {
	n.Helper()
	for range minutes {
		n.minute++
		happens()
		for k := range 100 {
			for _, kind := range []string{"table", "seat"} {
				resource := fmt.Sprint(kind, ":", 1000+k)
				n.told(resource, lease.OpAcquire, nil)
				n.told(resource, lease.OpHold, lease.ErrReleased)
				n.told(resource, lease.OpExtend, nil)
				n.told(resource, lease.OpRelease, nil)
				if kind == "seat" || !n.quiet {
					n.wrote(resource, nil)
				}
			}
		}
		n.sample()
	}
}

func (n *night) sample() {
	n.Helper()
	now := time.Now()
	n.at = append(n.at, now)
	families, err := n.registry.Gather()
	require.NoError(n, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			value := m.GetCounter().GetValue() + m.GetGauge().GetValue()
			if m.GetHistogram() != nil || m.GetSummary() != nil {
				continue
			}
			series := f.GetName() + `{job="shop"`
			for _, l := range m.GetLabel() {
				series += fmt.Sprintf(", %s=%q", l.GetName(), l.GetValue())
			}
			series += "}"
			if strings.HasSuffix(f.GetName(), "_seconds") {
				g, began := n.gauges[series], now.Add(-time.Duration(value*float64(time.Second)))
				if value < g.real || g.began.After(began) || g.real == 0 {
					g.began = began
				}
				if g.real != value { // or it ended before this minute
					g.real, g.told = value, 60*(float64(len(n.at))-n.minuteOf(g.began))
				}
				if value == 0 {
					g = gauge{}
				}
				n.gauges[series], value = g, g.told
			}
			for len(n.samples[series]) < len(n.at)-1 {
				n.samples[series] = append(n.samples[series], "_")
			}
			n.samples[series] = append(n.samples[series], strconv.FormatFloat(value, 'f', -1, 64))
		}
	}
}

// minuteOf is when a time was, in minutes of the night: the gauges measure real time, and a minute
// is as long as what happens in it.
func (n *night) minuteOf(t time.Time) float64 {
	i, _ := slices.BinarySearchFunc(n.at, t, time.Time.Compare)
	if i == 0 {
		return 1
	}
	if i == len(n.at) {
		return float64(i)
	}
	return float64(i) + float64(t.Sub(n.at[i-1]))/float64(n.at[i].Sub(n.at[i-1]))
}

// promised is how many minutes the runbook gives an alert to come.
func (n *night) promised(alert string) int {
	n.Helper()
	row := regexp.MustCompile("\\| `" + alert + "` \\| (\\d+) min \\|").FindStringSubmatch(runbook(n.T))
	require.NotNil(n, row, alert)
	minutes, err := strconv.Atoi(row[1])
	require.NoError(n, err)
	return minutes
}

// judge asks the shipped rules what they make of the night. Each alert is there when the runbook
// says so, counted from the minute in which the incident begins.
func (n *night) judge(alerts []string) {
	n.Helper()
	rules, err := filepath.Abs("../../observe/dashboards/rules.yml")
	require.NoError(n, err)
	text := "rule_files: [" + rules + "]\nevaluation_interval: 1m\ngroup_eval_order: [fencedb-rates, fencedb-leases, fencedb-fences]\ntests:\n  - interval: 1m\n    input_series:\n"
	for series, values := range n.samples {
		text += fmt.Sprintf("      - {series: '%s', values: '%s'}\n", series, strings.Join(values, " "))
	}
	text += "    promql_expr_test:\n"
	asked := func(expr string, minute int, alerts ...string) {
		text += fmt.Sprintf("      - expr: %s\n        eval_time: %dm\n        exp_samples:\n", expr, minute)
		for _, name := range alerts {
			text += fmt.Sprintf("          - {labels: '{alertname=%q}', value: 1}\n", name)
		}
	}
	for _, name := range alerts {
		asked(fmt.Sprintf(`max by (alertname) (ALERTS{alertname=%q, alertstate="firing", resource_type=~"table|"})`, name), n.begins-1+n.promised(name), name)
	}
	asked(`max by (alertname) (ALERTS{alertstate="firing", resource_type=~"table|"})`, lasts-1, alerts...)
	asked(`max by (alertname) (ALERTS{alertstate="firing", resource_type=~"table|"})`, 2*lasts-1)
	asked(`max by (alertname) (max_over_time(ALERTS{alertstate="firing", resource_type!~"table|"}[2h]))`, 2*lasts-1)
	file := filepath.Join(n.TempDir(), "night.yml")
	require.NoError(n, os.WriteFile(file, []byte(text), 0o600))
	said, err := exec.CommandContext(n.Context(), "promtool", "test", "rules", file).CombinedOutput()
	require.NoError(n, err, "%s", said)
}

// lines are the commands of a section of the runbook, in their order.
func (n *night) lines(section string) (commands []string) {
	n.Helper()
	for _, body := range strings.Split(runbook(n.T), "\n## ")[1:] {
		heading, body, _ := strings.Cut(body, "\n")
		if strings.ReplaceAll(regexp.MustCompile(`[^a-z -]`).ReplaceAllString(strings.ToLower(heading), ""), " ", "-") != section {
			continue
		}
		_, body, _ = strings.Cut(body, "**Look.**")
		for _, m := range regexp.MustCompile("(?m)^    ((?:fencedb|redis-cli|psql) .*?)(?: {2,}#.*)?$|```sql\n((?s:.*?))```").FindAllStringSubmatch(body, -1) {
			commands = append(commands, strings.TrimSpace(m[1]+m[2]))
		}
	}
	require.NotEmpty(n, commands, section)
	return commands
}

func (n *night) first() string { return n.lines(n.section)[0] }

func (n *night) command(pattern string) string { return n.commandIn(n.section, pattern) }

func (n *night) commandIn(section, pattern string) string {
	n.Helper()
	for _, line := range n.lines(section) {
		if regexp.MustCompile(`^` + pattern).MatchString(line) {
			return line
		}
	}
	require.Fail(n, "the runbook has no such line", pattern)
	return ""
}

// typed is what a line of the runbook prints. Where it is not for fencedb, the servers are asked as
// psql and redis-cli would.
func (n *night) typed(line string) string {
	n.Helper()
	words := []string{}
	for _, word := range regexp.MustCompile(`'[^']*'|"[^"]*"|\S+`).FindAllString(line, -1) {
		words = append(words, strings.Trim(word, `'"`))
	}
	switch words[0] {
	case "fencedb":
		n.answer = "y\n"
		n.screen.Width = 120
		if words[1] == "watch" {
			watching := n.start(append(words[1:], "--since", "1h")...)
			return watching.next(watching.out)
		}
		got := n.run(words[1:]...)
		return got.errOut + got.out
	case "redis-cli":
		var args []any
		for _, word := range words[3:] {
			args = append(args, n.named(word))
		}
		answer, err := n.redis.Do(n.Context(), args...).Result()
		return fmt.Sprintln(answer, err)
	case "psql":
		return n.queried(n.named(words[len(words)-1]))
	}
	return n.queried(line)
}

func (n *night) queried(sql string) (out string) {
	n.Helper()
	pool, err := pgxpool.New(n.Context(), n.pool.Config().ConnString())
	require.NoError(n, err)
	defer pool.Close()
	rows, err := pool.Query(n.Context(), sql)
	require.NoError(n, err, sql)
	defer rows.Close()
	for rows.Next() {
		values, err := rows.Values()
		require.NoError(n, err)
		out += fmt.Sprintln(values...)
	}
	require.NoError(n, rows.Err(), sql)
	return out
}

// sqlExporter tells what the shipped collector asks Postgres, as sql_exporter does.
type sqlExporter struct {
	world   *world
	Metrics []struct {
		Name   string   `yaml:"metric_name"`
		Help   string   `yaml:"help"`
		Labels []string `yaml:"key_labels"`
		Values []string `yaml:"values"`
		Query  string   `yaml:"query"`
	}
}

func newSQLExporter(w *world) *sqlExporter {
	w.Helper()
	text, err := os.ReadFile("../../observe/dashboards/fencedb.collector.yml")
	require.NoError(w, err)
	e := &sqlExporter{world: w}
	require.NoError(w, yaml.Unmarshal(text, e))
	require.NotEmpty(w, e.Metrics)
	return e
}

// Describe tells nothing beforehand: a table has its series when it has been written to.
func (e *sqlExporter) Describe(chan<- *promclient.Desc) {}

// Collect asks, unless Postgres is what is staged to be away.
func (e *sqlExporter) Collect(metrics chan<- promclient.Metric) {
	for _, m := range e.Metrics {
		rows, err := e.world.pool.Query(e.world.Context(), m.Query)
		if err != nil {
			return
		}
		all, err := pgx.CollectRows(rows, pgx.RowToMap)
		if err != nil {
			return
		}
		for _, row := range all {
			var labels []string
			for _, name := range m.Labels {
				labels = append(labels, row[name].(string))
			}
			desc := promclient.NewDesc(m.Name, m.Help, m.Labels, nil)
			metrics <- promclient.MustNewConstMetric(desc, promclient.GaugeValue, row[m.Values[0]].(float64), labels...)
		}
	}
}
