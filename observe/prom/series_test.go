package prom_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

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
	few := seriesAfter(t, prom.Config{}, 51, name)
	require.Equal(t, few, seriesAfter(t, prom.Config{}, 10_000, name))

	m, want := prom.New(prom.Config{}), map[string]float64{"other table": 3}
	for n := range 53 {
		namespace := fmt.Sprint("ns", n)
		tell(m, lease.TraceStart{Op: lease.OpExtend, Kind: "lease", Namespace: namespace, Resource: "table:12"}, lease.ErrLost)
		if n < 50 {
			want[namespace+" table"] = 1
		}
	}
	requireSeries(t, m, "redis_lease_not_owned_total", want)
}

func TestTheFirstTypesAreKept(t *testing.T) {
	t.Parallel()
	m, want := prom.New(prom.Config{}), map[string]float64{"granted other": 5}
	for n := range 50 {
		name := fmt.Sprint("type-", n)
		leaseTold(m, lease.OpAcquire, name+":1", nil)
		want["granted "+name] = 1
	}
	for _, resource := range []string{"c:1", "d:1", "type-0:2", "no type", ":1", "type-1"} {
		leaseTold(m, lease.OpAcquire, resource, nil)
	}
	want["granted type-0"] = 2
	requireSeries(t, m, "redis_lease_acquire_total", want)
}

func TestListedTypesAreTheOnlyOnes(t *testing.T) {
	t.Parallel()
	m := prom.New(prom.Config{Types: []string{"table", "nightly-report"}})
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
	require.Len(t, family(t, m, "redis_lease_acquire_total").GetMetric(), 7)
	require.Len(t, family(t, m, "redis_lease_release_total").GetMetric(), 6)
	require.Len(t, family(t, m, "redis_lease_extend_total").GetMetric(), 7)
	require.Len(t, family(t, m, "redis_lease_lost_total").GetMetric(), 4)
	require.Len(t, family(t, m, "redis_lease_raised_total").GetMetric(), 2)
	wrote(m, "write", nil, "table:12")
	require.Len(t, family(t, m, "fencedb_writes_total").GetMetric(), len(fencedb.Outcomes())+1, "one is entered")
}

