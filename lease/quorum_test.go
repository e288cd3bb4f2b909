package lease_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/leasetest"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

// quorum is three independent servers.
type quorum struct {
	servers []*testenv.RedisServer
	clients []redis.UniversalClient
}

func newQuorum(t *testing.T) *quorum {
	t.Helper()
	q := new(quorum)
	for range 3 {
		server := testenv.OwnRedis(t)
		q.servers = append(q.servers, server)
		q.clients = append(q.clients, server.Client())
	}
	return q
}

func (q *quorum) issuer(t *testing.T, cfg lease.Config) *lease.Issuer {
	t.Helper()
	i, err := lease.NewQuorum(q.clients, cfg)
	require.NoError(t, err)
	return i
}

func (q *quorum) forSubtests() leasetest.NewIssuer {
	return func(t *testing.T, cfg lease.Config) *lease.Issuer {
		cfg.Namespace = subspace(t, "quorum")
		return q.issuer(t, cfg)
	}
}

func TestContractOnAQuorum(t *testing.T) {
	t.Parallel()
	leasetest.Run(t, newQuorum(t).forSubtests())
}

func TestContractOnAQuorumWithAMinorityDead(t *testing.T) {
	t.Parallel()
	q := newQuorum(t)
	q.servers[1].Kill()
	leasetest.Run(t, q.forSubtests())
}

func TestNewQuorumRefuses(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // never dialled
	defer client.Close()
	for name, clients := range map[string][]redis.UniversalClient{
		"none": nil,
		"one":  {client},
		"even": {client, client, client, client},
		"nil":  {client, nil, client},
	} {
		_, err := lease.NewQuorum(clients, lease.Config{TTL: time.Second})
		require.ErrorIs(t, err, lease.ErrInvalid, name)
	}
	three := []redis.UniversalClient{client, client, client}
	_, err := lease.NewQuorum(three, lease.Config{})
	require.ErrorIs(t, err, lease.ErrInvalid)
	_, err = lease.NewQuorum(three, lease.Config{TTL: time.Second, Replicas: 1})
	require.ErrorIs(t, err, lease.ErrInvalid)
}

// The member that issues the greatest tokens is not always in the majority. Each majority knows of the one before it.
func TestTokensOfAQuorumRiseWhateverMajorityGrants(t *testing.T) {
	t.Parallel()
	q := newQuorum(t)
	i := q.issuer(t, lease.Config{TTL: 10 * time.Second, Namespace: "q"})
	ahead := time.Now().Add(time.Hour).UnixMicro()
	require.NoError(t, q.clients[0].Set(t.Context(), "lease:v1:{q/a}:fence", ahead, 0).Err())
	var last int64
	for n := range 12 {
		absent := q.servers[n%3]
		absent.Pause()
		l, err := i.Acquire(t.Context(), "a", lease.WaitAtMost(20*time.Second))
		require.NoError(t, err)
		require.Greater(t, l.Token(), last)
		last = l.Token()
		require.NoError(t, l.Extend(t.Context()))
		verdict, err := l.Verify(t.Context())
		require.NoError(t, err)
		require.Equal(t, lease.Current, verdict)
		require.NoError(t, l.Release(t.Context()))
		absent.Resume()
	}
	require.Greater(t, last, ahead)
}

// The member with the greatest token of a revocation may be gone when the next holder comes.
func TestARevocationIsKnownToAMajority(t *testing.T) {
	t.Parallel()
	q := newQuorum(t)
	i := q.issuer(t, lease.Config{TTL: 10 * time.Second, Namespace: "q"})
	ahead := time.Now().Add(time.Hour).UnixMicro()
	require.NoError(t, q.clients[0].Set(t.Context(), "lease:v1:{q/a}:fence", ahead, 0).Err())
	r, err := i.Revoke(t.Context(), "a")
	require.NoError(t, err)
	require.Greater(t, r.Token(), ahead)
	q.servers[0].Kill()
	require.Greater(t, try(t, i, "a").Token(), r.Token())
}

func TestAQuorumWithoutAMajority(t *testing.T) {
	t.Parallel()
	q := newQuorum(t)
	i := q.issuer(t, lease.Config{TTL: 20 * time.Second, RenewTimeout: 200 * ms, Namespace: "q"})
	l := try(t, i, "a")
	h, err := i.Check(t.Context())
	require.NoError(t, err)
	require.Len(t, h.Servers, 3)
	require.Empty(t, h.Servers[0].Warnings[1:], "only that it does not log its writes")

	q.servers[0].Kill()
	h, err = i.Check(t.Context())
	require.NoError(t, err, "a minority may fail")
	require.Len(t, h.Servers[0].Warnings, 1)
	require.Empty(t, h.Servers[0].Version)
	require.NoError(t, l.Extend(t.Context()))

	q.servers[1].Kill()
	_, err = i.Check(t.Context())
	require.ErrorIs(t, err, lease.ErrUnreachable)
	_, err = i.TryAcquire(t.Context(), "b")
	require.ErrorIs(t, err, lease.ErrUnreachable)
	_, err = l.Verify(t.Context())
	require.ErrorIs(t, err, lease.ErrUnreachable)
	_, err = i.Revoke(t.Context(), "a")
	require.ErrorIs(t, err, lease.ErrUnreachable)
	require.NoError(t, l.Err())
	_, err = i.Heal(t.Context(), l, l.Token())
	require.ErrorIs(t, err, lease.ErrUnreachable)
}

func TestAMemberThatForgetsIsOutvoted(t *testing.T) {
	t.Parallel()
	q := newQuorum(t)
	i := q.issuer(t, lease.Config{TTL: time.Minute, Namespace: "q", RenewEvery: lease.Never})
	l := try(t, i, "a")
	require.NoError(t, q.clients[0].FlushAll(t.Context()).Err())
	require.NoError(t, l.Extend(t.Context()))
	_, err := i.TryAcquire(t.Context(), "a")
	require.ErrorIs(t, err, lease.ErrHeld)
	require.Zero(t, q.clients[0].Exists(t.Context(), "lease:v1:{q/a}:owner").Val(), "what the minority granted was given back")
	found, err := i.Inspect(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, l.LeaseID(), found.Holder)

	require.NoError(t, q.clients[1].FlushAll(t.Context()).Err())
	require.ErrorIs(t, l.Extend(t.Context()), lease.ErrLost)
	require.ErrorIs(t, context.Cause(l.Context()), lease.ErrLost)
}
