package lease_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

// enqueue puts a call into the queue that nobody stands for. Its listener has the same name.
func (w *world) enqueue(t *testing.T, resource, call string, arrived time.Time, alive time.Duration) {
	t.Helper()
	ctx := t.Context()
	require.NoError(t, w.client.ZAdd(ctx, w.key(resource, "queue"), redis.Z{Score: float64(arrived.UnixMicro()), Member: call}).Err())
	require.NoError(t, w.client.HSet(ctx, w.key(resource, "alive"), call,
		fmt.Sprintf("%d:%d:0:0@%s", arrived.Add(alive).UnixMilli(), arrived.Add(-time.Second).UnixMilli(), call)).Err())
}

// listen is what a process does that was stopped: its connection stands, and it does nothing about
// what it is told.
func (w *world) listen(t *testing.T, resource, listener string) {
	t.Helper()
	s := w.client.Subscribe(t.Context(), w.key(resource, "wake")+":"+listener)
	_, err := s.Receive(t.Context())
	require.NoError(t, err)
	go func() {
		for err == nil {
			_, err = s.Receive(context.Background())
		}
	}()
	t.Cleanup(func() { _ = s.Close() })
}

func TestADeadWaiterAtTheHeadStallsNobody(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: 3 * time.Second, RenewEvery: lease.Never})
		holder := try(t, i, "a")
		for range 5 {
			w.enqueue(t, "a", uuid.NewString(), time.Now(), 5*time.Second)
		}
		grants := make(chan grant)
		time.Sleep(ms)
		wait(t.Context(), i, 0, grants)
		synctest.Wait()
		require.NoError(t, holder.Release(t.Context()))
		start := time.Now()
		g := <-grants
		require.NoError(t, g.err)
		require.Equal(t, start, g.at, "at once, whatever is left of the holder's time")
		require.NoError(t, g.lease.Release(t.Context()))
	})
}

// Each costs half a second, up to eight: the living one behind them is told when to look too.
func TestStoppedProcessesBehindEachOtherCostHalfASecondEach(t *testing.T) {
	for _, stopped := range []int{2, 8} {
		t.Run(fmt.Sprint(stopped), func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				cfg := lease.Config{TTL: time.Hour}
				holder := try(t, w.issuer(t, cfg), "a")
				for n := range stopped {
					process := fmt.Sprint("stopped", n)
					w.listen(t, "a", process)
					w.enqueue(t, "a", process, time.Now(), 5*time.Second)
				}
				time.Sleep(ms)
				grants := make(chan grant)
				wait(t.Context(), w.issuer(t, cfg), 0, grants)
				synctest.Wait()
				released := time.Now()
				require.NoError(t, holder.Release(t.Context()))
				g := <-grants
				require.NoError(t, g.err)
				require.LessOrEqual(t, g.at.Sub(released), time.Duration(stopped)*600*ms)
				require.NoError(t, g.lease.Release(t.Context()))
			})
		})
	}
}

// Between its first request and the moment at which it listens, a waiter keeps its turn.
func TestAWaiterThatIsAboutToListenIsNotPassedOver(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		cfg := lease.Config{TTL: time.Minute}
		holder := try(t, w.issuer(t, cfg), "a")
		deaf := uuid.NewString()
		w.enqueue(t, "a", deaf, time.Now(), 5*time.Second)
		require.NoError(t, w.client.HSet(t.Context(), w.key("a", "alive"), deaf,
			fmt.Sprintf("%d:%d:0:0@%s", time.Now().Add(5*time.Second).UnixMilli(), time.Now().UnixMilli(), deaf)).Err())
		time.Sleep(ms)
		grants := make(chan grant)
		wait(t.Context(), w.issuer(t, cfg), 0, grants)
		synctest.Wait()
		released := time.Now()
		require.NoError(t, holder.Release(t.Context()))
		synctest.Wait()
		require.Empty(t, w.snapshot(t, "a").owner, "free for the first, which has died")
		g := <-grants
		require.NoError(t, g.err)
		require.WithinRange(t, g.at, released.Add(249*ms), released.Add(270*ms))
		require.NoError(t, g.lease.Release(t.Context()))
	})
}

