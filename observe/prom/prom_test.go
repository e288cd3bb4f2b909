package prom_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/observe/prom"
)

var id = uuid.MustParse("11111111-0000-4000-8000-000000000000")

// leaseTold is one pair of calls with nothing in between.
func leaseTold(m *prom.Metrics, op lease.Op, resource string, err error) {
	tell(m, lease.TraceStart{Op: op, Kind: "lease", Namespace: "ns", Resource: resource}, err)
}

func tell(m *prom.Metrics, s lease.TraceStart, err error) {
	ctx := m.TraceLeaseStart(context.Background(), s)
	m.TraceLeaseEnd(ctx, lease.TraceEnd{TraceStart: s, Took: 2 * time.Second, Err: err})
}

func wrote(m *prom.Metrics, op fencedb.Op, err error, resources ...string) {
	s := fencedb.TraceStart{Op: op}
	for _, r := range resources {
		s.Grants = append(s.Grants, fencedb.NewGrant(r, 7, id, fencedb.NoEnd))
	}
	ctx := m.TraceWriteStart(context.Background(), s)
	m.TraceWriteEnd(ctx, fencedb.TraceEnd{TraceStart: s, Took: 2 * time.Second, Err: err})
}

// requireSeries compares all series of a counter or gauge that are not 0.
func requireSeries(t *testing.T, m *prom.Metrics, name string, wanted map[string]float64) {
	t.Helper()
	found := map[string]float64{}
	for _, series := range family(t, m, name).GetMetric() {
		var labels []string
		for _, l := range series.GetLabel() {
			labels = append(labels, l.GetValue())
		}
		v := series.GetCounter().GetValue() + series.GetGauge().GetValue() +
			float64(series.GetHistogram().GetSampleCount())
		if v != 0 {
			found[strings.Join(labels, " ")] = v
		}
	}
	require.Equal(t, wanted, found, name)
}

func family(t *testing.T, m *prom.Metrics, name string) *dto.MetricFamily {
	t.Helper()
	for _, f := range gather(t, m) {
		if f.GetName() == name {
			return f
		}
	}
	return nil
}

func gather(t *testing.T, m *prom.Metrics) []*dto.MetricFamily {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(m))
	families, err := registry.Gather()
	require.NoError(t, err)
	return families
}

// Labels in a series are in the order of their names: cause before resource_type, outcome before
// it.
func TestWhatBecomesOfLeases(t *testing.T) {
	t.Parallel()
	m := prom.New(prom.Config{})
	for _, err := range []error{nil, nil, &lease.HeldError{}, &lease.HeldError{Cause: context.DeadlineExceeded}, lease.ErrUnreachable, &lease.RefusedError{Code: "OOM"}, errors.New("sealing"), context.Canceled} {
		leaseTold(m, lease.OpAcquire, "table:12", err)
	}
	leaseTold(m, lease.OpWait, "table:12", nil)
	for _, err := range []error{lease.ErrReleased, lease.ErrReleased, lease.ErrExpired, fmt.Errorf("wrapped: %w", lease.ErrUnreachable), lease.ErrLost, lease.ErrRevoked} {
		leaseTold(m, lease.OpHold, "table:12", err)
	}
	requireSeries(t, m, "redis_lease_acquire_total", map[string]float64{
		"granted table": 2, "held table": 2, "cancelled table": 1, "unreachable table": 1, "refused table": 1, "error table": 1})
	requireSeries(t, m, "redis_lease_acquire_duration_seconds", map[string]float64{"table": 8})
	requireSeries(t, m, "redis_lease_contention_total", map[string]float64{"table": 2}) // the one that waited is told once
	requireSeries(t, m, "redis_lease_wait_duration_seconds", map[string]float64{"table": 1})
	requireSeries(t, m, "redis_lease_hold_duration_seconds", map[string]float64{"table": 6})
	requireSeries(t, m, "redis_lease_lost_total", map[string]float64{
		"expired table": 1, "unreachable table": 1, "lost table": 1, "revoked table": 1})
}

