package testenv

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSentinelFailsOverWhenAsked(t *testing.T) {
	t.Parallel()
	s := Sentinel(t, "--maxmemory", "64mb")
	client := s.Client()
	require.NoError(t, client.Set(t.Context(), "k", "before", 0).Err())
	require.Len(t, s.Replicas(), 2)
	old := s.Primary()
	replicated, err := client.Wait(t.Context(), 2, patience).Result()
	require.NoError(t, err)
	require.Equal(t, int64(2), replicated)

	promoted := s.Failover()
	require.NotEqual(t, old.Addr(), promoted.Addr())
	require.Equal(t, promoted, s.Primary())
	require.Equal(t, "before", promoted.Client().Get(t.Context(), "k").Val())
	require.NoError(t, client.Set(t.Context(), "k", "after", 0).Err(), "the client follows")
	require.Equal(t, "after", promoted.Client().Get(t.Context(), "k").Val())
	require.Equal(t, "67108864", promoted.Client().ConfigGet(t.Context(), "maxmemory").Val()["maxmemory"])
}

func TestSentinelPromotesAReplicaThatLags(t *testing.T) {
	t.Parallel()
	s := Sentinel(t)
	old, replicas := s.Primary(), s.Replicas()
	s.CutOff()
	require.NoError(t, old.Client().Set(t.Context(), "k", "never replicated", 0).Err())
	old.Kill()
	for _, replica := range replicas {
		replica.Resume()
	}
	promoted := s.AwaitPromotion(old)
	require.Contains(t, replicas, promoted)
	require.Zero(t, promoted.Client().Exists(t.Context(), "k").Val())
}

func TestClusterServesWhileASlotMoves(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	client := c.Client()
	const tag = "{table:12}"
	slot := c.Slot(tag)
	for i := range 250 { // more than are moved at once
		require.NoError(t, client.Set(t.Context(), fmt.Sprint(tag, i), i, 0).Err())
	}
	from := c.Owner(slot)

	c.BeginMove(slot)
	require.Equal(t, "0", client.Get(t.Context(), tag+"0").Val(), "still at the old master")
	require.NoError(t, client.Set(t.Context(), tag+"new", "new", 0).Err(), "goes to the new master")
	c.FinishMove(slot)

	require.NotEqual(t, from, c.Owner(slot))
	require.Equal(t, "new", client.Get(t.Context(), tag+"new").Val())
	for i := range 250 {
		require.Equal(t, fmt.Sprint(i), client.Get(t.Context(), fmt.Sprint(tag, i)).Val())
	}
	require.Empty(t, from.Client().ClusterGetKeysInSlot(t.Context(), slot, 1).Val())
	c.MoveSlot(slot)
	require.Equal(t, "249", client.Get(t.Context(), tag+"249").Val())
}

func TestAClusterSharesItsSlotsOut(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	require.Len(t, c.Nodes(), clusterMasters)
	for _, key := range []string{"a", "b", "c"} { // one on each
		require.NoError(t, c.Client().Set(t.Context(), key, key, 0).Err())
	}
	for _, node := range c.Nodes() {
		require.Equal(t, int64(1), node.Client().DBSize(t.Context()).Val())
	}
}
