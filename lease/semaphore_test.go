package lease_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/lease"
)

func TestSemaphoreBadInput(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	good := lease.Config{TTL: time.Second}
	for name, cfg := range map[string]lease.SemaphoreConfig{
		"no limit":       {Lease: good},
		"negative limit": {Limit: -1, Lease: good},
		"limit too high": {Limit: lease.MaxLimit + 1, Lease: good},
		"no TTL":         {Limit: 1},
		"TTL below 1ms":  {Limit: 1, Lease: lease.Config{TTL: ms - 1}},
		"sealed":         {Limit: 1, Lease: lease.Config{TTL: time.Second, Seal: func(context.Context, ...lease.Grant) error { return nil }}},
	} {
		_, err := lease.NewSemaphore(w.client, cfg)
		require.ErrorIs(t, err, lease.ErrInvalid, name)
	}
	_, err := lease.NewSemaphore(nil, lease.SemaphoreConfig{Limit: 1, Lease: good})
	require.ErrorIs(t, err, lease.ErrInvalid)

	s := w.semaphore(t, 1, lease.Config{})
	for name, resource := range map[string]string{
		"empty": "", "too long": strings.Repeat("x", 513), "no text": "\xff", "NUL": "a\x00b",
	} {
		_, err := s.Acquire(t.Context(), resource, lease.NoWait())
		require.ErrorIs(t, err, lease.ErrInvalid, name)
		_, err = s.Inspect(t.Context(), resource)
		require.ErrorIs(t, err, lease.ErrInvalid, name)
	}
}

func TestARefusalOfASemaphoreDoesNotReadLikeThatOfALease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.semaphore(t, 2, lease.Config{Holder: "ann"})
	for range 2 {
		_, err := s.Acquire(t.Context(), "a", lease.NoWait())
		require.NoError(t, err)
	}
	_, err := s.Acquire(t.Context(), "a", lease.NoWait())
	require.ErrorContains(t, err, `lease: "a" is held by as many as its semaphore allows, one of them "ann", retry after`)
	_, err = s.Acquire(t.Context(), "a", lease.WaitAtMost(time.Second))
	require.ErrorContains(t, err, `still held by as many as its semaphore allows, one of them "ann": `)
}

func TestSemaphoreForeignValuesAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.semaphore(t, 1, lease.Config{RenewEvery: lease.Never})
	for name, value := range map[string]func(ctx context.Context, key string) error{
		"owner": func(ctx context.Context, key string) error { return w.client.Set(ctx, key, "x", 0).Err() },
		"fence": func(ctx context.Context, key string) error { return w.client.Set(ctx, key, "x", 0).Err() },
		"queue": func(ctx context.Context, key string) error { return w.client.Set(ctx, key, "x", 0).Err() },
		"alive": func(ctx context.Context, key string) error { return w.client.Set(ctx, key, "x", 0).Err() },
		"ended": func(ctx context.Context, key string) error { return w.client.RPush(ctx, key, "x").Err() },
	} {
		l := tryPermit(t, s, name)
		key := w.permitKey(name, name)
		require.NoError(t, w.client.Del(t.Context(), key).Err())
		require.NoError(t, value(t.Context(), key))
		_, err := s.Acquire(t.Context(), name, lease.NoWait())
		switch name {
		case "ended", "alive": // not looked at: the holder was not revoked, and nobody waits
			require.ErrorIs(t, err, lease.ErrHeld, name)
		default:
			require.ErrorIs(t, err, lease.ErrCorrupt, name)
		}
		if name == "owner" || name == "queue" || name == "ended" || name == "alive" {
			_, err = s.Revoke(t.Context(), name, l.LeaseID())
			require.ErrorIs(t, err, lease.ErrCorrupt, name)
		}
		if name == "owner" || name == "alive" {
			_, err = s.Inspect(t.Context(), name)
			require.ErrorIs(t, err, lease.ErrCorrupt, name)
		}
		if name == "owner" {
			_, err = l.Verify(t.Context())
			require.ErrorIs(t, err, lease.ErrCorrupt)
			require.ErrorIs(t, l.Extend(t.Context()), lease.ErrCorrupt)
			require.ErrorIs(t, l.Release(t.Context()), lease.ErrCorrupt)
		} else {
			require.NoError(t, l.Extend(t.Context()), name)
			require.NoError(t, l.Release(t.Context()), "%s does not keep a holder from leaving", name)
		}
		require.NoError(t, w.client.Del(t.Context(), key).Err())
	}
	for _, holder := range []string{"x", "x:1:ca11", uuid.NewString() + ":0:ca11", uuid.NewString() + ":12345678901234567:ca11", uuid.NewString() + ":1"} {
		tomorrow := time.Now().Add(24 * time.Hour).UnixMicro()
		require.NoError(t, w.client.Del(t.Context(), w.permitKey("b", "owner")).Err())
		require.NoError(t, w.client.ZAdd(t.Context(), w.permitKey("b", "owner"), redis.Z{Score: float64(tomorrow), Member: holder}).Err())
		_, err := s.Inspect(t.Context(), "b")
		require.ErrorIs(t, err, lease.ErrCorrupt, holder)
	}
}

func TestSemaphoreTokensThatAreUsedUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	require.NoError(t, w.client.Set(t.Context(), w.permitKey("a", "fence"), int64(1<<53-1), 0).Err())
	_, err := w.semaphore(t, 1, lease.Config{}).Acquire(t.Context(), "a", lease.NoWait())
	require.ErrorIs(t, err, lease.ErrExhausted)
	require.Zero(t, w.client.Exists(t.Context(), w.permitKey("a", "owner")).Val())
}

func TestSemaphoreARefusalChangesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.semaphore(t, 2, lease.Config{RenewEvery: lease.Never})
	tryPermit(t, s, "a")
	tryPermit(t, s, "a")
	state := func() []any {
		return []any{
			w.client.ZRangeWithScores(t.Context(), w.permitKey("a", "owner"), 0, -1).Val(),
			w.client.Get(t.Context(), w.permitKey("a", "fence")).Val(),
			w.client.Exists(t.Context(), w.permitKey("a", "queue")).Val(),
		}
	}
	before := state()
	for range 10 {
		requireFull(t, s, "a")
	}
	require.Equal(t, before, state())
}

func TestSemaphoreNothingIsLeftInTheEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		short := w.semaphore(t, 2, lease.Config{TTL: time.Second, RenewEvery: lease.Never, FenceRetention: time.Minute})
		long := w.semaphore(t, 2, lease.Config{TTL: 10 * time.Second, RenewEvery: lease.Never, FenceRetention: time.Minute})
		l := tryPermit(t, long, "a")
		tryPermit(t, short, "a") // does not cut the other's time
		require.Equal(t, 10*time.Second, w.client.PTTL(t.Context(), w.permitKey("a", "owner")).Val())
		time.Sleep(9 * time.Second)
		requireStanding(t, l, lease.Current)
		time.Sleep(time.Minute)
		require.Empty(t, w.client.Keys(t.Context(), "*").Val())
	})
}

func TestSemaphoreTheLastTokenOutlivesALongHold(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		s := w.semaphore(t, 1, lease.Config{TTL: 9 * time.Second, FenceRetention: time.Minute})
		l := tryPermit(t, s, "a")
		time.Sleep(5 * time.Minute)
		require.NoError(t, l.Err())
		require.Greater(t, w.client.PTTL(t.Context(), w.permitKey("a", "fence")).Val(), 50*time.Second)
		require.NoError(t, l.Release(t.Context()))
	})
}

func TestSemaphoreTheTimeToWait(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		s := w.semaphore(t, 3, lease.Config{TTL: 4 * time.Second, RenewEvery: lease.Never})
		for range 3 {
			tryPermit(t, s, "a")
			time.Sleep(time.Second)
		}
		require.Equal(t, time.Second, requireFull(t, s, "a").RetryAfter, "the first leaves")
		lower := w.semaphore(t, 2, lease.Config{})
		require.Equal(t, 2*time.Second, requireFull(t, lower, "a").RetryAfter, "the second, too")
		time.Sleep(time.Second)
		tryPermit(t, s, "a")
		requireFull(t, s, "a")
	})
}