func TestRenewalsReleasesAndAuthority(t *testing.T) {
	t.Parallel()
	m := prom.New(prom.Config{})
	leaseTold(m, lease.OpExtend, "table:12", lease.ErrExpired)
	for _, err := range []error{nil, lease.ErrLost, lease.ErrRevoked, lease.ErrUnreachable, context.Canceled} {
		leaseTold(m, lease.OpExtend, "table:12", err)
		leaseTold(m, lease.OpRelease, "table:12", err)
		leaseTold(m, lease.OpRevoke, "table:12", err)
		leaseTold(m, lease.OpRaise, "table:12", err)
	}
	requireSeries(t, m, "redis_lease_extend_total", map[string]float64{
		"extended table": 1, "lost table": 1, "over table": 1, "revoked table": 1, "unreachable table": 1, "cancelled table": 1})
	requireSeries(t, m, "redis_lease_release_total", map[string]float64{
		"released table": 1, "gone table": 1, "revoked table": 1, "unreachable table": 1, "error table": 1})
	requireSeries(t, m, "redis_lease_stale_release_total", map[string]float64{"table": 2})
	requireSeries(t, m, "redis_lease_not_owned_total", map[string]float64{"ns table": 5})
	requireSeries(t, m, "redis_lease_revoked_total", map[string]float64{"table": 1})
	requireSeries(t, m, "redis_lease_raised_total", map[string]float64{"done table": 1, "failed table": 4})
}

// A renewal in flight ends when the holder releases. The lease was nobody else's.
func TestARenewalThatAReleaseEndsIsNotCounted(t *testing.T) {
	t.Parallel()
	m := prom.New(prom.Config{})
	leaseTold(m, lease.OpExtend, "table:12", fmt.Errorf("table:12: %w", lease.ErrReleased))
	requireSeries(t, m, "redis_lease_extend_total", map[string]float64{})
	requireSeries(t, m, "redis_lease_not_owned_total", map[string]float64{})
}

func TestWhatBecomesOfWrites(t *testing.T) {
	t.Parallel()
	m := prom.New(prom.Config{})
	for err, times := range map[error]int{
		nil: 3, fencedb.ErrCommitted: 1, fencedb.ErrNoToken: 2, fencedb.ErrWrongResource: 3, fencedb.ErrLeaseOver: 4,
		fencedb.ErrBusy: 5, fencedb.ErrCommitUnknown: 6, fencedb.ErrInvalidGrant: 7, errors.New("the caller's"): 8,
	} {
		for range times {
			wrote(m, fencedb.OpWrite, err, "table:12")
		}
	}
	wrote(m, fencedb.OpWrite, &fencedb.StaleError{Resource: "sku:2"}, "table:12", "sku:2")
	wrote(m, fencedb.OpEnter, fencedb.ErrStale, "table:12")
	wrote(m, fencedb.OpEnter, nil, "table:12")
	wrote(m, fencedb.OpCommit, nil, "table:12")
	wrote(m, fencedb.OpCommit, fencedb.ErrStale, "table:12")
	writes := map[string]float64{
		"committed table": 4, "no_token table": 2, "wrong_resource table": 3, "lease_over table": 4, "busy table": 5,
		"commit_unknown table": 6, "invalid_grant table": 7, "error table": 8, "stale sku": 1,
	}
	requireSeries(t, m, "fencedb_write_duration_seconds", writes)
	writes["entered table"], writes["stale table"] = 1, 1
	requireSeries(t, m, "fencedb_writes_total", writes)
	requireSeries(t, m, "fencedb_commit_duration_seconds", map[string]float64{"table": 2})
	requireSeries(t, m, "redis_lease_fencing_rejected_total", map[string]float64{"postgres sku": 1, "postgres table": 1})
}

// The acquisition that it belongs to counts instead.
func TestASealIsNoWrite(t *testing.T) {
	t.Parallel()
	m := prom.New(prom.Config{})
	for _, err := range []error{nil, fencedb.ErrStale, fencedb.ErrBusy} {
		wrote(m, fencedb.OpSeal, err, "table:12")
	}
	for _, name := range []string{"fencedb_writes_total", "fencedb_write_duration_seconds", "redis_lease_fencing_rejected_total"} {
		require.Zero(t, testutil.CollectAndCount(m, name), name)
	}
}

