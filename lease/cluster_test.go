package lease_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

// On a Cluster the message stays on the shard, and the subscription follows the slot.
func TestAReleaseWakesTheWaiterOnACluster(t *testing.T) {
	t.Parallel()
	cluster := testenv.Cluster(t)
	w := &world{client: cluster.Client(), namespace: "cluster"}
	i := w.issuer(t, lease.Config{TTL: time.Minute})
	handOver := func(holder *lease.Lease) *lease.Lease {
		t.Helper()
		start := time.Now()
		require.NoError(t, holder.Release(t.Context()))
		l, err := i.Acquire(t.Context(), holder.Resource())
		require.NoError(t, err)
		require.Less(t, time.Since(start), 3*time.Second, "woken, not by asking again")
		return l
	}
	for _, resource := range []string{"a", "b", "c", "d"} { // on different masters
		holder := handOver(try(t, i, resource))
		grants := make(chan grant)
		go func() {
			l, err := i.Acquire(t.Context(), resource)
			grants <- grant{lease: l, err: err, at: time.Now()}
		}()
		owner := cluster.Owner(cluster.Slot(w.key(resource, "owner")))
		require.Eventually(t, func() bool {
			channels, err := owner.Client().PubSubShardChannels(t.Context(), w.key(resource, "wake")+":*").Result()
			return err == nil && len(channels) == 1
		}, 10*time.Second, ms)
		released := time.Now()
		require.NoError(t, holder.Release(t.Context()))
		g := <-grants
		require.NoError(t, g.err)
		require.Less(t, g.at.Sub(released), 3*time.Second, "woken, not by asking again")
		require.NoError(t, g.lease.Release(t.Context()))
	}
}

func TestWaitingSurvivesAMovedSlot(t *testing.T) {
	t.Parallel()
	cluster := testenv.Cluster(t)
	w := &world{client: cluster.Client(), namespace: "cluster"}
	i := w.issuer(t, lease.Config{TTL: time.Minute})
	holder := try(t, i, "a")
	slot := cluster.Slot(w.key("a", "owner"))
	grants := make(chan grant)
	wait(context.Background(), i, 0, grants)
	require.Eventually(t, func() bool { return w.snapshot(t, "a").waiters == 1 }, 5*time.Second, ms)
	cluster.MoveSlot(slot)
	require.Eventually(t, func() bool {
		channels, err := cluster.Owner(slot).Client().PubSubShardChannels(t.Context(), w.key("a", "wake")+":*").Result()
		return err == nil && len(channels) == 1
	}, 15*time.Second, 10*ms, "the subscription follows")
	require.NoError(t, holder.Release(t.Context()))
	g := <-grants
	require.NoError(t, g.err)
	require.Greater(t, g.lease.Token(), holder.Token())
	require.NoError(t, g.lease.Release(t.Context()))
}
