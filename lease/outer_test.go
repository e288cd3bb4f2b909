package lease_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/lease"
)

// around is the lock of an older program: here the leases of another issuer, without renewal.
func around(old *lease.Issuer) func(context.Context, string, time.Duration) (lease.OuterLock, error) {
	return func(ctx context.Context, resource string, _ time.Duration) (lease.OuterLock, error) {
		l, err := old.TryAcquire(ctx, resource)
		return lease.OuterLock{Renew: l.Extend, Release: l.Release}, err
	}
}

// bothLocks are an issuer under a lock of another, and that one. Both last for ten seconds.
func bothLocks(t *testing.T, w *world) (i, old *lease.Issuer) {
	t.Helper()
	old = w.issuer(t, lease.Config{TTL: 10 * time.Second, Namespace: "old", RenewEvery: lease.Never})
	return w.issuer(t, lease.Config{TTL: 10 * time.Second, Outer: around(old)}), old
}

func TestEveryWayToAcquireTakesTheLockAround(t *testing.T) {
	for name, acquire := range map[string]func(context.Context, *lease.Issuer, ...lease.Option) error{
		"TryAcquire": func(ctx context.Context, i *lease.Issuer, opts ...lease.Option) error {
			l, err := i.TryAcquire(ctx, "a", opts...)
			return release(ctx, l, err)
		},
		"Acquire": func(ctx context.Context, i *lease.Issuer, opts ...lease.Option) error {
			l, err := i.Acquire(ctx, "a", opts...)
			return release(ctx, l, err)
		},
		"TryAcquireAll": func(ctx context.Context, i *lease.Issuer, opts ...lease.Option) error {
			ls, err := i.TryAcquireAll(ctx, []string{"b", "a"}, opts...)
			return errors.Join(err, ls.Release(ctx))
		},
		"AcquireAll": func(ctx context.Context, i *lease.Issuer, opts ...lease.Option) error {
			ls, err := i.AcquireAll(ctx, []string{"b", "a"}, opts...)
			return errors.Join(err, ls.Release(ctx))
		},
		"Do": func(ctx context.Context, i *lease.Issuer, opts ...lease.Option) error {
			return i.Do(ctx, "a", func(context.Context, *lease.Lease) error { return nil }, opts...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				i, old := bothLocks(t, w)
				require.NoError(t, acquire(t.Context(), i))
				first := try(t, old, "a") // given back
				require.NoError(t, try(t, old, "b").Release(t.Context()))
				tokens := w.client.Keys(t.Context(), "lease:v1:{test/*").Val()

				began := time.Now()
				err := acquire(t.Context(), i, lease.NoWait())
				require.ErrorIs(t, err, lease.ErrHeld)
				require.True(t, lease.IsLost(err))
				require.Zero(t, time.Since(began), "NoWait tries once")
				if name == "Acquire" || name == "AcquireAll" || name == "Do" {
					err = acquire(t.Context(), i, lease.WaitAtMost(2*time.Second))
					require.ErrorIs(t, err, lease.ErrHeld)
					require.ErrorIs(t, err, context.DeadlineExceeded)
					require.Equal(t, 2*time.Second, time.Since(began))
					time.AfterFunc(time.Second, func() { _ = first.Release(t.Context()) })
					require.NoError(t, acquire(t.Context(), i, lease.WaitAtMost(2*time.Second)))
				}
				require.Equal(t, tokens, w.client.Keys(t.Context(), "lease:v1:{test/*").Val(), "no lease was asked for under a lock that was taken")
			})
		})
	}
}

func release(ctx context.Context, l *lease.Lease, err error) error {
	if err != nil {
		return err
	}
	return l.Release(ctx)
}

// One bound for both: what waiting for the lock took is not there for the lease.
func TestTheLockAroundIsKeptWhileTheLeaseIsWaitedFor(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i, old := bothLocks(t, w)
		taken := try(t, old, "a")
		holder := try(t, w.issuer(t, lease.Config{TTL: 10 * time.Second}), "a") // an instance with one lock
		time.AfterFunc(5*time.Second, func() { _ = taken.Release(t.Context()) })
		began := time.Now()

		_, err := i.Acquire(t.Context(), "a", lease.WaitAtMost(30*time.Second))

		require.ErrorIs(t, err, lease.ErrHeld)
		require.Equal(t, 30*time.Second, time.Since(began))
		again := try(t, old, "a")
		require.NoError(t, again.Release(t.Context()), "it was given back")

		time.AfterFunc(25*time.Second, func() { _ = holder.Release(t.Context()) })
		l, err := i.Acquire(t.Context(), "a")
		require.NoError(t, err)
		_, err = old.TryAcquire(t.Context(), "a")
		require.ErrorIs(t, err, lease.ErrHeld, "it lasts for ten seconds and was kept for 25")
		time.Sleep(time.Minute)
		require.NoError(t, l.Err())
		_, err = old.TryAcquire(t.Context(), "a")
		require.ErrorIs(t, err, lease.ErrHeld)
		require.NoError(t, l.Release(t.Context()))
		try(t, old, "a")
	})
}