// What the application commits itself is only entered, and a failure as well if it has asked for
// the outcome and hears of one. How long it took is not known.
func TestTheOutcomeOfWhatWasOnlyEntered(t *testing.T) {
	t.Parallel()
	m := prom.New(prom.Config{})
	wrote(m, fencedb.OpEnter, nil, "table:12")
	wrote(m, fencedb.OpOutcome, nil, "table:12")
	wrote(m, fencedb.OpOutcome, fencedb.ErrCommitUnknown, "table:12")
	requireSeries(t, m, "fencedb_writes_total", map[string]float64{"entered table": 1, "commit_unknown table": 1})
	require.Zero(t, testutil.CollectAndCount(m, "fencedb_write_duration_seconds"))
}

func TestTheBucketsOfTimeHeld(t *testing.T) {
	t.Parallel()
	bounds := func(cfg prom.Config) (all []float64) {
		m := prom.New(cfg)
		leaseTold(m, lease.OpHold, "table:12", lease.ErrReleased)
		for _, b := range family(t, m, "redis_lease_hold_duration_seconds").GetMetric()[0].GetHistogram().GetBucket() {
			all = append(all, b.GetUpperBound())
		}
		return all
	}
	require.Len(t, bounds(prom.Config{}), 13)
	require.Equal(t, []float64{1, 86400}, bounds(prom.Config{HoldBuckets: []float64{1, 86400}}))
}

func TestWhatIsHeldAndWaitedForNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := prom.New(prom.Config{})
		hold := lease.TraceStart{Op: lease.OpHold, Kind: "lease", Resource: "table:12"}
		wait := lease.TraceStart{Op: lease.OpWait, Kind: "lease", Resource: "table:12"}
		first := m.TraceLeaseStart(t.Context(), hold)
		waiting := m.TraceLeaseStart(t.Context(), wait)
		time.Sleep(time.Minute)
		second := m.TraceLeaseStart(t.Context(), hold)
		requireSeries(t, m, "redis_lease_held", map[string]float64{"table": 2})
		requireSeries(t, m, "redis_lease_waiters", map[string]float64{"table": 1})
		requireSeries(t, m, "redis_lease_oldest_wait_seconds", map[string]float64{"table": 60})
		requireSeries(t, m, "redis_lease_oldest_held_seconds", map[string]float64{"table": 60})

		m.TraceLeaseEnd(first, lease.TraceEnd{TraceStart: hold, Err: lease.ErrReleased})
		m.TraceLeaseEnd(waiting, lease.TraceEnd{TraceStart: wait})
		time.Sleep(time.Second)
		requireSeries(t, m, "redis_lease_held", map[string]float64{"table": 1})
		requireSeries(t, m, "redis_lease_waiters", map[string]float64{})
		requireSeries(t, m, "redis_lease_oldest_wait_seconds", map[string]float64{})
		requireSeries(t, m, "redis_lease_oldest_held_seconds", map[string]float64{"table": 1})

		m.TraceLeaseEnd(second, lease.TraceEnd{TraceStart: hold, Err: lease.ErrLost})
		requireSeries(t, m, "redis_lease_held", map[string]float64{})
		requireSeries(t, m, "redis_lease_oldest_held_seconds", map[string]float64{})
		require.Len(t, family(t, m, "redis_lease_held").GetMetric(), 1, "0 and not missing")
	})
}

// A lease that is held under the context of another has an end of its own, and two collectors do
// not meet.
func TestLeasesUnderLeases(t *testing.T) {
	t.Parallel()
	m, another := prom.New(prom.Config{}), prom.New(prom.Config{})
	s := lease.TraceStart{Op: lease.OpHold, Kind: "lease", Resource: "table:12"}
	outer := m.TraceLeaseStart(another.TraceLeaseStart(t.Context(), s), s)
	inner := m.TraceLeaseStart(outer, s)
	m.TraceLeaseEnd(inner, lease.TraceEnd{TraceStart: s})
	requireSeries(t, m, "redis_lease_held", map[string]float64{"table": 1})
	another.TraceLeaseEnd(inner, lease.TraceEnd{TraceStart: s})
	requireSeries(t, another, "redis_lease_held", map[string]float64{})
	m.TraceLeaseEnd(outer, lease.TraceEnd{TraceStart: s})
	requireSeries(t, m, "redis_lease_held", map[string]float64{})
}

