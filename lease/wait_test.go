package lease_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

// grant is what a waiter got, and when.
type grant struct {
	waiter int
	lease  *lease.Lease
	err    error
	at     time.Time
}

// wait lets a waiter stand in the queue; the grant comes over the channel.
func wait(ctx context.Context, i *lease.Issuer, waiter int, grants chan<- grant, opts ...lease.Option) {
	go func() {
		l, err := i.Acquire(ctx, "a", opts...)
		grants <- grant{waiter, l, err, time.Now()}
	}()
}

// channels are those on which somebody listens for news of the resource.
func (w *world) channels(t *testing.T, resource string) []string {
	t.Helper()
	channels, err := w.client.PubSubChannels(t.Context(), w.key(resource, "wake")+":*").Result()
	require.NoError(t, err)
	return channels
}

func requireCurrent(t *testing.T, l *lease.Lease) {
	t.Helper()
	standing, err := l.Verify(t.Context())
	require.NoError(t, err)
	require.Equal(t, lease.Current, standing)
}

// requests counts the script calls from now on.
func (w *world) requests() *atomic.Int64 {
	var n atomic.Int64
	w.faults.Set(func(faulty.Request) faulty.Fault { n.Add(1); return faulty.None })
	return &n
}

func TestAReleaseWakesTheWaiterAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		holder := try(t, w.issuer(t, lease.Config{TTL: 9 * time.Second}), "a")
		grants := make(chan grant)
		wait(t.Context(), w.issuer(t, lease.Config{TTL: 9 * time.Second}), 0, grants)
		time.Sleep(12 * time.Second)
		released := time.Now()
		require.NoError(t, holder.Release(t.Context()))
		g := <-grants
		require.NoError(t, g.err)
		require.Equal(t, released, g.at)
		require.NoError(t, g.lease.Release(t.Context()))
	})
}

func TestWaitersAreServedInOrderOfArrival(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		holder := try(t, w.issuer(t, lease.Config{TTL: 9 * time.Second}), "a")
		grants := make(chan grant)
		const waiters = 20
		for n := range waiters {
			wait(t.Context(), w.issuer(t, lease.Config{TTL: 9 * time.Second}), n, grants)
			time.Sleep(time.Second)
		}
		require.NoError(t, holder.Release(t.Context()))
		for n := range waiters {
			g := <-grants
			require.NoError(t, g.err)
			require.Equal(t, n, g.waiter)
			time.Sleep(ms)
			require.NoError(t, g.lease.Release(t.Context()))
		}
	})
}

// The work per hand-over does not depend on how many wait.
func TestAHandOverCostsTheSameForManyWaiters(t *testing.T) {
	cost := func(waiters int) (requests int64) {
		inBubble(t, func(t *testing.T, w *world) {
			holder := try(t, w.issuer(t, lease.Config{TTL: time.Minute}), "a")
			grants := make(chan grant)
			for n := range waiters {
				wait(t.Context(), w.issuer(t, lease.Config{TTL: time.Minute}), n, grants)
				time.Sleep(ms)
			}
			n := w.requests()
			for range waiters {
				require.NoError(t, holder.Release(t.Context()))
				holder = (<-grants).lease
			}
			requests = n.Load() / int64(waiters)
			require.NoError(t, holder.Release(t.Context()))
		})
		return requests
	}
	few, many := cost(5), cost(100)
	t.Logf("requests per hand-over: %d with 5 waiters, %d with 100", few, many)
	require.Equal(t, few, many)
	require.LessOrEqual(t, many, int64(2), "a release, and the next in line coming to stand in the queue")
}

func TestWaitersOfOneProcessAreOneWaiterInRedis(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: 9 * time.Second})
		holder := try(t, i, "a")
		grants := make(chan grant)
		const waiters = 50
		for n := range waiters {
			wait(t.Context(), i, n, grants)
			synctest.Wait()
		}
		require.EqualValues(t, 1, w.client.ZCard(t.Context(), w.key("a", "queue")).Val())
		require.Len(t, w.channels(t, "a"), 1)
		require.NoError(t, holder.Release(t.Context()))
		for n := range waiters {
			g := <-grants
			require.NoError(t, g.err)
			require.Equal(t, n, g.waiter)
			require.NoError(t, g.lease.Release(t.Context()))
		}
	})
}

