package lease_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/lease"
)

func TestBoundWorkEndsWithWhatEndsFirst(t *testing.T) {
	for name, test := range map[string]struct {
		end  func(t *testing.T, caller context.CancelCauseFunc, ls lease.Leases)
		want error
	}{
		"the caller": {func(_ *testing.T, caller context.CancelCauseFunc, _ lease.Leases) { caller(errWork) }, errWork},
		"the first lease": {func(t *testing.T, _ context.CancelCauseFunc, ls lease.Leases) {
			require.NoError(t, ls[0].Release(t.Context()))
		}, lease.ErrReleased},
		"the last lease": {func(t *testing.T, _ context.CancelCauseFunc, ls lease.Leases) {
			require.NoError(t, ls[1].Release(t.Context()))
		}, lease.ErrReleased},
		"time": {func(*testing.T, context.CancelCauseFunc, lease.Leases) { time.Sleep(10 * time.Second) }, lease.ErrExpired},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				ctx, caller := context.WithCancelCause(context.WithValue(t.Context(), key{}, "ann"))
				defer caller(nil)
				ls, err := w.issuer(t, lease.Config{TTL: 10 * time.Second, RenewEvery: lease.Never}).AcquireAll(ctx, []string{"a", "b"})
				require.NoError(t, err)
				work, stop := ls.Bind(ctx)
				defer stop()
				require.NoError(t, work.Err())
				require.Equal(t, "ann", work.Value(key{}))
				test.end(t, caller, ls)
				synctest.Wait()
				require.ErrorIs(t, context.Cause(work), test.want)
				_ = ls.Release(t.Context())
			})
		})
	}
}

func TestUnbindingEndsNothingElse(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		l := try(t, w.issuer(t, lease.Config{TTL: 10 * time.Second}), "a")
		work, stop := l.Bind(ctx)
		stop()
		require.ErrorIs(t, context.Cause(work), context.Canceled)
		require.NoError(t, ctx.Err())
		require.NoError(t, l.Err())
		require.NoError(t, l.Release(t.Context()))

		work, stop = l.Bind(ctx)
		defer stop()
		require.ErrorIs(t, context.Cause(work), lease.ErrReleased, "over from the start")
	})
}
