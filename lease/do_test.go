package lease_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/lease"
)

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

var errWork = errors.New("the kitchen is closed")

type key struct{}

func TestDo(t *testing.T) {
	type step func(t *testing.T, w *world, ctx context.Context, l *lease.Lease) error
	for name, test := range map[string]struct {
		fn         step
		want, also error
		cause      error // of the WorkDoneError
	}{
		"work done": {fn: func(*testing.T, *world, context.Context, *lease.Lease) error { return nil }},
		"work failed": {
			fn:   func(*testing.T, *world, context.Context, *lease.Lease) error { return errWork },
			want: errWork,
		},
		"released by the work": {
			fn: func(t *testing.T, _ *world, ctx context.Context, l *lease.Lease) error {
				err := l.Release(ctx)
				<-ctx.Done()
				require.ErrorIs(t, context.Cause(ctx), lease.ErrReleased)
				return err
			},
		},
		"lost and heeded": {
			fn: func(t *testing.T, w *world, ctx context.Context, _ *lease.Lease) error {
				w.client.FlushAll(t.Context())
				<-ctx.Done()
				return fmt.Errorf("%w: %w", errWork, context.Cause(ctx))
			},
			want: errWork, also: lease.ErrLost,
		},
		"lost, and the work failed": {
			fn: func(t *testing.T, w *world, _ context.Context, _ *lease.Lease) error {
				require.NoError(t, w.client.FlushAll(t.Context()).Err())
				return errWork
			},
			want: errWork, also: lease.ErrLost,
		},
		"lost and not noticed": {
			fn: func(t *testing.T, w *world, _ context.Context, _ *lease.Lease) error {
				return w.client.FlushAll(t.Context()).Err()
			},
			want: lease.ErrWorkDone, cause: lease.ErrLost,
		},
		"expired and ignored": {
			fn: func(_ *testing.T, w *world, _ context.Context, l *lease.Lease) error {
				w.faults.Always(faulty.LoseRequest)
				<-l.Context().Done()
				w.faults.Always(faulty.None)
				return nil
			},
			want: lease.ErrWorkDone, cause: lease.ErrUnreachable,
		},
		"release refused": {
			fn: func(t *testing.T, w *world, _ context.Context, _ *lease.Lease) error {
				require.NoError(t, w.client.Del(t.Context(), w.key("a", "owner")).Err())
				return w.client.LPush(t.Context(), w.key("a", "owner"), "x").Err()
			},
			want: lease.ErrWorkDone, cause: lease.ErrCorrupt,
		},
		"release not answered": {
			fn: func(_ *testing.T, w *world, _ context.Context, _ *lease.Lease) error {
				w.faults.Next("release", "a", 3, faulty.LoseRequest)
				return nil
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				i := w.issuer(t, lease.Config{TTL: 9 * time.Second})
				err := i.Do(t.Context(), "a", func(ctx context.Context, l *lease.Lease) error { return test.fn(t, w, ctx, l) })
				require.ErrorIs(t, err, test.want)
				if test.also != nil {
					require.ErrorIs(t, err, test.also)
				}
				if test.want == nil {
					require.NoError(t, err)
					return
				}
				require.NotContains(t, err.Error(), "\n")
				var done *lease.WorkDoneError
				require.Equal(t, test.cause != nil, errors.As(err, &done))
				if done != nil {
					require.ErrorIs(t, done.Cause, test.cause)
					require.NotErrorIs(t, err, test.cause, "it is about work that was lost")
				}
				require.Equal(t, test.also != nil, lease.IsLost(err))
			})
		})
	}
}

