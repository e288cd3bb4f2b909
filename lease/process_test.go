package lease_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
	workers "github.com/fencedb/fencedb/internal/worker"
	"github.com/fencedb/fencedb/lease"
)

// place is where a holder in a process of its own finds the resource "a".
type place struct{ Addr, Namespace string }

// holders are this test binary as another process, which holds from its first event on.
var holders = map[string]workers.Life{"lease": holdLease, "permit": holdPermit}

// hold starts a holder of that kind.
func (w *world) hold(t *testing.T, kind string) *workers.Process[string] {
	t.Helper()
	h, err := workers.Start[string](t.Context(), kind, place{w.client.(*redis.Client).Options().Addr, w.namespace})
	require.NoError(t, err)
	t.Cleanup(h.Kill)
	return h
}

func hear(t *testing.T, h *workers.Process[string]) string {
	t.Helper()
	said, err := h.Next(t.Context())
	require.NoError(t, err)
	return said
}

// holdLease tries everything that a holder can do when it is told to.
func holdLease(ctx context.Context, self *workers.Self) error {
	var at place
	if err := self.Config(&at); err != nil {
		return err
	}
	client := redis.NewClient(&redis.Options{Addr: at.Addr})
	i, err := lease.New(client, lease.Config{TTL: time.Second, Namespace: at.Namespace})
	if err != nil {
		return err
	}
	l, err := i.Acquire(ctx, "a", lease.NoWait())
	if err != nil {
		return err
	}
	self.Tell("holding")
	if err := self.Order(new(any)); err != nil {
		return err
	}
	extend, release := l.Extend(ctx), l.Release(ctx)
	self.Tell(fmt.Sprint(errors.Is(extend, lease.ErrExpired), errors.Is(release, lease.ErrExpired),
		errors.Is(context.Cause(l.Context()), lease.ErrExpired)))
	return nil
}

func TestAHolderThatWasStopped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	holder := w.hold(t, "lease")
	require.NoError(t, holder.Stop())
	next, err := w.issuer(t, lease.Config{TTL: time.Minute, RenewEvery: lease.Never}).Acquire(t.Context(), "a")
	require.NoError(t, err)
	before := w.dump(t, "a")
	require.NoError(t, holder.Order("go on"))
	require.NoError(t, holder.Continue())
	require.Equal(t, "true true true", hear(t, holder), "extend, release and context all say that it expired")
	require.Equal(t, before, w.dump(t, "a"), "nothing of the next holder's was touched")
	require.NoError(t, next.Release(t.Context()))
}

// Resources that are leased once and never again leave nothing behind, whether released or not:
// every key that there is has an end.
func TestNothingIsLeftAfterTheRetention(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	w := worldOn(t, server.Client())
	const ttl, retention = time.Minute, time.Hour
	i := w.issuer(t, lease.Config{TTL: ttl, RenewEvery: lease.Never, FenceRetention: retention})
	for n := range 2 {
		ls, err := i.AcquireAll(t.Context(), prefixed(fmt.Sprint(n, "-"), many(500)), lease.NoWait())
		require.NoError(t, err)
		if n == 0 {
			require.NoError(t, ls.Release(t.Context()))
		}
	}
	keys, err := w.client.Keys(t.Context(), "*").Result()
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(keys), 2*500)
	ends, err := w.client.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		for _, key := range keys {
			p.PTTL(t.Context(), key)
		}
		return nil
	})
	require.NoError(t, err)
	for n, end := range ends {
		left := end.(*redis.DurationCmd).Val()
		require.Positive(t, left, keys[n])
		require.LessOrEqual(t, left, ttl+retention, keys[n])
	}
}

func prefixed(prefix string, names []string) []string {
	for n := range names {
		names[n] = prefix + names[n]
	}
	return names
}

