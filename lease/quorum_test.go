package lease_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
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

func (q *quorum) forSubtests() newIssuer {
	return func(t *testing.T, cfg lease.Config) *lease.Issuer {
		cfg.Namespace = subspace(t, "quorum")
		return q.issuer(t, cfg)
	}
}

func TestContractOnAQuorum(t *testing.T) {
	t.Parallel()
	runContract(t, newQuorum(t).forSubtests())
}

func TestContractOnAQuorumWithAMinorityDead(t *testing.T) {
	t.Parallel()
	q := newQuorum(t)
	q.servers[1].Kill()
	runContract(t, q.forSubtests())
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

// The member that issues the greatest tokens is not always in the majority. Each majority knows of
// the one before it.
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

// The member that released at the first attempt answers gone at the second.
func TestAReleaseThatOneMemberRefusesForAWhileIsNoLoss(t *testing.T) {
	t.Parallel()
	q := newQuorum(t)
	i := q.issuer(t, lease.Config{TTL: time.Minute, Namespace: "q", RenewEvery: lease.Never})
	l := try(t, i, "a")
	require.NoError(t, q.clients[2].FlushAll(t.Context()).Err())
	require.NoError(t, q.clients[1].ReplicaOf(t.Context(), "127.0.0.1", "1").Err()) // READONLY
	released := make(chan error, 1)
	go func() { released <- l.Release(context.Background()) }()
	require.Eventually(t, func() bool { return q.clients[0].Exists(t.Context(), "lease:v1:{q/a}:owner").Val() == 0 }, patience, ms)
	require.NoError(t, q.clients[1].ReplicaOf(t.Context(), "NO", "ONE").Err())
	require.NoError(t, <-released)
}

func TestAQuorumWithoutAMajority(t *testing.T) {
	t.Parallel()
	q := newQuorum(t)
	i := q.issuer(t, lease.Config{TTL: 20 * time.Second, RenewTimeout: 2 * time.Second, Namespace: "q"})
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
	var held *lease.HeldError
	require.ErrorAs(t, err, &held)
	require.Greater(t, held.RetryAfter, time.Second, "as the majority says")
	require.NotEmpty(t, held.Holder)
	require.Eventually(t, func() bool { return q.clients[0].Exists(t.Context(), "lease:v1:{q/a}:owner").Val() == 0 }, patience, ms,
		"what the minority granted is given back")
	found, err := i.Inspect(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, l.LeaseID(), found.Holder)

	require.NoError(t, q.clients[1].FlushAll(t.Context()).Err())
	require.ErrorIs(t, l.Extend(t.Context()), lease.ErrLost)
	require.ErrorIs(t, context.Cause(l.Context()), lease.ErrLost)
}

// The third member is 120 ms further away than the others, which do not agree.
func TestASlowMemberDecidesWhereTheOthersDisagree(t *testing.T) {
	for name, begin := range map[string]func(*testing.T, *world){
		"one does not answer": func(_ *testing.T, w *world) { w.faults.Always(faulty.LoseRequest) },
		"one has forgotten": func(t *testing.T, w *world) {
			require.NoError(t, w.client.FlushAll(t.Context()).Err())
		},
		"one says that another holds": func(t *testing.T, w *world) {
			require.NoError(t, w.client.FlushAll(t.Context()).Err())
			other := w.issuer(t, lease.Config{TTL: time.Minute})
			try(t, other, "a")
			try(t, other, "b")
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				worlds := []*world{inMemory(t), inMemory(t), inMemory(t)}
				var clients []redis.UniversalClient
				for _, w := range worlds {
					clients = append(clients, w.client)
				}
				i, err := lease.NewQuorum(clients, lease.Config{TTL: 12 * time.Second, Namespace: "test", RenewEvery: lease.Never})
				require.NoError(t, err)
				delay(worlds[2], 120*ms)
				l := try(t, i, "a")
				begin(t, worlds[0])

				require.NoError(t, l.Extend(t.Context()))
				verdict, err := l.Verify(t.Context())
				require.NoError(t, err)
				require.Equal(t, lease.Current, verdict)
				found, err := i.Inspect(t.Context(), "a")
				require.NoError(t, err)
				require.Equal(t, l.LeaseID(), found.Holder)
				try(t, i, "b")
				require.NoError(t, l.Release(t.Context()))
			})
		})
	}
}