func TestSemaphoreAPlaceThatRanOutIsNotExtended(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		s := w.semaphore(t, 2, lease.Config{TTL: 4 * time.Second, Margin: ms, RenewEvery: lease.Never})
		l := tryPermit(t, s, "a")
		tryPermit(t, w.semaphore(t, 2, lease.Config{TTL: time.Hour}), "a") // keeps the key alive
		time.Sleep(time.Second)
		// Redis's clock is ahead of the holder's trust; nobody has dropped the holder yet.
		prefix := fmt.Sprintf("%s:%d:", l.LeaseID(), l.Token())
		members := w.client.ZRange(t.Context(), w.permitKey("a", "owner"), 0, -1).Val()
		mine := slices.IndexFunc(members, func(m string) bool { return strings.HasPrefix(m, prefix) })
		first := redis.Z{Score: 1, Member: members[mine]}
		require.Zero(t, w.client.ZAdd(t.Context(), w.permitKey("a", "owner"), first).Val(), "it was there")
		require.ErrorIs(t, l.Extend(t.Context()), lease.ErrLost)
		requireStanding(t, l, lease.LeaseLost)
		require.ErrorIs(t, l.Release(t.Context()), lease.ErrLost)
		found, err := s.Inspect(t.Context(), "a")
		require.NoError(t, err)
		require.Len(t, found.Permits, 1)
	})
}

func TestSemaphoreAskingAgainStartsTheTTLAnew(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		s := w.semaphore(t, 1, lease.Config{TTL: 9 * time.Second, RenewEvery: lease.Never, Holder: "me"})
		w.faults.Next("semaphore_acquire", "a", 1, faulty.LoseReply)
		start := time.Now()
		id := tryPermit(t, s, "a").LeaseID()
		require.NotEqual(t, start, time.Now(), "it was asked twice")
		found, err := s.Inspect(t.Context(), "a")
		require.NoError(t, err)
		require.Equal(t, []lease.Permit{{LeaseID: id, Token: found.Permits[0].Token, ExpiresIn: 9 * time.Second, Label: "me"}}, found.Permits)
	})
}

// A free place is held for those who wait.
func TestSemaphoreRightOfWay(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		s := w.semaphore(t, 1, lease.Config{})
		l := tryPermit(t, s, "a")
		next := waitingForPermit(t, s, "a")
		synctest.Wait()
		w.faults.Always(faulty.None)
		require.NoError(t, w.client.Del(t.Context(), w.permitKey("a", "owner")).Err()) // free, and nobody is woken
		requireFull(t, w.semaphore(t, 1, lease.Config{}), "a")
		synctest.Wait() // the refusal has woken the waiter
		second := <-next
		require.NotNil(t, second)
		require.ErrorIs(t, l.Release(t.Context()), lease.ErrLost)
		require.NoError(t, second.Release(t.Context()))
	})
}

// Where several permits come free at once, a waiter that is served calls the next.
func TestSemaphoreWhoIsServedCallsTheNext(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		s := w.semaphore(t, 2, lease.Config{TTL: time.Hour})
		tryPermit(t, s, "a")
		tryPermit(t, s, "a")
		first := waitingForPermit(t, w.semaphore(t, 2, lease.Config{}), "a")
		synctest.Wait()
		second := waitingForPermit(t, w.semaphore(t, 2, lease.Config{}), "a")
		synctest.Wait()
		require.NoError(t, w.client.Del(t.Context(), w.permitKey("a", "owner")).Err()) // free, and nobody is woken
		start := time.Now()
		requireFull(t, w.semaphore(t, 2, lease.Config{}), "a") // wakes the first
		for _, next := range []<-chan *lease.Lease{first, second} {
			require.NoError(t, (<-next).Release(t.Context()))
		}
		require.Less(t, time.Since(start), 100*ms, "woken, not by asking again")
	})
}

