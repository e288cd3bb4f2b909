package lease_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/lease"
)

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
