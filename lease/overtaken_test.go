package lease_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
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

func only(resource string, w *world) func(redis.Cmder) bool {
	about := w.names(resource)
	return func(cmd redis.Cmder) bool { return cmd.Args()[2] == 4 && about(cmd) } // four keys: an acquisition of one
}

// The client asks again, has the lease, gives it back; then the first request arrives. It would
// hold for a TTL.
func TestARequestThatArrivesAfterTheReleaseDoesNothing(t *testing.T) {
	for name, opts := range map[string][]lease.Option{"random id": nil, "own id": {lease.LeaseID(uuid.New())}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				i := w.issuer(t, lease.Config{TTL: time.Minute})
				require.NoError(t, try(t, i, "warm").Release(t.Context())) // from now on the scripts are known
				late := w.late(1500 * ms)

				late.next(w.names("a"))
				l := try(t, i, "a", opts...)
				require.NoError(t, l.Release(t.Context()))
				time.Sleep(2 * time.Second)
				require.Empty(t, w.snapshot(t, "a").owner, "tried")

				late.next(w.names("a"))
				l, err := i.Acquire(t.Context(), "a", opts...)
				require.NoError(t, err)
				require.NoError(t, l.Release(t.Context()))
				time.Sleep(2 * time.Second)
				require.Empty(t, w.snapshot(t, "a").owner, "waited for")

				// One of several, which the others were not to be had with.
				b := try(t, i, "b")
				late.next(only("a", w))
				_, err = i.AcquireAll(t.Context(), []string{"a", "b"}, append(opts, lease.WaitAtMost(time.Second))...)
				require.ErrorIs(t, err, lease.ErrHeld)
				time.Sleep(2 * time.Second)
				require.Empty(t, w.snapshot(t, "a").owner, "a step of several")
				require.NoError(t, b.Release(t.Context()))

				// What is remembered of the calls stands in nobody's way, and is forgotten.
				require.NoError(t, try(t, i, "a").Release(t.Context()))
				time.Sleep(time.Minute)
				require.Zero(t, w.client.Exists(t.Context(), w.key("a", "queue")).Val())
			})
		})
	}
}

// The first request arrives when the lease is over that the second one got, and before its release.
// It would hold for a TTL.
func TestAReleaseEndsWhatALateRequestOfItsOwnCallGot(t *testing.T) {
	for kind, c := range map[string]struct {
		key     func(w *world, resource, name string) string
		acquire func(t *testing.T, w *world) (l *lease.Lease, revoke func() error)
	}{
		"lease": {(*world).key, func(t *testing.T, w *world) (*lease.Lease, func() error) {
			i := w.issuer(t, lease.Config{TTL: 20 * time.Second, RenewEvery: lease.Never})
			return try(t, i, "a"), func() error { _, err := i.Revoke(t.Context(), "a"); return err }
		}},
		"permit": {(*world).permitKey, func(t *testing.T, w *world) (*lease.Lease, func() error) {
			s := w.semaphore(t, 1, lease.Config{TTL: 20 * time.Second, RenewEvery: lease.Never})
			l := tryPermit(t, s, "a")
			return l, func() error { _, err := s.Revoke(t.Context(), "a", l.LeaseID()); return err }
		}},
	} {
		for _, revoked := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, revoked %v", kind, revoked), func(t *testing.T) {
				inBubble(t, func(t *testing.T, w *world) {
					warm, _ := c.acquire(t, w)
					require.NoError(t, warm.Release(t.Context())) // from now on the scripts are known
					late := w.late(21 * time.Second)
					owner := c.key(w, "a", "owner")
					late.next(func(cmd redis.Cmder) bool { return slices.Contains(cmd.Args(), any(owner)) })
					l, revoke := c.acquire(t, w)
					if revoked {
						require.NoError(t, revoke())
					}
					time.Sleep(22 * time.Second)
					require.NotZero(t, w.client.Exists(t.Context(), owner).Val(), "it has come")
					require.Error(t, l.Release(t.Context()))
					require.Zero(t, w.client.Exists(t.Context(), owner).Val())
				})
			})
		}
	}
}

// The first request arrives when another holds, and would wait for what nobody wants.
func TestAReleaseEndsTheWaitingOfALateRequestOfItsOwnCall(t *testing.T) {
	type acquire = func(context.Context, string, ...lease.Option) (*lease.Lease, error)
	for kind, of := range map[string]func(t *testing.T, w *world) (acquire, string){
		"lease": func(t *testing.T, w *world) (acquire, string) {
			return w.issuer(t, lease.Config{TTL: 20 * time.Second, RenewEvery: lease.Never}).Acquire, w.key("a", "alive")
		},
		"permit": func(t *testing.T, w *world) (acquire, string) {
			s := w.semaphore(t, 1, lease.Config{TTL: 20 * time.Second, RenewEvery: lease.Never})
			return s.Acquire, w.permitKey("a", "alive")
		},
	} {
		t.Run(kind, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				acquire, alive := of(t, w)
				warm, err := acquire(t.Context(), "a")
				require.NoError(t, err)
				require.NoError(t, warm.Release(t.Context())) // from now on the scripts are known
				late := w.late(21 * time.Second)
				late.next(func(cmd redis.Cmder) bool { return slices.Contains(cmd.Args(), any(alive)) })
				l, err := acquire(t.Context(), "a")
				require.NoError(t, err)
				time.Sleep(20500 * ms)
				other, err := acquire(t.Context(), "a")
				require.NoError(t, err)
				time.Sleep(time.Second)
				require.NotZero(t, w.client.Exists(t.Context(), alive).Val(), "it has come")
				require.ErrorIs(t, l.Release(t.Context()), lease.ErrExpired)
				require.Zero(t, w.client.Exists(t.Context(), alive).Val())
				require.NoError(t, other.Release(t.Context()))
			})
		})
	}
}