// Close ends the lease under the work, which then is not done under a lease that was valid to its
// end.
func TestWorkLearnsThatCloseHasEndedItsLease(t *testing.T) {
	for name, run := range map[string]func(i *lease.Issuer, work func(context.Context) error) error{
		"Do": func(i *lease.Issuer, work func(context.Context) error) error {
			return i.Do(context.Background(), "a", func(ctx context.Context, _ *lease.Lease) error { return work(ctx) })
		},
		"DoAll": func(i *lease.Issuer, work func(context.Context) error) error {
			return i.DoAll(context.Background(), []string{"a", "b"}, func(ctx context.Context, _ lease.Leases) error { return work(ctx) })
		},
		"Lead": func(i *lease.Issuer, work func(context.Context) error) (term error) {
			err := i.Lead(context.Background(), role, func(ctx context.Context, _ *lease.Lease) error { return work(ctx) },
				lease.OnTerm(func(err error) { term = err }))
			require.ErrorIs(t, err, lease.ErrClosed)
			return term
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				i := w.issuer(t, lease.Config{TTL: 9 * time.Second})
				err := run(i, func(context.Context) error { return i.Close(t.Context()) })
				var done *lease.WorkDoneError
				require.ErrorAs(t, err, &done)
				require.ErrorIs(t, done.Cause, lease.ErrReleased)
				require.ErrorIs(t, done.Cause, lease.ErrClosed)

				i = w.issuer(t, lease.Config{TTL: 9 * time.Second})
				err = run(i, func(ctx context.Context) error {
					require.NoError(t, i.Close(t.Context()))
					<-ctx.Done()
					return context.Cause(ctx)
				})
				require.ErrorIs(t, err, lease.ErrClosed, "and heeded")
				require.True(t, lease.IsLost(err))
			})
		})
	}
}

// stopped is a process that is stopped as soon as it has acquired, for longer than a lease lasts. A
// Tracer stands for that.
type stopped struct{ w *world }

func (stopped) TraceLeaseStart(ctx context.Context, _ lease.TraceStart) context.Context { return ctx }

func (s stopped) TraceLeaseEnd(_ context.Context, e lease.TraceEnd) {
	if e.Op == lease.OpAcquire && e.Err == nil {
		s.w.client.FlushAll(context.Background())
		time.Sleep(9 * time.Second)
	}
}

func TestNothingRunsUnderALeaseThatIsLost(t *testing.T) {
	for name, run := range map[string]func(context.Context, *lease.Issuer) error{
		"Do": func(ctx context.Context, i *lease.Issuer) error {
			return i.Do(ctx, "a", func(context.Context, *lease.Lease) error { panic("nobody else is kept out") })
		},
		"DoAll": func(ctx context.Context, i *lease.Issuer) error {
			return i.DoAll(ctx, []string{"a", "b"}, func(context.Context, lease.Leases) error { panic("nobody else is kept out") })
		},
		"Lead": func(ctx context.Context, i *lease.Issuer) (term error) {
			ctx, cancel := context.WithCancel(ctx)
			_ = i.Lead(ctx, "a", func(context.Context, *lease.Lease) error { panic("nobody else is kept out") },
				lease.OnTerm(func(err error) { term = err; cancel() }))
			return term
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				err := run(t.Context(), w.issuer(t, lease.Config{TTL: 9 * time.Second, Tracers: []lease.Tracer{stopped{w}}}))
				require.ErrorIs(t, err, lease.ErrLost)
				require.NotErrorIs(t, err, lease.ErrWorkDone)
				require.ErrorContains(t, err, "fn was not run")
				require.LessOrEqual(t, strings.Count(err.Error(), `"a"`), 1, "said once: %v", err)
			})
		})
	}
}

func TestDoEndsWithItsCaller(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: 9 * time.Second})
		ctx, cancel := context.WithCancelCause(context.WithValue(t.Context(), key{}, "ada"))
		time.AfterFunc(time.Second, func() { cancel(errWork) })
		err := i.Do(ctx, "a", func(ctx context.Context, l *lease.Lease) error {
			require.Equal(t, "ada", ctx.Value(key{}))
			require.Equal(t, "ada", l.Context().Value(key{}))
			<-ctx.Done()
			require.NoError(t, l.Err(), "the lease goes on until the work has ended")
			return context.Cause(ctx)
		})
		require.ErrorIs(t, err, errWork)
		try(t, i, "a")
	})
}

func TestDoReleasesWhenTheWorkPanics(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: 9 * time.Second})
		require.PanicsWithValue(t, "soup", func() {
			_ = i.Do(t.Context(), "a", func(context.Context, *lease.Lease) error { panic("soup") })
		})
		try(t, i, "a")
	})
}