func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	m := prom.New(prom.Config{})
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			for k := range 200 {
				everything(m, fmt.Sprintf("type-%d:%d", (n+k)%52, k))
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

// What fails for one resource shows for as long as it goes on, whatever else of its type goes well.
func TestOneResourceThatFailsIsSeenAmongMany(t *testing.T) {
	hold := func(m *prom.Metrics, resource string, end error) {
		leaseTold(m, lease.OpHold, resource, end)
	}
	for name, test := range map[string]struct {
		fail, succeed func(m *prom.Metrics, resource string)
		metric, label string
	}{
		"held, at once": {
			func(m *prom.Metrics, r string) { leaseTold(m, lease.OpAcquire, r, &lease.HeldError{Resource: r}) },
			func(m *prom.Metrics, r string) { hold(m, r, lease.ErrReleased) }, "redis_lease_failing_seconds", "held table"},
		"held, after waiting": {
			func(m *prom.Metrics, r string) {
				leaseTold(m, lease.OpAcquire, r, &lease.HeldError{Resource: r, Cause: context.DeadlineExceeded})
			},
			func(m *prom.Metrics, r string) { hold(m, r, lease.ErrReleased) }, "redis_lease_failing_seconds", "held table"},
		"unreachable": {
			func(m *prom.Metrics, r string) { leaseTold(m, lease.OpAcquire, r, lease.ErrUnreachable) },
			func(m *prom.Metrics, r string) { leaseTold(m, lease.OpAcquire, r, nil) }, "redis_lease_failing_seconds", "unreachable table"},
		"unreachable, before one caller gives up": {
			func(m *prom.Metrics, r string) {
				leaseTold(m, lease.OpAcquire, r, lease.ErrUnreachable)
				leaseTold(m, lease.OpAcquire, r, context.Canceled)
			},
			func(m *prom.Metrics, r string) { leaseTold(m, lease.OpAcquire, r, nil) }, "redis_lease_failing_seconds", "unreachable table"},
		"unreachable, then held": {
			func(m *prom.Metrics, r string) { leaseTold(m, lease.OpAcquire, r, lease.ErrUnreachable) },
			func(m *prom.Metrics, r string) {
				leaseTold(m, lease.OpAcquire, r, &lease.HeldError{Resource: r})
				hold(m, r, lease.ErrReleased)
			}, "redis_lease_failing_seconds", "unreachable table"},
		"refused": {
			func(m *prom.Metrics, r string) {
				leaseTold(m, lease.OpAcquire, r, &lease.RefusedError{Code: "OOM"})
			},
			func(m *prom.Metrics, r string) { leaseTold(m, lease.OpAcquire, r, nil) }, "redis_lease_failing_seconds", "refused table"},
		"failed, though granted": {
			func(m *prom.Metrics, r string) {
				hold(m, r, lease.ErrReleased)
				leaseTold(m, lease.OpAcquire, r, fencedb.ErrBusy)
			},
			func(m *prom.Metrics, r string) { leaseTold(m, lease.OpAcquire, r, nil) }, "redis_lease_failing_seconds", "error table"},
		"not renewed": {
			func(m *prom.Metrics, r string) { leaseTold(m, lease.OpExtend, r, lease.ErrUnreachable) },
			func(m *prom.Metrics, r string) { leaseTold(m, lease.OpExtend, r, nil) }, "redis_lease_failing_seconds", "not_renewed table"},
		"lost": {
			func(m *prom.Metrics, r string) { hold(m, r, lease.ErrExpired) },
			func(m *prom.Metrics, r string) { hold(m, r, lease.ErrReleased) }, "redis_lease_failing_seconds", "lost table"},
		"not owned": {
			func(m *prom.Metrics, r string) { leaseTold(m, lease.OpRelease, r, lease.ErrLost) },
			func(m *prom.Metrics, r string) { leaseTold(m, lease.OpRelease, r, nil) }, "redis_lease_failing_seconds", "not_owned table"},
		"raised": {
			func(m *prom.Metrics, r string) {
				leaseTold(m, lease.OpAcquire, r, nil)
				leaseTold(m, lease.OpRaise, r, nil)
				leaseTold(m, lease.OpAcquire, r, nil)
			},
			func(m *prom.Metrics, r string) {
				leaseTold(m, lease.OpAcquire, r, nil)
				leaseTold(m, lease.OpAcquire, r, nil)
			}, "redis_lease_failing_seconds", "raised table"},
		"blocked": {
			func(m *prom.Metrics, r string) { wrote(m, fencedb.OpWrite, fencedb.ErrBusy, r) },
			func(m *prom.Metrics, r string) { wrote(m, fencedb.OpWrite, nil, "seat:1", r) }, "fencedb_writes_failing_seconds", "busy table"},
		"blocked in a transaction of the application": {
			func(m *prom.Metrics, r string) { wrote(m, fencedb.OpEnter, fencedb.ErrBusy, r) },
			func(m *prom.Metrics, r string) { wrote(m, fencedb.OpEnter, nil, r) }, "fencedb_writes_failing_seconds", "busy table"},
		"over in a transaction of the application": { // where entering succeeds each time
			func(m *prom.Metrics, r string) {
				wrote(m, fencedb.OpEnter, nil, r)
				wrote(m, fencedb.OpOutcome, fencedb.ErrLeaseOver, r)
			},
			func(m *prom.Metrics, r string) {
				wrote(m, fencedb.OpEnter, nil, r)
				wrote(m, fencedb.OpEnter, nil, r)
			}, "fencedb_writes_failing_seconds", "lease_over table"},
		"stale": {
			func(m *prom.Metrics, r string) {
				wrote(m, fencedb.OpWrite, &fencedb.StaleError{Resource: r}, "seat:1", r)
			},
			func(m *prom.Metrics, r string) { wrote(m, fencedb.OpWrite, nil, r) }, "fencedb_writes_failing_seconds", "stale table"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := prom.New(prom.Config{})
				test.fail(m, "table:12")
				requireSeries(t, m, test.metric, map[string]float64{}) // one failure is none that lasts
				for range 10 {
					time.Sleep(time.Minute)
					for n := range 100 {
						test.succeed(m, fmt.Sprintf("table:1%d", 300+n))
					}
					test.fail(m, "table:12")
				}
				lasts := map[string]float64{test.label: 600}
				if test.label == "held table" {
					lasts["held_by_one table"] = 600
				}
				requireSeries(t, m, test.metric, lasts)

				time.Sleep(4 * time.Minute)
				requireSeries(t, m, test.metric, lasts)
				test.succeed(m, "table:12")
				requireSeries(t, m, test.metric, map[string]float64{})
			})
		})
	}
}