// The time of its request is noted in whole milliseconds, rounded up, so it lies ahead of the clock
// for a moment.
func TestAWaiterIsNotPassedOverInTheMillisecondOfItsRequest(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		cfg := lease.Config{TTL: time.Minute}
		holder := try(t, w.issuer(t, cfg), "a")
		time.Sleep(ms / 4)
		deaf := uuid.NewString()
		now := time.Now()
		w.enqueue(t, "a", deaf, now, 5*time.Second)
		require.NoError(t, w.client.HSet(t.Context(), w.key("a", "alive"), deaf,
			fmt.Sprintf("%d:%d:0:0@%s", now.Add(5*time.Second).UnixMilli(), now.Add(ms).UnixMilli(), deaf)).Err())
		require.NoError(t, holder.Release(t.Context()))
		_, err := w.issuer(t, cfg).Acquire(t.Context(), "a", lease.NoWait())
		require.ErrorIs(t, err, lease.ErrHeld, "it has right of way")
	})
}

// Who is told to ask later would be dead by then if it had asked long ago, and a later one be
// served first.
func TestAWaiterIsToldToLookWhileItCountsAsAlive(t *testing.T) {
	t.Parallel()
	const alive = 900 * ms // less than the second of grace
	w := worldOn(t, testenv.Redis(t))
	look := func(resource string) (after int, told bool) {
		holder := try(t, w.issuer(t, lease.Config{TTL: time.Minute}), resource)
		news := w.client.Subscribe(t.Context(), w.key(resource, "wake")+":first", w.key(resource, "wake")+":behind")
		defer news.Close()
		for range 2 {
			_, err := news.Receive(t.Context()) // that it is confirmed
			require.NoError(t, err)
		}
		now := time.Now()
		w.enqueue(t, resource, "first", now, 5*time.Second)
		w.enqueue(t, resource, "behind", now.Add(ms), alive)
		require.NoError(t, holder.Release(t.Context()))
		for {
			message, err := news.ReceiveTimeout(t.Context(), 2*time.Second)
			if err != nil {
				return 0, false // it was dead before it could be told
			}
			if m, ok := message.(*redis.Message); ok && strings.HasPrefix(m.Payload, "look behind ") {
				after, err := strconv.Atoi(strings.TrimPrefix(m.Payload, "look behind "))
				require.NoError(t, err)
				return after, true
			}
		}
	}
	for n := 0; ; n++ {
		if after, told := look(fmt.Sprint("a", n)); told {
			require.Less(t, after, int(alive/ms))
			return
		}
		require.Less(t, n, 10, "it is never told")
	}
}

// The work of one script is bounded; who waits behind thousands of dead ones gets there in a few
// seconds all the same.
func TestThousandsOfDeadWaiters(t *testing.T) {
	t.Parallel()
	w := worldOn(t, testenv.OwnRedis(t).Client())
	cfg := lease.Config{TTL: time.Minute}
	holder := try(t, w.issuer(t, cfg), "a")
	pipe := w.client.Pipeline()
	now := time.Now()
	for n := range 5000 {
		call := fmt.Sprint("dead", n)
		pipe.ZAdd(t.Context(), w.key("a", "queue"), redis.Z{Score: float64(now.UnixMicro()), Member: call})
		pipe.HSet(t.Context(), w.key("a", "alive"), call,
			fmt.Sprintf("%d:%d:0:0@dead", now.Add(5900*ms).UnixMilli(), now.Add(-time.Second).UnixMilli()))
	}
	_, err := pipe.Exec(t.Context())
	require.NoError(t, err)
	grants := make(chan grant)
	wait(t.Context(), w.issuer(t, cfg), 0, grants)
	require.Eventually(t, func() bool { return w.client.HLen(t.Context(), w.key("a", "alive")).Val() == 5001 }, patience, ms)
	require.NoError(t, w.client.ConfigResetStat(t.Context()).Err())
	require.NoError(t, holder.Release(t.Context()))
	stats := w.client.Info(t.Context(), "commandstats").Val()
	require.LessOrEqual(t, calls(t, stats, "publish"), 510*(calls(t, stats, "eval")+calls(t, stats, "evalsha")))
	g := <-grants
	require.NoError(t, g.err)
	require.Less(t, time.Since(now), 30*time.Second)
	require.NoError(t, g.lease.Release(t.Context()))
}

