package testenv

import (
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestOwnRedisComesBackWithWhatItSaved(t *testing.T) {
	t.Parallel()
	s := OwnRedis(t, "--appendonly", "yes", "--appendfsync", "always")
	require.NoError(t, s.Client().Set(t.Context(), "k", "saved", 0).Err())
	addr := s.Addr()
	s.Kill()
	require.Error(t, s.Client().Ping(t.Context()).Err())
	s.Restart()
	require.Equal(t, addr, s.Addr())
	require.Equal(t, "saved", s.Client().Get(t.Context(), "k").Val())
}

func TestOwnRedisKeepsNothingUnlessAsked(t *testing.T) {
	t.Parallel()
	s := OwnRedis(t)
	require.NoError(t, s.Client().Set(t.Context(), "k", "lost", 0).Err())
	s.Restart()
	require.ErrorIs(t, s.Client().Get(t.Context(), "k").Err(), redis.Nil)
}

func TestOwnRedisTakesArguments(t *testing.T) {
	t.Parallel()
	s := OwnRedis(t, "--maxmemory-policy", "allkeys-lru")
	policy, err := s.Client().ConfigGet(t.Context(), "maxmemory-policy").Result()
	require.NoError(t, err)
	require.Equal(t, "allkeys-lru", policy["maxmemory-policy"])
}

func TestAPausedRedisAnswersWhatCameMeanwhile(t *testing.T) {
	t.Parallel()
	s := OwnRedis(t)
	patient := newRedisClient(&redis.Options{Addr: s.Addr(), ReadTimeout: patience})
	t.Cleanup(func() { require.NoError(t, patient.Close()) })
	require.NoError(t, patient.Ping(t.Context()).Err())

	s.Pause()
	answered := make(chan error)
	go func() { answered <- patient.Incr(t.Context(), "n").Err() }()
	impatient := newRedisClient(&redis.Options{Addr: s.Addr(), ReadTimeout: pollEvery, MaxRetries: -1})
	t.Cleanup(func() { require.NoError(t, impatient.Close()) })
	require.Error(t, impatient.Ping(t.Context()).Err())
	s.Resume()
	require.NoError(t, <-answered)
}

func TestAPassedTestLeavesNoKeys(t *testing.T) {
	t.Parallel()
	client := Redis(t)
	inner := &recorder{TB: t}
	namespace := Namespace(inner)
	require.NoError(t, client.Set(t.Context(), "lease:v1:{"+namespace+"/table:12}:owner", 41, 0).Err())
	inner.end()
	require.Empty(t, client.Keys(t.Context(), "*"+namespace+"*").Val())
	require.Empty(t, inner.log.String())
}

func TestAFailedTestKeepsItsKeysAndNamesThem(t *testing.T) {
	t.Parallel()
	client := Redis(t)
	inner := &recorder{TB: t}
	namespace := Namespace(inner)
	key := "lease:v1:{" + namespace + "/table:12}:owner"
	require.NoError(t, client.Set(t.Context(), key, 41, 0).Err())
	inner.failed = true
	inner.end()
	require.Equal(t, "41", client.Get(t.Context(), key).Val())
	require.Contains(t, inner.log.String(), key)
	require.NoError(t, client.Del(t.Context(), key).Err())
}

func TestExternalRedis(t *testing.T) {
	t.Parallel()
	own := OwnRedis(t)
	h := thisHost()

	h.getenv = env(redisURLVar, "redis://"+own.Addr()+"/3")
	server, err := obtainRedis(t.Context(), h, false)
	require.NoError(t, err)
	require.NoError(t, server.stop())
	require.NoError(t, server.client(t).Set(t.Context(), "k", "in 3", 0).Err(), "still there after stop")
	require.ErrorIs(t, own.Client().Get(t.Context(), "k").Err(), redis.Nil, "the URL names another database")

	own.Kill()
	_, err = obtainRedis(t.Context(), h, false)
	var missing *UnavailableError
	require.Error(t, err)
	require.NotErrorAs(t, err, &missing, "nothing else was looked for")

	h.getenv = env(redisURLVar, "not a URL")
	_, err = obtainRedis(t.Context(), h, false)
	require.Error(t, err)
}

// Between the choice of a port and our server's start, another server may have bound it.
func TestAnotherServerOnThePortIsNotTakenForOurs(t *testing.T) {
	t.Parallel()
	theirs := OwnRedis(t)
	base, err := newNode(nil)
	require.NoError(t, err)
	base.port = theirs.node.port
	ours := &redisNode{node: base, bin: theirs.node.bin}
	t.Cleanup(func() { require.NoError(t, ours.stop()) })

	require.ErrorIs(t, ours.start(t.Context()), errExited)
}

func TestSentinelPromotesAReplicaThatLags(t *testing.T) {
	t.Parallel()
	s := Sentinel(t, "--maxmemory", "64mb")
	client := s.Client()
	require.NoError(t, client.Set(t.Context(), "replicated", "before", 0).Err())
	old, replicas := s.Primary(), s.Replicas()
	require.Len(t, replicas, 2)
	replicated, err := client.Wait(t.Context(), 2, patience).Result()
	require.NoError(t, err)
	require.Equal(t, int64(2), replicated)
	s.CutOff()
	require.NoError(t, old.Client().Set(t.Context(), "k", "never replicated", 0).Err())
	old.Kill()
	for _, replica := range replicas {
		replica.Resume()
	}

	promoted := s.AwaitPromotion(old)
	require.Contains(t, replicas, promoted)
	require.Equal(t, promoted, s.Primary())
	require.Zero(t, promoted.Client().Exists(t.Context(), "k").Val())
	require.Equal(t, "before", promoted.Client().Get(t.Context(), "replicated").Val())
	require.Eventually(t, func() bool {
		return client.Set(t.Context(), "k", "after", 0).Err() == nil
	}, patience, pollEvery, "the client follows")
	require.Equal(t, "after", promoted.Client().Get(t.Context(), "k").Val())
	require.Equal(t, "67108864", promoted.Client().ConfigGet(t.Context(), "maxmemory").Val()["maxmemory"])
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
