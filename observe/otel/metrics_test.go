package otel_test

import (
	"context"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
	fenceotel "github.com/fencedb/fencedb/observe/otel"
	"github.com/fencedb/fencedb/observe/prom"
)

// meter is a tracer and what its metrics are.
type meter struct {
	*testing.T
	*fenceotel.Tracer
	reader *metric.ManualReader
}

func newMeter(t *testing.T, cfg fenceotel.Config) *meter {
	reader := metric.NewManualReader()
	cfg.MeterProvider = metric.NewMeterProvider(metric.WithReader(reader))
	return &meter{t, fenceotel.New(cfg), reader}
}

// point is a metric with its unit, and its values by attributes.
type point struct {
	unit   string
	keys   []string
	values map[string]float64 // of a histogram how many
}

func (m *meter) collect() map[string]point {
	m.Helper()
	var all metricdata.ResourceMetrics
	require.NoError(m, m.reader.Collect(m.Context(), &all))
	found := map[string]point{}
	for _, scope := range all.ScopeMetrics {
		require.Equal(m, "github.com/fencedb/fencedb/observe/otel", scope.Scope.Name)
		for _, one := range scope.Metrics {
			require.NotEmpty(m, one.Description)
			p := point{one.Unit, nil, map[string]float64{}}
			add := func(set attribute.Set, value float64) {
				var words []string
				for _, a := range set.ToSlice() {
					if !slices.Contains(p.keys, string(a.Key)) {
						p.keys = append(p.keys, string(a.Key))
					}
					words = append(words, a.Value.AsString())
				}
				if value != 0 {
					p.values[strings.Join(words, " ")] = value
				}
			}
			switch data := one.Data.(type) {
			case metricdata.Sum[int64]:
				for _, d := range data.DataPoints {
					add(d.Attributes, float64(d.Value))
				}
			case metricdata.Gauge[float64]:
				for _, d := range data.DataPoints {
					add(d.Attributes, d.Value)
				}
			case metricdata.Histogram[float64]:
				for _, d := range data.DataPoints {
					add(d.Attributes, float64(d.Count))
				}
			default:
				require.Failf(m, "unknown", "%T", data)
			}
			slices.Sort(p.keys)
			found[one.Name] = p
		}
	}
	return found
}

// both are the tracers that count the same.
type both interface {
	lease.Tracer
	fencedb.Tracer
}

// twins are told the same at the same time.
type twins struct{ a, b both }

func (t twins) TraceLeaseStart(ctx context.Context, s lease.TraceStart) context.Context {
	return t.b.TraceLeaseStart(t.a.TraceLeaseStart(ctx, s), s)
}

func (t twins) TraceLeaseEnd(ctx context.Context, e lease.TraceEnd) {
	t.a.TraceLeaseEnd(ctx, e)
	t.b.TraceLeaseEnd(ctx, e)
}

func (t twins) TraceWriteStart(ctx context.Context, s fencedb.TraceStart) context.Context {
	return t.b.TraceWriteStart(t.a.TraceWriteStart(ctx, s), s)
}

func (t twins) TraceWriteEnd(ctx context.Context, e fencedb.TraceEnd) {
	t.a.TraceWriteEnd(ctx, e)
	t.b.TraceWriteEnd(ctx, e)
}

// everything happens to a resource.
func everything(t both, resource string) {
	ends := []error{nil, lease.ErrLost, lease.ErrReleased, lease.ErrUnreachable,
		&lease.RefusedError{Code: "OOM"}, &lease.HeldError{Resource: resource}, context.Canceled}
	for _, op := range []lease.Op{
		lease.OpAcquire, lease.OpWait, lease.OpHold, lease.OpExtend, lease.OpRelease, lease.OpRevoke, lease.OpRaise,
	} {
		for _, err := range ends {
			s := lease.TraceStart{Op: op, Kind: "lease", Resource: resource, LeaseID: id, Token: 7}
			ctx := t.TraceLeaseStart(context.Background(), s)
			t.TraceLeaseEnd(ctx, lease.TraceEnd{TraceStart: s, Took: time.Second, Err: err})
		}
	}
	for _, op := range writeOps {
		for _, err := range []error{nil, fencedb.ErrBusy, fencedb.ErrStale, fencedb.ErrCommitUnknown} {
			s := fencedb.TraceStart{Op: op, Grants: []fencedb.Grant{grant(resource, 7)}}
			ctx := t.TraceWriteStart(context.Background(), s)
			t.TraceWriteEnd(ctx, fencedb.TraceEnd{TraceStart: s, Took: time.Second, Err: err})
		}
	}
}