func TestSeal(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		var sealed []int64
		refuse := false
		i := w.issuer(t, lease.Config{TTL: 9 * time.Second, Seal: func(ctx context.Context, grants ...lease.Grant) error {
			l := grants[0]
			require.NoError(t, l.(*lease.Lease).Err())
			require.Equal(t, "ada", ctx.Value(key{}))
			sealed = append(sealed, l.Token())
			if refuse {
				return errWork
			}
			return nil
		}})
		ctx := context.WithValue(t.Context(), key{}, "ada")
		l, err := i.Acquire(ctx, "a", lease.NoWait())
		require.NoError(t, err)
		require.Equal(t, []int64{l.Token()}, sealed)
		require.NoError(t, l.Release(ctx))

		refuse = true
		_, err = i.Acquire(ctx, "a")
		require.ErrorIs(t, err, errWork)
		require.Empty(t, w.client.Get(ctx, w.key("a", "owner")).Val(), "given back")
		require.Len(t, sealed, 2)
	})
}

func TestASealThatPanicsGivesTheLeaseBack(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		told := newJournal()
		i := w.issuer(t, lease.Config{TTL: 9 * time.Second, Tracers: []lease.Tracer{told}, Seal: func(context.Context, ...lease.Grant) error { panic("on purpose") }})
		require.PanicsWithValue(t, "on purpose", func() { _, _ = i.AcquireAll(t.Context(), []string{"a", "b"}) })
		require.NoError(t, i.Close(t.Context()))
		told.closed(t)
		require.Equal(t, "error", told.only(t, lease.OpAcquire).Outcome())
		require.Empty(t, w.client.Keys(t.Context(), "*owner").Val())

		seal := func(_ context.Context, grants ...lease.Grant) error {
			if grants[0].Token() > 1<<52 {
				panic("on purpose")
			}
			return &passedError{grants[0].Resource(), 1 << 52}
		}
		i = w.issuer(t, lease.Config{TTL: 9 * time.Second, Tracers: []lease.Tracer{told}, Seal: seal})
		require.PanicsWithValue(t, "on purpose", func() { _, _ = i.Acquire(t.Context(), "a", lease.NoWait()) })
		require.NoError(t, i.Close(t.Context()))
		told.closed(t)
		require.Equal(t, "done", told.only(t, lease.OpRaise).Outcome())
		require.Empty(t, w.client.Keys(t.Context(), "*owner").Val())
	})
}

func TestSealThatOutlastsTheLease(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: 9 * time.Second, RenewEvery: lease.Never,
			Seal: func(context.Context, ...lease.Grant) error { time.Sleep(10 * time.Second); return nil }})
		_, err := i.Acquire(t.Context(), "a", lease.NoWait())
		require.ErrorIs(t, err, lease.ErrExpired)
	})
}

// Whichever way leases end, nothing runs on. (In a bubble, a goroutine left behind fails the test.)
func TestNothingRunsOnAfterTheLastLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := inMemory(t)
		i := w.issuer(t, lease.Config{TTL: 9 * time.Second, MaxHold: time.Minute})
		for n := range 100 {
			l := try(t, i, "a"+itoa(int64(n)))
			if n%2 == 0 {
				require.NoError(t, l.Release(t.Context()))
			}
		}
		time.Sleep(2 * time.Minute)
	})
}

func TestNothingRunsOnAgainstRedis(t *testing.T) {
	w := newWorld(t) // not parallel: other tests' goroutines must not come and go
	before := goleak.IgnoreCurrent()
	i := w.issuer(t, lease.Config{TTL: 10 * time.Second, RenewEvery: 300 * ms})
	for n := range 20 {
		l := try(t, i, "a"+itoa(int64(n)))
		switch n % 3 {
		case 0:
			require.NoError(t, l.Release(t.Context()))
		case 1:
			require.NoError(t, w.client.Del(t.Context(), w.key(l.Resource(), "owner")).Err())
			<-l.Context().Done()
			require.ErrorIs(t, context.Cause(l.Context()), lease.ErrLost)
		case 2:
			require.NoError(t, l.Extend(t.Context()))
			require.NoError(t, l.Release(t.Context()))
		}
	}
	goleak.VerifyNone(t, before)
}