func TestLeavingTheLineOfThisProcess(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: 9 * time.Second})
		holder := try(t, i, "a")
		ctx, cancel := context.WithCancel(t.Context())
		first, others, last := make(chan grant, 1), make(chan grant, 2), make(chan grant, 1)
		wait(ctx, i, 0, first)
		synctest.Wait()
		wait(ctx, i, 1, others)
		wait(t.Context(), i, 2, others, lease.WaitAtMost(time.Second))
		synctest.Wait()
		wait(t.Context(), i, 3, last)
		synctest.Wait()

		start := time.Now()
		g := <-others
		require.Equal(t, 2, g.waiter)
		require.Equal(t, start.Add(time.Second), g.at)
		require.ErrorIs(t, g.err, lease.ErrHeld)
		require.ErrorIs(t, g.err, context.DeadlineExceeded)

		cancel() // the first in line and the second, which may come to the front at that moment
		for _, g := range []grant{<-first, <-others} {
			require.ErrorIs(t, g.err, lease.ErrHeld)
			require.ErrorIs(t, g.err, context.Canceled)
		}
		require.NoError(t, holder.Release(t.Context()))
		g = <-last
		require.NoError(t, g.err)
		require.NoError(t, g.lease.Release(t.Context()))
	})
}

func TestWaitAtMost(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: 9 * time.Second})
		holder := try(t, i, "a")
		start := time.Now()
		_, err := i.Acquire(t.Context(), "a", lease.WaitAtMost(3*time.Second))
		require.Equal(t, 3*time.Second+ms, time.Since(start), "withdrawals are gathered for a millisecond")
		require.ErrorIs(t, err, lease.ErrHeld)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Zero(t, w.snapshot(t, "a").waiters, "it has left the queue")

		// Only the waiting is bounded, not the lease or the work.
		require.NoError(t, holder.Release(t.Context()))
		require.NoError(t, i.Do(t.Context(), "a", func(ctx context.Context, l *lease.Lease) error {
			time.Sleep(20 * time.Second)
			return ctx.Err()
		}, lease.WaitAtMost(time.Second)))
	})
}

func TestWhoHasStoodInLineHearsThatItIsHeld(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		delay(w, 100*ms)
		i := w.issuer(t, lease.Config{TTL: 9 * time.Second})
		holder := try(t, i, "a")
		grants := make(chan grant)
		wait(t.Context(), i, 1, grants)
		synctest.Wait()
		ctx, giveUp := context.WithCancel(t.Context())
		wait(ctx, i, 2, grants)
		synctest.Wait()
		require.NoError(t, holder.Release(t.Context()))

		first := <-grants
		synctest.Wait() // the second has come to the front, and its question is under way
		giveUp()

		second := <-grants
		require.ErrorIs(t, second.err, lease.ErrHeld)
		require.ErrorIs(t, second.err, context.Canceled)
		require.NoError(t, first.lease.Release(t.Context()))
	})
}

func TestACallThatDoesNotWaitDoesNotJumpTheQueue(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: 9 * time.Second})
		w.listen(t, "a", "first")
		w.enqueue(t, "a", "first", time.Now(), 5*time.Second)
		_, err := i.Acquire(t.Context(), "a", lease.NoWait())
		var held *lease.HeldError
		require.ErrorAs(t, err, &held)
		require.Equal(t, 500*ms, held.RetryAfter, "the time the first has to come")
	})
}

