package lease_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

// slow holds the next script call back until its context has ended, and for a while longer, as one
// that waits for a connection to be made. What is sent meanwhile, on connections that there are,
// overtakes it.
type slow struct {
	faulty.Redis
	by    time.Duration
	armed atomic.Bool
}

func (h *slow) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" && h.armed.CompareAndSwap(true, false) {
			<-ctx.Done()
			time.Sleep(h.by)
		}
		return next(context.WithoutCancel(ctx), cmd)
	}
}

// ghost breaks the connection of the next script call that is chosen, as the client sees it; the
// request reaches the server later, behind everything that was sent meanwhile.
type ghost struct {
	faulty.Redis
	by     time.Duration
	choose atomic.Pointer[func(redis.Cmder) bool] // nil: nothing
}

func (h *ghost) next(choose func(redis.Cmder) bool) { h.choose.Store(&choose) }

func (h *ghost) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		choose := h.choose.Load()
		if choose == nil || cmd.Name() != "evalsha" || !(*choose)(cmd) || !h.choose.CompareAndSwap(choose, nil) {
			return next(ctx, cmd)
		}
		go func() {
			time.Sleep(h.by)
			_ = next(context.WithoutCancel(ctx), redis.NewCmd(ctx, cmd.Args()...))
		}()
		cmd.SetErr(faulty.ErrBroken)
		return faulty.ErrBroken
	}
}

func (w *world) late(by time.Duration) *ghost {
	late := &ghost{by: by}
	w.client.AddHook(late)
	return late
}

// names chooses calls about that resource.
func (w *world) names(resource string) func(redis.Cmder) bool {
	return func(cmd redis.Cmder) bool { return slices.Contains(cmd.Args(), any(w.key(resource, "owner"))) }
}

// Its connection seems to break, and it arrives when its call is over: it blocks what is free for
// one TTL, and nobody takes that for theirs.
func TestALateRequestBlocksForOneTTLAtMostAndDeceivesNobody(t *testing.T) {
	const ttl = 20 * time.Second
	released := func(l *lease.Lease, err error) error {
		if err != nil {
			return err
		}
		return l.Release(context.Background())
	}
	for name, c := range map[string]struct {
		held bool // by another, until the call has returned
		call func(ctx context.Context, i *lease.Issuer) error
	}{
		"Acquire NoWait": {false, func(ctx context.Context, i *lease.Issuer) error { return released(i.Acquire(ctx, "a", lease.NoWait())) }},
		"Acquire":        {false, func(ctx context.Context, i *lease.Issuer) error { return released(i.Acquire(ctx, "a")) }},
		"refused":        {true, func(ctx context.Context, i *lease.Issuer) error { return released(i.Acquire(ctx, "a", lease.NoWait())) }},
		"refused, waits": {true, func(ctx context.Context, i *lease.Issuer) error {
			return released(i.Acquire(ctx, "a", lease.WaitAtMost(100*ms)))
		}},
		"AcquireAll": {true, func(ctx context.Context, i *lease.Issuer) error {
			_, err := i.AcquireAll(ctx, []string{"a", "b"}, lease.WaitAtMost(100*ms))
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				i, others := w.issuer(t, lease.Config{TTL: ttl}), w.issuer(t, lease.Config{TTL: ttl})
				require.NoError(t, try(t, i, "warm").Release(t.Context())) // from now on the scripts are known
				late := w.late(1500 * ms)
				var holder *lease.Lease
				if c.held {
					holder = try(t, others, "a")
				}
				late.next(w.names("a"))
				arrives := time.Now().Add(late.by)
				err := c.call(t.Context(), i)
				if c.held {
					require.ErrorIs(t, err, lease.ErrHeld)
					require.NoError(t, holder.Release(t.Context()))
				} else {
					require.NoError(t, err)
				}
				require.NoError(t, i.Close(t.Context()), "which has nothing to give back")
				time.Sleep(2 * time.Second)
				require.NotEmpty(t, w.snapshot(t, "a").owner, "it has come")

				l, err := others.Acquire(t.Context(), "a")
				require.NoError(t, err)
				require.WithinRange(t, time.Now(), arrives.Add(ttl), arrives.Add(ttl+300*ms))
				require.NoError(t, l.Release(t.Context()))
			})
		})
	}
}