// acquisitions are the calls that may wait, for one resource or with others.
var acquisitions = map[string]func(ctx context.Context, i *lease.Issuer, opts ...lease.Option) error{
	"Acquire": func(ctx context.Context, i *lease.Issuer, opts ...lease.Option) error {
		l, err := i.Acquire(ctx, "b", opts...)
		if err == nil {
			err = l.Release(ctx)
		}
		return err
	},
	"AcquireAll": func(ctx context.Context, i *lease.Issuer, opts ...lease.Option) error {
		ls, err := i.AcquireAll(ctx, []string{"a", "b", "c"}, opts...)
		if err == nil {
			err = ls.Release(ctx)
		}
		return err
	},
	"Do": func(ctx context.Context, i *lease.Issuer, opts ...lease.Option) error {
		return i.Do(ctx, "b", func(context.Context, *lease.Lease) error { return nil }, opts...)
	},
	"DoAll": func(ctx context.Context, i *lease.Issuer, opts ...lease.Option) error {
		return i.DoAll(ctx, []string{"a", "b", "c"}, func(context.Context, lease.Leases) error { return nil }, opts...)
	},
}

func TestWaitingForNoTime(t *testing.T) {
	for name, acquire := range acquisitions {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				delay(w, 10*ms)
				i := w.issuer(t, lease.Config{TTL: time.Minute})
				for _, opts := range [][]lease.Option{
					{lease.WaitAtMost(0)}, {lease.WaitAtMost(-1)}, {lease.WaitAtMost(time.Second), lease.NoWait()},
				} {
					require.ErrorIs(t, acquire(t.Context(), i, opts...), lease.ErrInvalid)
				}
				short := lease.WaitAtMost(50 * time.Microsecond)
				require.NoError(t, acquire(t.Context(), i, short), "what is free can be had")
				require.NoError(t, acquire(t.Context(), i, lease.NoWait()))

				holder := try(t, i, "b")
				for n := range 3 { // the time is over before, while and after Redis is asked
					start := time.Now()
					err := acquire(t.Context(), i, lease.WaitAtMost(50*time.Microsecond+time.Duration(n)*10*ms))
					require.ErrorIs(t, err, lease.ErrHeld)
					require.ErrorIs(t, err, context.DeadlineExceeded)
					require.NotErrorIs(t, err, lease.ErrUnreachable)
					require.LessOrEqual(t, time.Since(start), 100*ms)
				}
				start := time.Now()
				err := acquire(t.Context(), i, lease.NoWait())
				require.ErrorIs(t, err, lease.ErrHeld)
				require.NotErrorIs(t, err, context.DeadlineExceeded)
				require.Equal(t, start.Add(10*ms), time.Now(), "one request")
				start = time.Now()
				require.ErrorIs(t, acquire(t.Context(), i.With(lease.NoWait())), lease.ErrHeld)
				require.Equal(t, start.Add(10*ms), time.Now(), "an option of the issuer")
				err = acquire(t.Context(), i.With(lease.WaitAtMost(time.Hour)), short)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.LessOrEqual(t, time.Since(start), 200*ms, "the call's own come last")
				synctest.Wait()
				for _, resource := range []string{"a", "b", "c"} {
					require.Zero(t, w.snapshot(t, resource).waiters)
				}
				require.NoError(t, holder.Release(t.Context()))

				w.faults.Always(faulty.Hang)
				err = acquire(t.Context(), i, short)
				require.ErrorIs(t, err, lease.ErrUnreachable, "it was not heard that another holds")
				require.ErrorIs(t, err, context.DeadlineExceeded)
				w.faults.Always(faulty.None)
			})
		})
	}
}

// An option that a call would ignore is refused, and the error names it.
func TestACallThatDoesNotWaitRefusesToWait(t *testing.T) {
	i := newWorld(t).issuer(t, lease.Config{TTL: time.Minute})
	waits := lease.WaitAtMost(time.Second)
	for name, err := range map[string]error{
		"Acquire NoWait":    second(i.Acquire(t.Context(), "a", waits, lease.NoWait())),
		"AcquireAll NoWait": second(i.AcquireAll(t.Context(), []string{"a", "b"}, waits, lease.NoWait())),
		"With":              second(i.With(waits).Acquire(t.Context(), "a", lease.NoWait())),
	} {
		require.ErrorIs(t, err, lease.ErrInvalid, name)
		require.ErrorContains(t, err, "WaitAtMost(1s)", name)
	}
}