// overtake refuses a write although its lease is held.
func overtake(t both) {
	token := time.Now().UnixMicro()
	hold := started(lease.OpHold)
	hold.Token = token
	t.TraceLeaseStart(context.Background(), hold)
	time.Sleep(time.Minute)
	s := fencedb.TraceStart{Op: fencedb.OpWrite, Grants: []fencedb.Grant{grant("table:12", token)}}
	stale := &fencedb.StaleError{Resource: "table:12", Token: token, Stored: token + 1e6}
	t.TraceWriteEnd(t.TraceWriteStart(context.Background(), s), fencedb.TraceEnd{TraceStart: s, Err: stale})
}

// With their units and attributes.
func TestTheDocumentationListsEveryMetricOfOpenTelemetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMeter(t, fenceotel.Config{})
		everything(m, "table:12")
		overtake(m)
		made := map[string][2]string{}
		for name, p := range m.collect() {
			made[name] = [2]string{p.unit, strings.Join(p.keys, " ")}
		}

		page, err := os.ReadFile("../../docs/observing.md")
		require.NoError(t, err)
		documented := map[string][2]string{}
		for _, row := range regexp.MustCompile("(?m)^\\| `(fencedb\\.[a-z.]+)` \\| `(.*?)` \\| (.*?) \\|").FindAllStringSubmatch(string(page), -1) {
			documented[row[1]] = [2]string{row[2], strings.ReplaceAll(row[3], "`", "")}
		}
		require.Equal(t, made, documented)
	})
}

// A dashboard on the one and an alert on the other must not tell two stories.
func TestBothMetricsTellTheSame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dropped := func() int64 { return 7 }
		m, p := newMeter(t, fenceotel.Config{Types: []string{"table"}, Dropped: dropped}), prom.New(prom.Config{Types: []string{"table"}, Dropped: dropped})
		everything(twins{m, p}, "table:12")
		everything(twins{m, p}, "seat:1")
		overtake(twins{m, p})
		everything(twins{m, p}, "table:12")
		registry := prometheus.NewPedanticRegistry()
		require.NoError(t, registry.Register(p))
		families, err := registry.Gather()
		require.NoError(t, err)
		counted := map[string]map[string]float64{}
		for _, f := range families {
			counted[f.GetName()] = map[string]float64{}
			for _, series := range f.GetMetric() {
				var words []string
				for _, l := range series.GetLabel() {
					words = append(words, l.GetValue())
				}
				v := series.GetCounter().GetValue() + series.GetGauge().GetValue()
				if v += float64(series.GetHistogram().GetSampleCount()); v != 0 {
					counted[f.GetName()][strings.Join(words, " ")] = v
				}
			}
		}
		measured := m.collect()
		for ours, theirs := range map[string]string{
			"fencedb.lease.acquire.duration": "redis_lease_acquire_total",
			"fencedb.lease.renewals":         "redis_lease_extend_total",
			"fencedb.lease.releases":         "redis_lease_release_total",
			"fencedb.lease.raises":           "redis_lease_raised_total",
			"fencedb.events.dropped":         "fencedb_events_dropped_total",
			"fencedb.lease.overtaken":        "redis_lease_overtaken_total",
			"fencedb.lease.count":            "redis_lease_held",
			"fencedb.lease.oldest":           "redis_lease_oldest_held_seconds",
			"fencedb.waiter.count":           "redis_lease_waiters",
			"fencedb.waiter.oldest":          "redis_lease_oldest_wait_seconds",
			"fencedb.lease.failing":          "redis_lease_failing_seconds",
			"fencedb.write.failing":          "fencedb_writes_failing_seconds",
			"fencedb.write.duration":         "fencedb_write_duration_seconds",
			"fencedb.commit.duration":        "fencedb_commit_duration_seconds",
		} {
			require.Equal(t, counted[theirs], measured[ours].values, ours)
		}
		require.NotEmpty(t, measured["fencedb.lease.failing"].values)
		require.NotEmpty(t, measured["fencedb.lease.overtaken"].values)
		require.Equal(t, map[string]float64{"": 7}, measured["fencedb.events.dropped"].values)
		for outcome, n := range measured["fencedb.entries"].values {
			require.Equal(t, counted["fencedb_writes_total"][outcome], n+measured["fencedb.write.duration"].values[outcome], outcome)
		}
	})
}

// Without a provider nothing is measured, and nothing fails.
func TestMetricsThatNobodyReads(t *testing.T) {
	t.Parallel()
	everything(fenceotel.New(fenceotel.Config{}), "table:12")
}