// The holder is the first of the calls that are listed with a lease id.
func TestCallsOfTheSameIDThatGiveUpSpareTheHolder(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		id := uuid.New()
		l := try(t, w.issuer(t, lease.Config{TTL: time.Minute}), "a", lease.LeaseID(id))
		w.faults.Set(func(cmd redis.Cmder) faulty.Fault {
			if cmd.Args()[2] == 4 && len(cmd.Args()) == 3+4+8 { // an acquisition
				return faulty.LoseReply
			}
			return faulty.None
		})
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				_, err := w.issuer(t, lease.Config{TTL: time.Minute}).TryAcquire(t.Context(), "a", lease.LeaseID(id))
				assert.ErrorIs(t, err, lease.ErrUnreachable)
			})
		}
		all.Wait()
		time.Sleep(time.Second)
		requireCurrent(t, l)
	})
}

// The client asks again and is refused; then the holder leaves, and the first request arrives.
// Nobody would hold for a TTL.
func TestARequestThatArrivesAfterTheRefusalDoesNothing(t *testing.T) {
	for name, ask := range map[string]func(context.Context, *lease.Issuer) error{
		"TryAcquire": func(ctx context.Context, i *lease.Issuer) error { _, err := i.TryAcquire(ctx, "a"); return err },
		"NoWait": func(ctx context.Context, i *lease.Issuer) error {
			_, err := i.Acquire(ctx, "a", lease.NoWait())
			return err
		},
		"TryAcquireAll": func(ctx context.Context, i *lease.Issuer) error {
			_, err := i.TryAcquireAll(ctx, []string{"a", "b"})
			return err
		},
		"AcquireAll": func(ctx context.Context, i *lease.Issuer) error {
			_, err := i.AcquireAll(ctx, []string{"a", "b"}, lease.WaitAtMost(100*ms))
			return err
		},
		"Barge": func(ctx context.Context, i *lease.Issuer) error {
			_, err := i.TryAcquire(ctx, "a", lease.Barge())
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				i := w.issuer(t, lease.Config{TTL: time.Minute})
				require.NoError(t, try(t, i, "warm").Release(t.Context())) // from now on the scripts are known
				late := w.late(1500 * ms)
				holder := try(t, i, "a")

				late.next(w.names("a"))
				require.ErrorIs(t, ask(t.Context(), i), lease.ErrHeld)
				require.NoError(t, holder.Release(t.Context()))
				time.Sleep(2 * time.Second)
				require.Empty(t, w.snapshot(t, "a").owner)
				require.NoError(t, try(t, i, "a").Release(t.Context()))
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

// Under ids of their own, some of them used again at once.
func TestSlowCancelsLeaveNoHolder(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: time.Minute})
		require.NoError(t, try(t, i, "warm").Release(t.Context()))
		overtaken := &slow{by: 100 * ms}
		w.client.AddHook(overtaken)
		var id uuid.UUID
		for n := range 100 {
			if n%3 > 0 {
				id = uuid.New()
			}
			overtaken.armed.Store(true)
			ctx, cancel := context.WithTimeout(t.Context(), 10*ms)
			l, err := i.TryAcquire(ctx, "a", lease.LeaseID(id))
			cancel()
			if err == nil { // a withdrawal of one before was slow instead
				require.NoError(t, l.Release(t.Context()))
			}
			time.Sleep(time.Duration(n) * ms)
		}
		time.Sleep(time.Second)
		require.Empty(t, w.snapshot(t, "a").owner)
		require.NoError(t, try(t, i, "a").Release(t.Context()))
	})
}

// It would block the resource for a TTL; a grant that is handed to it too.
func TestARequestThatIsOvertakenByItsWithdrawalLeavesNothingBehind(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		patient := w.issuer(t, lease.Config{TTL: time.Minute})
		require.NoError(t, try(t, patient, "a").Release(t.Context())) // from now on the scripts are known
		l := try(t, patient, "a")
		overtaken := &slow{by: time.Second}
		w.client.AddHook(overtaken)
		hasty := w.issuer(t, lease.Config{TTL: time.Minute})
		giveUp := func(acquire func(context.Context, string, ...lease.Option) (*lease.Lease, error), opts ...lease.Option) {
			t.Helper()
			overtaken.armed.Store(true)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := acquire(ctx, "a", opts...)
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}

		giveUp(hasty.Acquire)
		time.Sleep(2 * time.Second)
		require.Zero(t, w.snapshot(t, "a").waiters, "it came to the queue when it had left it")
		require.NoError(t, l.Release(t.Context()))

		giveUp(hasty.TryAcquire)
		time.Sleep(2 * time.Second)
		require.Zero(t, w.client.Exists(t.Context(), w.key("a", "owner")).Val(), "it was granted when it was over")

		// Who has chosen the id may ask again with it, and then that is theirs.
		id := uuid.New()
		giveUp(hasty.TryAcquire, lease.LeaseID(id))
		again := try(t, hasty, "a", lease.LeaseID(id))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		requireCurrent(t, again)

		// So is a lease that the second request has got.
		overtaken.armed.Store(true)
		second := try(t, w.issuer(t, lease.Config{TTL: 3 * time.Second}), "b")
		time.Sleep(2 * time.Second)
		require.False(t, overtaken.armed.Load())
		requireCurrent(t, second)
	})
}
