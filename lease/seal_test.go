package lease_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/lease"
)

// passedError is what a data store says whose fence is ahead.
type passedError struct {
	resource string
	last     int64
}

func (e *passedError) Error() string                { return fmt.Sprint(e.resource, " has seen ", e.last) }
func (e *passedError) LeaseLost() bool              { return true }
func (e *passedError) FencePassed() (string, int64) { return e.resource, e.last }

// fences are a data store that seals.
type fences map[string]int64

func (f fences) seal(_ context.Context, grants ...lease.Grant) error {
	for _, g := range grants {
		if g.Token() <= f[g.Resource()] {
			return &passedError{g.Resource(), f[g.Resource()]}
		}
	}
	for _, g := range grants {
		f[g.Resource()] = g.Token()
	}
	return nil
}

// Redis has gone back, and the fences are ahead. Whoever acquires gets leases that are above them,
// and learns nothing of it.
func TestAnAcquisitionHealsWhenItsTokenIsBehindTheFence(t *testing.T) {
	for name, acquire := range map[string]func(context.Context, *lease.Issuer) error{
		"TryAcquire": func(ctx context.Context, i *lease.Issuer) error {
			l, err := i.TryAcquire(ctx, "a")
			return release(ctx, l, err)
		},
		"Acquire": func(ctx context.Context, i *lease.Issuer) error {
			l, err := i.Acquire(ctx, "a")
			return release(ctx, l, err)
		},
		"AcquireAll": func(ctx context.Context, i *lease.Issuer) error {
			ls, err := i.AcquireAll(ctx, []string{"a", "b", "c"})
			if err != nil {
				return err
			}
			return ls.Release(ctx)
		},
		"Do": func(ctx context.Context, i *lease.Issuer) error {
			return i.Do(ctx, "a", func(context.Context, *lease.Lease) error { return nil })
		},
		"DoAll": func(ctx context.Context, i *lease.Issuer) error {
			return i.DoAll(ctx, []string{"a", "b", "c"}, func(context.Context, lease.Leases) error { return nil })
		},
		"Lead": func(ctx context.Context, i *lease.Issuer) error {
			ctx, cancel := context.WithCancelCause(ctx)
			err := i.Lead(ctx, "a", func(context.Context, *lease.Lease) error { cancel(errWork); return nil })
			if err == errWork {
				return nil
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				ahead := time.Now().Add(time.Hour).UnixMicro()
				f := fences{"a": ahead, "b": ahead, "c": ahead}
				require.NoError(t, acquire(t.Context(), w.issuer(t, lease.Config{TTL: 9 * time.Second, Seal: f.seal})))
				require.Greater(t, f["a"], ahead)
				require.Empty(t, w.client.Keys(t.Context(), "*owner").Val(), "nothing is left")
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

// A process that reaches Redis but not the data store keeps the resource for one TTL.
func TestSealingIsBoundedByOneTTL(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		hangs := func(ctx context.Context, _ ...lease.Grant) error { <-ctx.Done(); return context.Cause(ctx) }
		i := w.issuer(t, lease.Config{TTL: 2 * time.Second, Seal: hangs})
		grants := make(chan grant)
		began := time.Now()
		time.AfterFunc(ms, func() { wait(t.Context(), w.issuer(t, lease.Config{TTL: 2 * time.Second}), 0, grants) })

		_, err := i.Acquire(t.Context(), "a")

		require.ErrorContains(t, err, "the data store has not answered within the TTL of the lease (2s)")
		require.LessOrEqual(t, time.Since(began), 2*time.Second)
		g := <-grants
		require.NoError(t, g.err)
		require.LessOrEqual(t, g.at.Sub(began), 2*time.Second+200*ms, "it was not renewed")
		require.NoError(t, g.lease.Release(t.Context()))
	})
}

// What was sealed is renewed, however long that took.
func TestASealedLeaseIsRenewed(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		slow := func(context.Context, ...lease.Grant) error { time.Sleep(8 * time.Second); return nil }
		l := try(t, w.issuer(t, lease.Config{TTL: 9 * time.Second, Seal: slow}), "a")
		time.Sleep(time.Minute)
		require.NoError(t, l.Err())
	})
}

// Another holder has the fence. A waiting acquisition lets others go first meanwhile, and says what
// blocked it when its patience ends.
func TestAnAcquisitionWhoseSealIsBlockedQueuesAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		blocked := &passedError{"elsewhere", 1}
		var free atomic.Bool
		seal := func(ctx context.Context, grants ...lease.Grant) error {
			if free.Load() {
				return nil
			}
			<-time.After(time.Until(grants[0].(*lease.Lease).ValidUntil()))
			return blocked
		}
		i := w.issuer(t, lease.Config{TTL: 2 * time.Second, Seal: seal})
		began := time.Now()
		_, err := i.Acquire(t.Context(), "a", lease.WaitAtMost(7*time.Second))
		require.ErrorIs(t, err, blocked)
		require.True(t, lease.IsLost(err))
		require.GreaterOrEqual(t, time.Since(began), 7*time.Second)
		require.LessOrEqual(t, time.Since(began), 9*time.Second)

		_, err = i.TryAcquire(t.Context(), "a")
		require.ErrorIs(t, err, blocked)
		time.AfterFunc(5*time.Second, func() { free.Store(true) })
		l, err := i.Acquire(t.Context(), "a")
		require.NoError(t, err)
		require.NoError(t, l.Release(t.Context()))
	})
}