func TestExemplars(t *testing.T) {
	t.Parallel()
	type key struct{}
	m := prom.New(prom.Config{Exemplar: func(ctx context.Context) prometheus.Labels {
		labels, _ := ctx.Value(key{}).(prometheus.Labels)
		return labels
	}})
	told := func(labels prometheus.Labels) {
		ctx := context.WithValue(t.Context(), key{}, labels)
		s := lease.TraceStart{Op: lease.OpHold, Kind: "lease", Resource: "table:12"}
		m.TraceLeaseEnd(m.TraceLeaseStart(ctx, s), lease.TraceEnd{TraceStart: s, Took: time.Second, Err: lease.ErrLost})
	}
	told(nil)
	told(prometheus.Labels{"trace_id": "4bf92f3577b34da6a3ce929d0e0e4736"})
	told(prometheus.Labels{"trace_id": strings.Repeat("0", prometheus.ExemplarMaxRunes)}) // too long
	told(prometheus.Labels{"request": "\xff"})                                            // as the header of a request may be
	told(prometheus.Labels{"__name__": "x"})
	requireSeries(t, m, "redis_lease_lost_total", map[string]float64{"lost table": 5})

	traces := map[string]int{}
	for _, name := range []string{"redis_lease_lost_total", "redis_lease_hold_duration_seconds"} {
		for _, series := range family(t, m, name).GetMetric() {
			for _, l := range series.GetCounter().GetExemplar().GetLabel() {
				traces[l.GetValue()]++
			}
			for _, b := range series.GetHistogram().GetBucket() {
				for _, l := range b.GetExemplar().GetLabel() {
					traces[l.GetValue()]++
				}
			}
		}
	}
	require.Equal(t, map[string]int{"4bf92f3577b34da6a3ce929d0e0e4736": 2}, traces)
}

func TestTheConventionsOfPrometheusAreKept(t *testing.T) {
	t.Parallel()
	m := prom.New(prom.Config{})
	everything(m, "table:12")
	problems, err := testutil.CollectAndLint(m)
	require.NoError(t, err)
	require.Empty(t, problems)
}

// everything that can happen to a resource.
func everything(m *prom.Metrics, resource string) {
	for _, op := range []lease.Op{
		lease.OpAcquire, lease.OpWait, lease.OpHold, lease.OpExtend,
		lease.OpRelease, lease.OpRevoke, lease.OpRaise,
	} {
		leaseTold(m, op, resource, nil)
		leaseTold(m, op, resource, lease.ErrLost)
	}
	for _, op := range []fencedb.Op{
		fencedb.OpWrite, fencedb.OpSeal, fencedb.OpCommit, fencedb.OpEnter, fencedb.OpOutcome,
	} {
		wrote(m, op, nil, resource)
		wrote(m, op, fencedb.ErrStale, resource)
	}
}

func Example() {
	server, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	ctx := context.Background()

	metrics := prom.New(prom.Config{})
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)
	issuer, err := lease.New(client, lease.Config{TTL: 10 * time.Second, Tracers: []lease.Tracer{metrics}})
	if err != nil {
		log.Fatal(err)
	}
	first, err := issuer.Acquire(ctx, "table:12", lease.NoWait())
	if err != nil {
		log.Fatal(err)
	}
	defer first.Release(ctx)
	_, _ = issuer.Acquire(ctx, "table:12", lease.NoWait())

	page := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
	for line := range strings.Lines(page.Body.String()) {
		if strings.HasPrefix(line, "redis_lease_acquire_total") || strings.HasPrefix(line, "redis_lease_held") {
			fmt.Print(line)
		}
	}
	// Output:
	// redis_lease_acquire_total{outcome="cancelled",resource_type="table"} 0
	// redis_lease_acquire_total{outcome="error",resource_type="table"} 0
	// redis_lease_acquire_total{outcome="granted",resource_type="table"} 1
	// redis_lease_acquire_total{outcome="held",resource_type="table"} 1
	// redis_lease_acquire_total{outcome="not_sealed",resource_type="table"} 0
	// redis_lease_acquire_total{outcome="refused",resource_type="table"} 0
	// redis_lease_acquire_total{outcome="unreachable",resource_type="table"} 0
	// redis_lease_held{resource_type="table"} 1
}