func TestSemaphoreWhoLeavesWakesTheNext(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		s := w.semaphore(t, 1, lease.Config{})
		l := tryPermit(t, s, "a")
		ctx, cancel := context.WithCancel(t.Context())
		impatient := make(chan error, 1)
		go func() {
			_, err := w.semaphore(t, 1, lease.Config{}).Acquire(ctx, "a")
			impatient <- err
		}()
		synctest.Wait()
		next := waitingForPermit(t, w.semaphore(t, 1, lease.Config{}), "a")
		time.Sleep(time.Second)                                                        // both listen
		require.NoError(t, w.client.Del(t.Context(), w.permitKey("a", "owner")).Err()) // free, and nobody is woken

		start := time.Now()
		cancel()
		require.ErrorIs(t, <-impatient, lease.ErrHeld)
		second := <-next
		require.Less(t, time.Since(start), 100*ms, "woken by the one that gave up")
		require.ErrorIs(t, l.Release(t.Context()), lease.ErrLost)

		next = waitingForPermit(t, s, "a")
		time.Sleep(time.Second)
		start = time.Now()
		require.NoError(t, second.Release(t.Context()))
		third := <-next
		require.Less(t, time.Since(start), 100*ms, "woken by the one that released")
		require.NoError(t, third.Release(t.Context()))
	})
}

func TestSemaphoreWithoutRedis(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		s := w.semaphore(t, 1, lease.Config{})
		w.faults.Always(faulty.LoseRequest)
		_, err := s.Acquire(t.Context(), "a", lease.NoWait())
		require.ErrorIs(t, err, lease.ErrUnreachable)
		_, err = s.Inspect(t.Context(), "a")
		require.ErrorIs(t, err, lease.ErrUnreachable)
		w.faults.Always(faulty.None)
	})
}

// The grant's reply is lost for good: its place is given back.
func TestSemaphoreAnAcquireThatIsNeverAnswered(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		s := w.semaphore(t, 1, lease.Config{})
		w.faults.Next("semaphore_acquire", "a", 3, faulty.LoseReply)
		_, err := s.Acquire(t.Context(), "a", lease.NoWait())
		require.ErrorIs(t, err, lease.ErrUnreachable)
		tryPermit(t, s, "a")
	})
}

// Whoever ends a hold calls the first waiter that listens; one that has died costs nobody anything,
// one that is stopped half a second.
func TestSemaphoreDeadWaitersStallNobody(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, s *lease.Semaphore, l *lease.Lease) error{
		"release": func(t *testing.T, _ *lease.Semaphore, l *lease.Lease) error { return l.Release(t.Context()) },
		"revoke": func(t *testing.T, s *lease.Semaphore, l *lease.Lease) error {
			_, err := s.Revoke(t.Context(), "a", l.LeaseID())
			return err
		},
	} {
		for kind, bound := range map[string]time.Duration{"dead": 0, "stopped": 560 * ms} {
			t.Run(name+" "+kind, func(t *testing.T) {
				inBubble(t, func(t *testing.T, w *world) {
					s := w.semaphore(t, 1, lease.Config{TTL: time.Hour})
					l := tryPermit(t, s, "a")
					for n := range 5 {
						w.enqueueForPermit(t, "a", fmt.Sprint("dead", n))
					}
					if kind == "stopped" {
						stopped := w.client.Subscribe(t.Context(), w.permitKey("a", "wake")+":stopped")
						_, err := stopped.Receive(t.Context())
						require.NoError(t, err)
						go func() {
							for err == nil {
								_, err = stopped.Receive(context.Background())
							}
						}()
						defer stopped.Close()
						w.enqueueForPermit(t, "a", "stopped")
					}
					time.Sleep(ms)
					next := waitingForPermit(t, w.semaphore(t, 1, lease.Config{TTL: time.Hour}), "a")
					synctest.Wait()
					start := time.Now()
					require.NoError(t, end(t, s, l))
					second := <-next
					require.LessOrEqual(t, time.Since(start), bound)
					requireStanding(t, second, lease.Current)
					require.NoError(t, second.Release(t.Context()))
				})
			})
		}
	}
}

// enqueueForPermit puts a call into the queue that nobody stands for, which asked a second ago. Its
// listener has the same name.
func (w *world) enqueueForPermit(t *testing.T, resource, call string) {
	t.Helper()
	now := time.Now()
	require.NoError(t, w.client.ZAdd(t.Context(), w.permitKey(resource, "queue"), redis.Z{Score: float64(now.UnixMicro()), Member: call}).Err())
	require.NoError(t, w.client.HSet(t.Context(), w.permitKey(resource, "alive"), call,
		fmt.Sprintf("%d:%d:0:0@%s", now.Add(5*time.Second).UnixMilli(), now.Add(-time.Second).UnixMilli(), call)).Err())
}