// It is told apart from a late writer: there the ledger is ahead, and nobody can write.
func TestALiveHolderThatIsRefusedIsNoLateWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := prom.New(prom.Config{Types: []string{"first"}})
		hold := lease.TraceStart{Op: lease.OpHold, Kind: "lease", Resource: "table:12", LeaseID: id, Token: 7}
		refused := func() {
			wrote(m, fencedb.OpWrite, &fencedb.StaleError{Resource: "table:12"}, "seat:1", "table:12")
			time.Sleep(time.Minute)
		}
		leaseTold(m, lease.OpAcquire, "first:1", nil) // the one type that there may be
		wrote(m, fencedb.OpWrite, nil, "first:1")
		ctx := m.TraceLeaseStart(t.Context(), hold)
		refused()
		refused()
		requireSeries(t, m, "fencedb_writes_failing_seconds", map[string]float64{"stale other": 60, "stale_held other": 60})
		m.TraceLeaseEnd(ctx, lease.TraceEnd{TraceStart: hold, Err: lease.ErrExpired})
		refused()
		refused()
		requireSeries(t, m, "fencedb_writes_failing_seconds", map[string]float64{"stale other": 180, "stale_held other": 60})
		wrote(m, fencedb.OpWrite, nil, "table:12")
		requireSeries(t, m, "fencedb_writes_failing_seconds", map[string]float64{})
	})
}

// Whether one process keeps it, or others get it in turn.
func TestWhoIsRefusedByOneHolderIsToldApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := prom.New(prom.Config{})
		refused := func(holders ...string) {
			for _, holder := range holders {
				time.Sleep(time.Minute)
				leaseTold(m, lease.OpAcquire, "table:12", &lease.HeldError{Resource: "table:12", Holder: holder})
			}
		}
		refused("a", "a", "", "a") // "": it is not known who
		requireSeries(t, m, "redis_lease_failing_seconds", map[string]float64{"held table": 180, "held_by_one table": 180})
		refused("b", "", "a", "b")
		requireSeries(t, m, "redis_lease_failing_seconds", map[string]float64{"held table": 420})
		refused("b")
		requireSeries(t, m, "redis_lease_failing_seconds", map[string]float64{"held table": 480, "held_by_one table": 60})
		leaseTold(m, lease.OpHold, "table:12", lease.ErrReleased)
		requireSeries(t, m, "redis_lease_failing_seconds", map[string]float64{})
	})
}

// Only a token that was issued while the lease was held: one of the future is from before Redis
// went back, and the next one after the own is a role's that takes over.
func TestAHolderThatIsOvertakenIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := prom.New(prom.Config{})
		token := time.Now().UnixMicro()
		hold := lease.TraceStart{Op: lease.OpHold, Kind: "lease", Resource: "table:12", LeaseID: id, Token: token}
		refused := func(after time.Duration) {
			s := fencedb.TraceStart{Op: fencedb.OpWrite, Grants: []fencedb.Grant{fencedb.NewGrant("table:12", token, id, fencedb.NoEnd)}}
			stale := &fencedb.StaleError{Resource: "table:12", Token: token, Stored: token + after.Microseconds()}
			m.TraceWriteEnd(m.TraceWriteStart(t.Context(), s), fencedb.TraceEnd{TraceStart: s, Err: stale})
		}
		ctx := m.TraceLeaseStart(t.Context(), hold)
		time.Sleep(time.Minute)
		refused(30 * time.Second)
		refused(time.Hour)
		refused(3 * time.Microsecond)
		refused(0)
		requireSeries(t, m, "redis_lease_overtaken_total", map[string]float64{"table": 1})
		m.TraceLeaseEnd(ctx, lease.TraceEnd{TraceStart: hold, Err: lease.ErrExpired})
		refused(30 * time.Second)
		requireSeries(t, m, "redis_lease_overtaken_total", map[string]float64{"table": 1})
		requireSeries(t, m, "redis_lease_fencing_rejected_total", map[string]float64{"postgres table": 5})
	})
}

func TestDroppedEventsAreCounted(t *testing.T) {
	t.Parallel()
	m := prom.New(prom.Config{Dropped: func() int64 { return 7 }})
	requireSeries(t, m, "fencedb_events_dropped_total", map[string]float64{"": 7})
	requireSeries(t, prom.New(prom.Config{}), "fencedb_events_dropped_total", map[string]float64{})
}