// A renewal that hangs holds up neither the release nor the next holder, and does nothing when it
// arrives.
func TestAReleaseDoesNotWaitForARenewal(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: 9 * time.Second, RenewEvery: 3 * time.Second, RenewTimeout: 5 * time.Second})
		require.NoError(t, try(t, i, "warm").Release(t.Context())) // from now on the scripts are known
		hung := &slow{by: 100 * ms}
		w.client.AddHook(hung)
		hang := func() (l *lease.Lease) {
			l = try(t, i, "a")
			hung.armed.Store(true)
			time.Sleep(3 * time.Second)
			synctest.Wait()
			require.False(t, hung.armed.Load(), "a renewal is under way")
			return l
		}
		start := time.Now().Add(3 * time.Second)

		require.NoError(t, hang().Release(t.Context()))
		require.Equal(t, start, time.Now())
		require.Empty(t, w.snapshot(t, "a").owner)
		next := try(t, w.issuer(t, lease.Config{TTL: 20 * time.Second, RenewEvery: lease.Never}), "a")
		time.Sleep(6 * time.Second)
		requireCurrent(t, next)
		require.Equal(t, 14*time.Second, w.client.PTTL(t.Context(), w.key("a", "owner")).Val())
		require.NoError(t, next.Release(t.Context()))

		l := hang()
		require.NoError(t, w.client.Del(t.Context(), w.key("a", "owner")).Err())
		require.ErrorIs(t, l.Release(t.Context()), lease.ErrLost, "it was sent once")
	})
}

// Each request is under way when its caller gives up, and is answered later.
func TestAThousandSlowCancelsLeaveNobody(t *testing.T) {
	type acquire = func(context.Context, string, ...lease.Option) (*lease.Lease, error)
	for name, of := range map[string]func(t *testing.T, w *world) (acquire, func() string){
		"Acquire NoWait": func(t *testing.T, w *world) (acquire, func() string) {
			return w.issuer(t, lease.Config{TTL: time.Hour}).With(lease.NoWait()).Acquire, func() string { return w.key("a", "owner") }
		},
		"Acquire": func(t *testing.T, w *world) (acquire, func() string) {
			return w.issuer(t, lease.Config{TTL: time.Hour}).Acquire, func() string { return w.key("a", "owner") }
		},
		"permit": func(t *testing.T, w *world) (acquire, func() string) {
			return w.semaphore(t, 1, lease.Config{TTL: time.Hour}).Acquire, func() string { return w.permitKey("a", "owner") }
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				acquire, owner := of(t, w)
				warm, err := acquire(t.Context(), "a")
				require.NoError(t, err)
				require.NoError(t, warm.Release(t.Context())) // from now on the scripts are known
				overtaken := &slow{by: 100 * ms}
				w.client.AddHook(overtaken)
				calls := 334 // in each of three ways
				if testenv.Small() {
					calls = 34
				}
				for range calls {
					overtaken.armed.Store(true)
					ctx, cancel := context.WithTimeout(t.Context(), 10*ms)
					_, err := acquire(ctx, "a")
					cancel()
					require.ErrorIs(t, err, context.DeadlineExceeded)
					time.Sleep(150 * ms)
					synctest.Wait()
					require.False(t, overtaken.armed.Load(), "it was under way")
					require.Zero(t, w.client.Exists(t.Context(), owner()).Val())
				}
				l, err := acquire(t.Context(), "a")
				require.NoError(t, err)
				require.NoError(t, l.Release(t.Context()))
			})
		})
	}
}

// It would block the resource for a TTL.
func TestARequestThatIsOvertakenByItsWithdrawalLeavesNothingBehind(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		patient := w.issuer(t, lease.Config{TTL: time.Minute})
		require.NoError(t, try(t, patient, "a").Release(t.Context())) // from now on the scripts are known
		l := try(t, patient, "a")
		overtaken := &slow{by: time.Second}
		w.client.AddHook(overtaken)
		hasty := w.issuer(t, lease.Config{TTL: time.Minute})
		giveUp := func(acquire func(context.Context, string, ...lease.Option) (*lease.Lease, error)) {
			t.Helper()
			overtaken.armed.Store(true)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := acquire(ctx, "a")
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}

		giveUp(hasty.Acquire)
		time.Sleep(2 * time.Second)
		require.Zero(t, w.snapshot(t, "a").waiters, "it came to the queue when it had left it")
		require.NoError(t, l.Release(t.Context()))

		giveUp(hasty.With(lease.NoWait()).Acquire)
		time.Sleep(2 * time.Second)
		require.Zero(t, w.client.Exists(t.Context(), w.key("a", "owner")).Val(), "it was granted when it was over")

		// A lease that the second request has got is its caller's.
		overtaken.armed.Store(true)
		second := try(t, w.issuer(t, lease.Config{TTL: 3 * time.Second}), "b")
		time.Sleep(2 * time.Second)
		require.False(t, overtaken.armed.Load())
		requireCurrent(t, second)
	})
}