func TestAClusterAsAMemberOfAQuorumGrantsSeveralResources(t *testing.T) {
	t.Parallel()
	q := newQuorum(t)
	q.clients[0] = testenv.Cluster(t).Client()
	q.servers[1].Kill()
	ls, err := q.issuer(t, lease.Config{TTL: time.Minute, Namespace: "q"}).AcquireAll(t.Context(), []string{"a", "b", "c"})
	require.NoError(t, err)
	require.NoError(t, ls.Release(t.Context()))
}

// lateMember is a member that hears of withdrawals only when deliver is called, long after they
// were given up.
type lateMember struct {
	redis.Hook
	mu   sync.Mutex
	late []func()
}

func (s *lateMember) DialHook(next redis.DialHook) redis.DialHook { return next }
func (s *lateMember) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (s *lateMember) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if args := cmd.Args(); len(args) != 13 || args[9] != "sure" && args[9] != "unsure" {
			return next(ctx, cmd)
		}
		s.mu.Lock()
		s.late = append(s.late, func() { _ = next(context.WithoutCancel(ctx), redis.NewCmd(ctx, cmd.Args()...)) })
		s.mu.Unlock()
		<-ctx.Done()
		cmd.SetErr(ctx.Err())
		return ctx.Err()
	}
}

func (s *lateMember) deliver() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, command := range s.late {
		command()
	}
	return len(s.late)
}

func TestALateWithdrawalOfALostVoteSparesTheNext(t *testing.T) {
	t.Parallel()
	q := newQuorum(t)
	cfg := lease.Config{TTL: time.Minute, RenewTimeout: time.Second, Namespace: "q", RenewEvery: lease.Never}
	var rivals []*lease.Lease
	for _, client := range q.clients[:2] {
		i, err := lease.New(client, cfg)
		require.NoError(t, err)
		rivals = append(rivals, try(t, i, "a"))
	}
	_, err := q.issuer(t, cfg).TryAcquire(t.Context(), "a")
	require.ErrorIs(t, err, lease.ErrHeld, "and the third member knows all scripts")
	late := new(lateMember)
	q.clients[2].AddHook(late)

	type answer struct {
		l   *lease.Lease
		err error
	}
	answers := make(chan answer)
	go func() {
		l, err := q.issuer(t, cfg).Acquire(t.Context(), "a")
		answers <- answer{l, err}
	}()
	require.Eventually(t, func() bool {
		late.mu.Lock()
		defer late.mu.Unlock()
		return len(late.late) > 0
	}, 20*time.Second, ms)
	for _, rival := range rivals {
		require.NoError(t, rival.Release(t.Context()))
	}
	a := <-answers
	require.NoError(t, a.err)

	require.NotZero(t, late.deliver())
	for n, client := range q.clients {
		require.Contains(t, client.Get(t.Context(), "lease:v1:{q/a}:owner").Val(), a.l.LeaseID().String(), "member %d", n)
	}
}

// A member that hangs is waited for a moment with each question, so there is one for all resources.
func TestAMemberThatHangsDelaysManyResourcesNoMoreThanOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		worlds := []*world{inMemory(t), inMemory(t), inMemory(t)}
		var clients []redis.UniversalClient
		for _, w := range worlds {
			clients = append(clients, w.client)
		}
		i, err := lease.NewQuorum(clients, lease.Config{TTL: 10 * time.Second})
		require.NoError(t, err)
		worlds[2].faults.Always(faulty.Hang)

		took := func(n int) time.Duration {
			began := time.Now()
			ls, err := i.TryAcquireAll(t.Context(), many(n))
			require.NoError(t, err)
			took := time.Since(began)
			require.NoError(t, ls.Release(t.Context()))
			return took
		}
		require.Equal(t, took(1), took(300))

		rival, err := lease.New(worlds[1].client, lease.Config{TTL: time.Minute})
		require.NoError(t, err)
		_ = try(t, rival, "r299")
		began := time.Now()
		_, err = i.TryAcquireAll(t.Context(), many(300))
		require.ErrorIs(t, err, lease.ErrHeld)
		require.Less(t, time.Since(began), time.Second, "what a minority granted is given back at once")
	})
}