func TestLeasesThatAreLostAfterALongHoldAreLostEachTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := prom.New(prom.Config{})
		s := lease.TraceStart{Op: lease.OpHold, Kind: "lease", Resource: "table:12"}
		for range 3 {
			time.Sleep(time.Hour)
			m.TraceLeaseEnd(t.Context(), lease.TraceEnd{TraceStart: s, Took: time.Hour, Err: lease.ErrExpired})
		}
		requireSeries(t, m, "redis_lease_failing_seconds", map[string]float64{"lost table": 7200})
	})
}

func TestAResourceThatNobodyAsksForIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := prom.New(prom.Config{})
		fail := func() { wrote(m, fencedb.OpWrite, fencedb.ErrBusy, "table:12") }
		fail()
		time.Sleep(4 * time.Minute)
		fail()
		time.Sleep(6 * time.Minute)
		fail() // begins anew
		requireSeries(t, m, "fencedb_writes_failing_seconds", map[string]float64{})
		time.Sleep(time.Minute)
		fail()
		requireSeries(t, m, "fencedb_writes_failing_seconds", map[string]float64{"busy table": 60})
		time.Sleep(6 * time.Minute)
		requireSeries(t, m, "fencedb_writes_failing_seconds", map[string]float64{})
	})
}

// Callers that wait for a quarter of an hour come rarely.
func TestACallerThatWaitedLongIsAwaitedLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := prom.New(prom.Config{})
		s := lease.TraceStart{Op: lease.OpAcquire, Kind: "lease", Resource: "table:12"}
		for range 3 {
			ctx := m.TraceLeaseStart(t.Context(), s)
			time.Sleep(15 * time.Minute)
			m.TraceLeaseEnd(ctx, lease.TraceEnd{TraceStart: s, Took: 15 * time.Minute, Err: &lease.HeldError{Resource: "table:12"}})
		}
		requireSeries(t, m, "redis_lease_failing_seconds", map[string]float64{"held table": 1800, "held_by_one table": 1800})
	})
}

// A follower is refused once in a TTL, for as long as somebody leads.
func TestFollowersOfALeaderDoNotFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := prom.New(prom.Config{})
		for range 10 {
			tell(m, lease.TraceStart{Op: lease.OpAcquire, Kind: "lease", Resource: "table:12", Lead: true}, &lease.HeldError{Resource: "table:12"})
			time.Sleep(time.Minute)
		}
		requireSeries(t, m, "redis_lease_failing_seconds", map[string]float64{})
	})
}

// Of several that are acquired together, the one that was held fails.
func TestOfSeveralTheOneThatIsHeldFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := prom.New(prom.Config{})
		for range 2 {
			tell(m, lease.TraceStart{Op: lease.OpAcquire, Kind: "lease", Resource: "seat:1", Resources: 2}, &lease.HeldError{Resource: "table:12"})
			time.Sleep(time.Minute)
		}
		requireSeries(t, m, "redis_lease_failing_seconds", map[string]float64{"held table": 60, "held_by_one table": 60})
		leaseTold(m, lease.OpHold, "table:12", lease.ErrReleased)
		requireSeries(t, m, "redis_lease_failing_seconds", map[string]float64{"held table": 60, "held_by_one table": 60}) // in another namespace
		tell(m, lease.TraceStart{Op: lease.OpHold, Kind: "lease", Resource: "table:12"}, lease.ErrReleased)
		requireSeries(t, m, "redis_lease_failing_seconds", map[string]float64{})
	})
}

func TestFailingResourcesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := prom.New(prom.Config{})
		fail := func(resource string) { wrote(m, fencedb.OpWrite, fencedb.ErrBusy, resource) }
		for n := range 1000 {
			fail(fmt.Sprintf("table:%d", n))
		}
		time.Sleep(time.Minute)
		fail("table:one more") // is not remembered: those before it have failed for longer
		fail("table:0")
		time.Sleep(time.Minute)
		fail("table:one more")
		requireSeries(t, m, "fencedb_writes_failing_seconds", map[string]float64{"busy table": 60})
		time.Sleep(4*time.Minute + time.Second) // all but one have been quiet for five minutes
		fail("table:one more")
		time.Sleep(2 * time.Minute)
		fail("table:one more")
		requireSeries(t, m, "fencedb_writes_failing_seconds", map[string]float64{"busy table": 120})
	})
}