// FLUSHALL takes the queue too. Each waiter comes back when it asks by itself, however long the
// lease would have lasted that Redis has forgotten.
func TestWaitingSurvivesFlushAll(t *testing.T) {
	flush := func(t *testing.T, w *world, waits func(waiters int)) {
		holder := try(t, w.issuer(t, lease.Config{TTL: time.Hour, RenewEvery: lease.Never}), "a")
		grants := make(chan grant)
		const waiters = 5
		for n := range waiters {
			wait(t.Context(), w.issuer(t, lease.Config{TTL: time.Hour}), n, grants)
		}
		waits(waiters)
		require.NoError(t, w.client.FlushAll(t.Context()).Err())
		for range waiters {
			g := <-grants
			require.NoError(t, g.err)
			require.NoError(t, g.lease.Release(t.Context()))
		}
		require.ErrorIs(t, holder.Release(t.Context()), lease.ErrLost)
	}
	inBubble(t, func(t *testing.T, w *world) {
		var start time.Time
		flush(t, w, func(int) { time.Sleep(time.Second); start = time.Now() })
		require.LessOrEqual(t, time.Since(start), 5250*ms, "the time after which they ask, and a twentieth")
	})
	w := worldOn(t, testenv.OwnRedis(t).Client())
	flush(t, w, func(waiters int) {
		require.Eventually(t, func() bool {
			return len(w.channels(t, "a")) == waiters && w.client.ZCard(t.Context(), w.key("a", "queue")).Val() == int64(waiters)
		}, patience, ms)
	})
}

func TestWaitingEndsWithAHolderThatDied(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		dead := try(t, w.issuer(t, lease.Config{TTL: 3 * time.Second, RenewEvery: lease.Never}), "a")
		start := time.Now()
		l, err := w.issuer(t, lease.Config{TTL: 9 * time.Second}).Acquire(t.Context(), "a")
		require.NoError(t, err)
		require.LessOrEqual(t, time.Since(start), 3*time.Second+200*ms)
		require.Greater(t, l.Token(), dead.Token())
		require.NoError(t, l.Release(t.Context()))
	})
}

// Who may not pass messages on, or hear them, would wait by asking again and again, and let others
// wait so. That is told, once there is somebody to wait for.
func TestWaitingWithoutMessagesIsDenied(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	w := worldOn(t, server.Client())
	require.NoError(t, w.client.Do(t.Context(), "ACL", "SETUSER", "default", "resetchannels").Err())
	i := w.issuer(t, lease.Config{TTL: time.Minute})
	holder := try(t, i, "a")
	start := time.Now()
	_, err := w.issuer(t, lease.Config{TTL: time.Minute}).Acquire(t.Context(), "a")
	require.ErrorIs(t, err, &lease.RefusedError{Code: "NOPERM"})
	require.Less(t, time.Since(start), patience, "less than the holder has")
	require.NoError(t, holder.Release(t.Context()))
}

func TestWaitingSurvivesABrokenSubscription(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	w := worldOn(t, server.Client())
	i := w.issuer(t, lease.Config{TTL: time.Minute})
	holder := try(t, i, "a")
	grants := make(chan grant)
	wait(t.Context(), i, 0, grants)
	require.Eventually(t, func() bool { return len(w.channels(t, "a")) == 1 }, patience, ms)
	require.NoError(t, w.client.Do(t.Context(), "CLIENT", "KILL", "TYPE", "pubsub").Err())
	took := testenv.Stopwatch(t)
	require.NoError(t, holder.Release(t.Context()))
	g := <-grants
	require.NoError(t, g.err)
	require.Less(t, took(), 4*time.Second, "the new subscription rings")
	require.NoError(t, g.lease.Release(t.Context()))
}

func TestManyWaitersInManyProcesses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var holders, grants atomic.Int64
	var last atomic.Int64
	var all sync.WaitGroup
	for range 4 {
		i := w.issuer(t, lease.Config{TTL: time.Minute})
		for range 25 {
			all.Go(func() {
				for range 4 {
					err := i.Do(t.Context(), "a", func(_ context.Context, l *lease.Lease) error {
						if holders.Add(1) != 1 {
							t.Error("two holders")
						}
						if before := last.Swap(l.Token()); before >= l.Token() {
							t.Errorf("token %d after %d", l.Token(), before)
						}
						grants.Add(1)
						holders.Add(-1)
						return nil
					})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	all.Wait()
	require.EqualValues(t, 400, grants.Load())
}