// What ten thousand leases cost that are held and renewed: processor time of this process, as a
// share of one core, and bytes in Redis for each.
func BenchmarkTenThousandLeasesHeld(b *testing.B) {
	client := testenv.Redis(b)
	namespace := testenv.Namespace(b)
	i, err := lease.New(client, lease.Config{TTL: 30 * time.Second, Namespace: namespace})
	require.NoError(b, err)
	var all lease.Leases
	for n := range 10 {
		ls, err := i.AcquireAll(b.Context(), prefixed(fmt.Sprint(n, "-"), many(1000)), lease.NoWait())
		require.NoError(b, err)
		all = append(all, ls...)
	}
	bytes := client.MemoryUsage(b.Context(), "lease:v1:{"+namespace+"/0-r1}:owner").Val() +
		client.MemoryUsage(b.Context(), "lease:v1:{"+namespace+"/0-r1}:fence").Val()
	started, used := time.Now(), processorTime(b)
	for b.Loop() {
		<-time.After(10 * time.Second) // one interval of renewals
	}
	b.ReportMetric(float64(processorTime(b)-used)/float64(time.Since(started)), "cores")
	b.ReportMetric(float64(bytes), "redis-B/lease")
	for _, l := range all {
		require.NoError(b, l.Err())
	}
	require.NoError(b, all.Release(b.Context()))
}

func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// One uncontended lease, acquired and released: two round trips.
func BenchmarkAcquireRelease(b *testing.B) {
	i, err := lease.New(testenv.Redis(b), lease.Config{TTL: 30 * time.Second, Namespace: testenv.Namespace(b)})
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		l, err := i.Acquire(b.Context(), "a", lease.NoWait())
		require.NoError(b, err)
		require.NoError(b, l.Release(b.Context()))
	}
}

const (
	places    = 5
	holderTTL = 1500 * ms
)

// holdPermit holds until its orders end.
func holdPermit(ctx context.Context, self *workers.Self) error {
	var at place
	if err := self.Config(&at); err != nil {
		return err
	}
	s, err := lease.NewSemaphore(redis.NewClient(&redis.Options{Addr: at.Addr}), lease.SemaphoreConfig{
		Limit: places, Lease: lease.Config{TTL: holderTTL, Namespace: at.Namespace},
	})
	if err != nil {
		return err
	}
	err = s.Do(ctx, "a", func(context.Context, *lease.Lease) error {
		self.Tell("holding")
		_ = self.Order(new(any))
		return nil
	})
	self.Tell(fmt.Sprint("lost: ", err != nil))
	return nil
}

// Two of five places are held by processes that are stopped. A hundred contenders get the three
// others at first, and all five when the stopped ones have been given up; never more, by Redis's
// own account.
func TestSemaphoreAHundredContendersUnderStoppedHolders(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stopped := []*workers.Process[string]{w.hold(t, "permit"), w.hold(t, "permit")}
	for _, h := range stopped {
		require.NoError(t, h.Stop())
	}

	most := contend(t, w, 100)
	require.LessOrEqual(t, most, places)

	inspector := w.semaphore(t, places, lease.Config{})
	// They are given up: all places can be had.
	var got []*lease.Lease
	for range places {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		l, err := inspector.Acquire(ctx, "a")
		cancel()
		require.NoError(t, err)
		got = append(got, l)
	}
	requireFull(t, inspector, "a")
	for _, h := range stopped {
		h.EndOrders()
		require.NoError(t, h.Continue())
		require.Equal(t, "lost: true", hear(t, h))
	}
	for _, l := range got {
		requireStanding(t, l, lease.Current)
		require.NoError(t, l.Release(t.Context()))
	}
}

// contend lets n contenders, from four processes' point of view, hold a place once each, and
// returns the most holders that any of them saw in Redis.
func contend(t *testing.T, w *world, n int) int {
	t.Helper()
	var mu sync.Mutex
	done, most := 0, 0
	look := func(ctx context.Context, s *lease.Semaphore) error {
		found, err := s.Inspect(ctx, "a")
		mu.Lock()
		defer mu.Unlock()
		done, most = done+1, max(most, len(found.Permits))
		return err
	}
	var all sync.WaitGroup
	for range 4 {
		s := w.semaphore(t, places, lease.Config{})
		for range n / 4 {
			all.Go(func() {
				err := s.Do(t.Context(), "a", func(ctx context.Context, _ *lease.Lease) error { return look(ctx, s) })
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
	all.Wait()
	require.Equal(t, n, done)
	return most
}

func TestSemaphoreAHolderThatIsKilledBlocksItsPlaceForOneTTL(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.semaphore(t, places, lease.Config{})
	dead := w.hold(t, "permit")
	for range places - 1 {
		tryPermit(t, s, "a")
	}
	requireFull(t, s, "a")
	dead.Kill()
	l, err := s.Acquire(t.Context(), "a")
	require.NoError(t, err)
	require.NoError(t, l.Release(t.Context()))
}