func TestALeaseEndsBeforeTheLockAroundIt(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		fails := 1 // one failure is tried again
		released := 0
		i := w.issuer(t, lease.Config{TTL: 10 * time.Second, Margin: time.Second, MaxHold: lease.Unlimited,
			Outer: func(_ context.Context, _ string, ttl time.Duration) (lease.OuterLock, error) {
				require.Equal(t, 10*time.Second, ttl)
				return lease.OuterLock{
					Renew: func(context.Context) error {
						if fails != 0 {
							fails--
							return errWork
						}
						return nil
					},
					Release: func(context.Context) error { released++; return errWork },
				}, nil
			}})
		l := try(t, i, "a")
		time.Sleep(time.Minute)
		require.NoError(t, l.Err())
		require.NoError(t, l.Release(t.Context()), "that of the other lock failed, and it expires")
		require.Equal(t, 1, released)

		fails = -1
		began := time.Now()
		l = try(t, i, "a")
		require.Equal(t, began.Add(9*time.Second), l.ValidUntil())
		time.Sleep(8 * time.Second)
		require.Equal(t, began.Add(9*time.Second), l.ValidUntil(), "renewals of the lease do not reach beyond the lock")
		requireEnd(t, l, began.Add(9*time.Second), lease.ErrExpired)
		require.ErrorIs(t, l.Err(), errWork)
		require.NoError(t, l.Release(t.Context()), "Redis still had it")
		require.Equal(t, 2, released)
		_ = l.Release(t.Context())
		require.Equal(t, 2, released, "once")
	})
}

func TestALeaseThatIsHealedKeepsTheLockAroundIt(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i, old := bothLocks(t, w)
		l := try(t, i, "a")
		fresh, err := i.Heal(t.Context(), l, l.Token()+1000)
		require.NoError(t, err)
		time.Sleep(time.Minute)
		require.NoError(t, fresh.Err())
		_, err = old.TryAcquire(t.Context(), "a")
		require.ErrorIs(t, err, lease.ErrHeld)
		_ = l.Release(t.Context())
		_, err = old.TryAcquire(t.Context(), "a")
		require.ErrorIs(t, err, lease.ErrHeld)
		require.NoError(t, fresh.Release(t.Context()))
		require.NoError(t, try(t, old, "a").Release(t.Context()))

		l = try(t, i, "a")
		require.NoError(t, w.client.Del(t.Context(), w.key("a", "owner")).Err())
		_, err = i.Heal(t.Context(), l, l.Token())
		require.ErrorIs(t, err, lease.ErrLost)
		time.Sleep(time.Second)
		try(t, old, "a")
	})
}

// A refusal that is over is not why the resource is still blocked.
func TestWhileTheLockAroundIsReleasedNoRefusalIsReported(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		slow := func(context.Context, string, time.Duration) (lease.OuterLock, error) {
			return lease.OuterLock{Renew: func(context.Context) error { return nil }, Release: func(context.Context) error {
				time.Sleep(2 * time.Second)
				return nil
			}}, nil
		}
		i := w.issuer(t, lease.Config{TTL: 10 * time.Second, Outer: slow})
		l := try(t, i, "a")
		w.memory.SetError("READONLY You can't write against a read only replica.")
		time.AfterFunc(200*ms, func() { w.memory.SetError("") })
		ctx, cancel := context.WithTimeout(t.Context(), 1500*ms)
		defer cancel()
		var left *lease.NotGivenBackError
		closed := make(chan error, 1)
		go func() { closed <- i.Close(ctx) }()
		err := l.Release(ctx)
		require.ErrorIs(t, err, lease.ErrUnreachable)
		require.NotErrorIs(t, err, lease.ErrReadOnly)
		require.ErrorAs(t, <-closed, &left)
		require.NoError(t, left.Blocked[0].Err, "it is under way")
		require.NoError(t, l.Release(t.Context()))
	})
}