// The script that finds as many dead as it may look at has not seen who waits behind them.
func TestANewcomerDoesNotPassWhoWaitsBehindTheDead(t *testing.T) {
	for kind, c := range map[string]struct {
		key func(w *world, resource, name string) string
		try func(t *testing.T, w *world) (*lease.Lease, error)
	}{
		"lease": {(*world).key, func(t *testing.T, w *world) (*lease.Lease, error) {
			return w.issuer(t, lease.Config{TTL: time.Minute}).Acquire(t.Context(), "a", lease.NoWait())
		}},
		"permit": {(*world).permitKey, func(t *testing.T, w *world) (*lease.Lease, error) {
			return w.semaphore(t, 1, lease.Config{TTL: time.Minute}).Acquire(t.Context(), "a", lease.NoWait())
		}},
	} {
		for _, dead := range []int{499, 500, 1000} {
			t.Run(fmt.Sprintf("%s behind %d", kind, dead), func(t *testing.T) {
				t.Parallel()
				w := worldOn(t, testenv.Redis(t))
				pipe := w.client.Pipeline()
				enqueue := func(n int, listener string, arrived time.Time) {
					call := fmt.Sprint("call", n)
					pipe.ZAdd(t.Context(), c.key(w, "a", "queue"), redis.Z{Score: float64(arrived.UnixMicro() + int64(n)), Member: call})
					pipe.HSet(t.Context(), c.key(w, "a", "alive"), call,
						fmt.Sprintf("%d:%d:0:0@%s", arrived.Add(5*time.Second).UnixMilli(), arrived.UnixMilli(), listener))
				}
				for n := range dead {
					enqueue(n, "dead", time.Now().Add(-time.Minute))
				}
				living := w.client.Subscribe(t.Context(), c.key(w, "a", "wake")+":living")
				defer living.Close()
				_, err := living.Receive(t.Context())
				require.NoError(t, err)
				enqueue(dead, "living", time.Now())
				_, err = pipe.Exec(t.Context())
				require.NoError(t, err)

				for range 3 { // one script looks at 500
					_, err = c.try(t, w)
					require.ErrorIs(t, err, lease.ErrHeld)
				}
			})
		}
	}
}

func TestTheDeadAreForgotten(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: 9 * time.Second})
		now := time.Now()
		for n := range 10 {
			w.enqueue(t, "a", fmt.Sprint("dead", n), now.Add(-time.Hour), time.Minute)
		}
		w.enqueue(t, "a", "immortal", now, time.Hour) // redis's clock was an hour ahead when it came
		require.NoError(t, w.client.ZAdd(t.Context(), w.key("a", "queue"), redis.Z{Score: 1, Member: "half"}).Err())
		l := try(t, i, "a")
		require.Zero(t, w.snapshot(t, "a").waiters)
		require.NoError(t, l.Release(t.Context()))
	})
}

func TestAnAbandonedQueueExpires(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: time.Minute})
		holder := try(t, i, "a")
		ctx, cancel := context.WithCancel(t.Context())
		grants := make(chan grant, 1)
		wait(ctx, i, 0, grants)
		synctest.Wait()
		w.faults.Always(faulty.LoseRequest) // the process dies
		cancel()
		<-grants
		require.EqualValues(t, 1, w.snapshot(t, "a").waiters)
		time.Sleep(6 * time.Second)
		require.Zero(t, w.snapshot(t, "a").waiters)
		w.faults.Always(faulty.None)
		require.NoError(t, holder.Release(t.Context()))
	})
}
