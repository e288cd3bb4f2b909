package lease_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/lease"
)

// slow holds the next script call back until its context has ended, and for a while longer, as one that waits for a connection to be
// made. What is sent meanwhile, on connections that there are, overtakes it.
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
		giveUp(hasty.TryAcquire, lease.WithLeaseID(id))
		again := try(t, hasty, "a", lease.WithLeaseID(id))
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