func TestAnAcquisitionThatFailsGivesTheLockAroundBack(t *testing.T) {
	for name, c := range map[string]struct {
		cfg  lease.Config
		ctx  func(*world, context.Context) context.Context
		want error
	}{
		"the lease is refused": {ctx: func(w *world, ctx context.Context) context.Context {
			w.client.LPush(ctx, w.key("b", "owner"), "x")
			return ctx
		}, want: lease.ErrCorrupt},
		"sealing fails": {cfg: lease.Config{Seal: func(context.Context, lease.Grant) error { return errWork }}, want: errWork},
		"the context has ended": {ctx: func(_ *world, ctx context.Context) context.Context {
			ctx, cancel := context.WithCancelCause(ctx)
			cancel(errWork)
			return ctx
		}, want: errWork},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				_, old := bothLocks(t, w)
				c.cfg.TTL, c.cfg.Outer = 10*time.Second, around(old)
				ctx := t.Context()
				if c.ctx != nil {
					ctx = c.ctx(w, ctx)
				}
				_, err := w.issuer(t, c.cfg).AcquireAll(ctx, []string{"a", "b"})
				require.ErrorIs(t, err, c.want)
				time.Sleep(time.Second)
				try(t, old, "a")
				try(t, old, "b")
			})
		})
	}
}

// The other library may ignore contexts. The call returns all the same, and Close waits.
func TestALockThatIsTakenTooLateIsGivenBack(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		goOn, released := make(chan struct{}), false
		outer := func(context.Context, string, time.Duration) (lease.OuterLock, error) {
			<-goOn
			return lease.OuterLock{
				Renew:   func(context.Context) error { return nil },
				Release: func(context.Context) error { released = true; return nil },
			}, nil
		}
		i := w.issuer(t, lease.Config{TTL: 10 * time.Second, Outer: outer})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		_, err := i.Acquire(ctx, "a")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, time.Second, time.Since(began))
		require.ErrorIs(t, i.Close(ctx), context.DeadlineExceeded)
		close(goOn)
		require.NoError(t, i.Close(t.Context()))
		require.True(t, released)
	})
}

// As a test does that fails in one of them.
func TestAFunctionOfOuterThatEndsItsGoroutine(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		goOn := make(chan struct{})
		close(goOn)
		end := func() { <-goOn; runtime.Goexit() }
		takes := func(context.Context, string, time.Duration) (lease.OuterLock, error) {
			end()
			return lease.OuterLock{}, nil
		}
		taking := w.issuer(t, lease.Config{TTL: 10 * time.Second, Outer: takes})
		_, err := taking.Acquire(t.Context(), "a")
		require.ErrorContains(t, err, "the function has ended its goroutine")
		goOn = make(chan struct{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = taking.Acquire(ctx, "a")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		close(goOn)
		require.NoError(t, taking.Close(t.Context()))

		ends := func(context.Context) error { end(); return nil }
		gives := func(context.Context, string, time.Duration) (lease.OuterLock, error) {
			return lease.OuterLock{Renew: ends, Release: ends}, nil
		}
		giving := w.issuer(t, lease.Config{TTL: 10 * time.Second, Outer: gives})
		l, err := giving.Acquire(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(15 * time.Second)
		require.ErrorIs(t, l.Err(), lease.ErrExpired)
		l, err = giving.Acquire(t.Context(), "a")
		require.NoError(t, err)
		require.NoError(t, l.Release(t.Context()))
		require.NoError(t, giving.Close(t.Context()))
	})
}

func TestWhatIsWrongWithOuterIsSaid(t *testing.T) {
	w := newWorld(t)
	broken := func(context.Context, string, time.Duration) (lease.OuterLock, error) {
		return lease.OuterLock{}, errWork
	}
	_, err := lease.New(w.client, lease.Config{TTL: time.Second, Outer: broken, RenewEvery: lease.Never})
	require.ErrorIs(t, err, lease.ErrInvalid)
	_, err = lease.NewSemaphore(w.client, lease.SemaphoreConfig{Limit: 1,
		Lease: lease.Config{TTL: time.Second, Outer: broken}})
	require.ErrorIs(t, err, lease.ErrInvalid)

	_, err = w.issuer(t, lease.Config{TTL: time.Second, Outer: broken}).Acquire(t.Context(), "a")
	require.ErrorIs(t, err, errWork, "what is not ErrHeld is not tried again")
	empty := func(context.Context, string, time.Duration) (lease.OuterLock, error) { return lease.OuterLock{}, nil }
	_, err = w.issuer(t, lease.Config{TTL: time.Second, Outer: empty}).Acquire(t.Context(), "a")
	require.ErrorIs(t, err, lease.ErrInvalid)
}
