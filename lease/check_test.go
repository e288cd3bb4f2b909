package lease_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

func check(t *testing.T, client redis.UniversalClient) (lease.Health, error) {
	t.Helper()
	i, err := lease.New(client, lease.Config{TTL: time.Second})
	require.NoError(t, err)
	return i.Check(t.Context())
}

func codes(h lease.Health) (all []lease.WarningCode) {
	for _, s := range h.Servers {
		for _, w := range s.Warnings {
			all = append(all, w.Code)
		}
	}
	return all
}

func TestCheckOfAServerAsRecommended(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t, "--appendonly", "yes", "--maxmemory", "100mb", "--maxmemory-policy", "noeviction")
	h, err := check(t, server.Client())
	require.NoError(t, err)
	require.Empty(t, h.Warnings())
	require.Len(t, h.Servers, 1)
	s := h.Servers[0]
	require.Equal(t, server.Addr(), s.Addr)
	require.Equal(t, "master", s.Role)
	require.Equal(t, "noeviction", s.Eviction)
	require.NotEmpty(t, s.Version)
	require.True(t, s.AOF)
	require.True(t, s.Limited)
	require.Less(t, s.Clock.Abs(), time.Second)
	require.Positive(t, s.RoundTrip)
}

func TestCheckOfAServerThatMayForget(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t, "--maxmemory-policy", "allkeys-lru")
	h, err := check(t, server.Client())
	require.NoError(t, err)
	require.Equal(t, []lease.WarningCode{lease.WarnUnlogged, lease.WarnEviction}, codes(h), "no log, and eviction once there is a limit")

	for _, policy := range []string{"allkeys-lru", "allkeys-random", "volatile-lru", "volatile-ttl"} {
		require.NoError(t, server.Client().ConfigSet(t.Context(), "maxmemory", "100mb").Err())
		require.NoError(t, server.Client().ConfigSet(t.Context(), "maxmemory-policy", policy).Err())
		h, err = check(t, server.Client())
		require.ErrorIs(t, err, lease.ErrUnfit, policy)
		require.ErrorContains(t, err, policy)
		require.Equal(t, policy, h.Servers[0].Eviction, "what was found comes with the error")
	}
}

func TestCheckOfAReplica(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	require.NoError(t, server.Client().Do(t.Context(), "REPLICAOF", "127.0.0.1", "1").Err())
	_, err := check(t, server.Client())
	require.ErrorIs(t, err, lease.ErrUnfit)
	require.ErrorIs(t, err, lease.ErrReadOnly)
}

func TestCheckWithoutAnswer(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	server.Kill()
	_, err := check(t, server.Client())
	require.ErrorIs(t, err, lease.ErrUnreachable)

	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	i, err := lease.New(client, lease.Config{TTL: time.Second})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = i.Check(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

func TestCheckWhereInfoIsForbidden(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	require.NoError(t, server.Client().Do(t.Context(), "ACL", "SETUSER", "default", "-info").Err())
	h, err := check(t, server.Client())
	require.NoError(t, err)
	require.Equal(t, []lease.WarningCode{lease.WarnHidden}, codes(h))
	require.Contains(t, h.Warnings()[0], server.Addr())
}

func TestCheckOfReplicasThatNobodyWaitsFor(t *testing.T) {
	t.Parallel()
	sentinel := testenv.Sentinel(t)
	h, err := check(t, sentinel.Client())
	require.NoError(t, err)
	require.Equal(t, 2, h.Servers[0].Replicas)
	require.Contains(t, codes(h), lease.WarnReplicas)
	require.NoError(t, sentinel.Primary().Client().ConfigSet(t.Context(), "min-replicas-to-write", "1").Err())
	h, err = check(t, sentinel.Client())
	require.NoError(t, err)
	require.NotContains(t, codes(h), lease.WarnReplicas)
}

func TestCheckOfAClusterAsksEveryMaster(t *testing.T) {
	t.Parallel()
	cluster := testenv.Cluster(t)
	h, err := check(t, cluster.Client())
	require.NoError(t, err)
	require.Len(t, h.Servers, 3)
	for _, node := range cluster.Nodes() {
		node.Kill()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*ms)
	defer cancel()
	i, err := lease.New(redis.NewClusterClient(cluster.Options()), lease.Config{TTL: time.Second})
	require.NoError(t, err)
	_, err = i.Check(ctx)
	require.ErrorIs(t, err, lease.ErrUnreachable)
}

func TestCheckNoticesAWrongClock(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.memory.SetTime(time.Now().Add(-time.Hour))
		h, err := check(t, w.client)
		require.NoError(t, err)
		require.Equal(t, -time.Hour, h.Servers[0].Clock.Round(time.Minute))
		require.Contains(t, codes(h), lease.WarnClock)
	})
}
