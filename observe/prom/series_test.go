package prom_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/observe/prom"
)

func seriesAfter(t *testing.T, cfg prom.Config, resources int, name func(n int) string) int {
	t.Helper()
	m := prom.New(cfg)
	for n := range resources {
		everything(m, name(n))
	}
	series := 0
	for _, f := range gather(t, m) {
		series += len(f.GetMetric())
	}
	return series
}

func TestAHundredThousandResourcesMakeNoMoreSeriesThanTen(t *testing.T) {
	t.Parallel()
	name := func(n int) string { return fmt.Sprintf("table:%d", n) }
	few := seriesAfter(t, prom.Config{}, 10, name)
	require.Equal(t, few, seriesAfter(t, prom.Config{}, 100_000, name))
}

func TestTypesAndNamespacesAreBounded(t *testing.T) {
	t.Parallel()
	name := func(n int) string { return fmt.Sprintf("type-%d:1", n) }
	few := seriesAfter(t, prom.Config{MaxTypes: 10}, 11, name)
	require.Equal(t, few, seriesAfter(t, prom.Config{MaxTypes: 10}, 10_000, name))

	m := prom.New(prom.Config{MaxTypes: 2})
	for n := range 5 {
		tell(m, lease.TraceStart{Op: lease.OpExtend, Kind: "lease", Namespace: fmt.Sprint("ns", n), Resource: "table:12"}, lease.ErrLost)
	}
	requireSeries(t, m, "redis_lease_not_owned_total", map[string]float64{"ns0": 1, "ns1": 1, "other": 3})
}

func TestTheFirstTypesAreKept(t *testing.T) {
	t.Parallel()
	m := prom.New(prom.Config{MaxTypes: 2})
	for _, resource := range []string{"a:1", "b:1", "c:1", "d:1", "a:2", "no type", ":1", "b"} {
		leaseTold(m, lease.OpAcquire, resource, nil)
	}
	requireSeries(t, m, "redis_lease_acquire_total", map[string]float64{"granted a": 2, "granted b": 1, "granted other": 5})
}

func TestListedTypesAreTheOnlyOnes(t *testing.T) {
	t.Parallel()
	m := prom.New(prom.Config{Types: []string{"table", "nightly-report"}, MaxTypes: 1})
	for _, resource := range []string{"sku:1", "table:1", "nightly-report", "table:2", "hall:3"} {
		leaseTold(m, lease.OpAcquire, resource, nil)
	}
	requireSeries(t, m, "redis_lease_acquire_total", map[string]float64{"granted table": 2, "granted nightly-report": 1, "granted other": 2})
}

func TestKindsAreKeptApart(t *testing.T) {
	t.Parallel()
	m := prom.New(prom.Config{})
	leaseTold(m, lease.OpAcquire, "render:1", nil)
	tell(m, lease.TraceStart{Op: lease.OpAcquire, Kind: "semaphore", Resource: "render:1"}, nil)
	requireSeries(t, m, "redis_lease_acquire_total", map[string]float64{"granted render": 1, "granted semaphore/render": 1})
}

func TestEveryOutcomeIsThereFromTheFirst(t *testing.T) {
	t.Parallel()
	m := prom.New(prom.Config{})
	leaseTold(m, lease.OpAcquire, "table:12", nil)
	require.Len(t, family(t, m, "redis_lease_acquire_total").GetMetric(), 4)
	require.Len(t, family(t, m, "redis_lease_release_total").GetMetric(), 6)
	require.Len(t, family(t, m, "redis_lease_extend_total").GetMetric(), 5)
	require.Len(t, family(t, m, "redis_lease_lost_total").GetMetric(), 5)
	require.Len(t, family(t, m, "redis_lease_healed_total").GetMetric(), 2)
	wrote(m, "write", nil, "table:12")
	require.Len(t, family(t, m, "fencedb_writes_total").GetMetric(), len(fencedb.Outcomes()))
}

func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	m := prom.New(prom.Config{MaxTypes: 3})
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			for k := range 200 {
				everything(m, fmt.Sprintf("type-%d:%d", (n+k)%5, k))
			}
		})
	}
	for range 20 {
		gather(t, m)
	}
	all.Wait()
	requireSeries(t, m, "redis_lease_held", map[string]float64{})
	sum := 0.0
	for _, series := range family(t, m, "redis_lease_acquire_duration_seconds").GetMetric() {
		sum += float64(series.GetHistogram().GetSampleCount())
	}
	require.Equal(t, float64(8*200*2), sum)
}

// A context without the start's values must not matter to what is only counted.
func TestAnEndWithoutItsContextIsCounted(t *testing.T) {
	t.Parallel()
	m := prom.New(prom.Config{})
	m.TraceLeaseEnd(context.Background(), lease.TraceEnd{TraceStart: lease.TraceStart{Op: lease.OpHold, Kind: "lease", Resource: "table:12"}, Err: lease.ErrLost})
	requireSeries(t, m, "redis_lease_lost_total", map[string]float64{"lost table": 1})
}
