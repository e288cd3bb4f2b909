package lease_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/leasetest"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

func TestRefusalsHaveOneErrorEach(t *testing.T) {
	for answer, want := range map[string]error{
		"OOM command not allowed when used memory > 'maxmemory'.": &lease.RefusedError{Code: "OOM"},
		"NOREPLICAS Not enough good replicas to write.":           &lease.RefusedError{Code: "NOREPLICAS"},
		"READONLY You can't write against a read only replica.":   &lease.RefusedError{Code: "READONLY"},
		"MASTERDOWN Link with MASTER is down.":                    &lease.RefusedError{Code: "READONLY"},
		"LOADING Redis is loading the dataset in memory":          &lease.RefusedError{Code: "LOADING"},
		"CLUSTERDOWN The cluster is down":                         &lease.RefusedError{Code: "CLUSTERDOWN"},
		"TRYAGAIN Multiple keys request during rehashing of slot": &lease.RefusedError{Code: "CLUSTERDOWN"},
		"MOVED 3999 127.0.0.1:6381":                               &lease.RefusedError{Code: "CLUSTERDOWN"},
		"ASK 3999 127.0.0.1:6381":                                 &lease.RefusedError{Code: "CLUSTERDOWN"},
		"MISCONF Redis is configured to save RDB snapshots":       &lease.RefusedError{Code: "MISCONF"},
		"BUSY Redis is busy running a script.":                    &lease.RefusedError{Code: "BUSY"},
		"ERR max number of clients reached":                       &lease.RefusedError{Code: "BUSY"},
		"NOAUTH Authentication required.":                         &lease.RefusedError{Code: "NOPERM"},
		"WRONGPASS invalid username-password pair":                &lease.RefusedError{Code: "NOPERM"},
		"NOPERM this user has no permissions":                     &lease.RefusedError{Code: "NOPERM"},
	} {
		t.Run(answer[:6], func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				i := w.issuer(t, lease.Config{TTL: 9 * time.Second})
				l := try(t, i, "a")
				time.Sleep(time.Second)
				w.memory.SetError(answer)
				_, err := i.Acquire(t.Context(), "b", lease.NoWait())
				require.ErrorIs(t, err, want)
				require.NotErrorIs(t, err, lease.ErrUnreachable)
				_, err = w.issuer(t, lease.Config{TTL: 9 * time.Second, Replicas: 1}).Acquire(t.Context(), "b", lease.NoWait())
				require.ErrorIs(t, err, want, "with replicas that have to confirm")
				require.ErrorIs(t, l.Extend(t.Context()), want)
				require.NoError(t, l.Err(), "no news of the lease")
				w.memory.SetError("")
				require.NoError(t, l.Release(t.Context()))
			})
		})
	}
}

func TestAnOutageIsSatOutForOneTTL(t *testing.T) {
	for name, outage := range map[string]struct{ begin, end func(w *world) }{
		"silence":   {func(w *world) { w.faults.Always(faulty.LoseRequest) }, func(w *world) { w.faults.Always(faulty.None) }},
		"fail-over": {func(w *world) { w.memory.SetError("READONLY You can't write against a read only replica.") }, func(w *world) { w.memory.SetError("") }},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				i := w.issuer(t, lease.Config{TTL: 9 * time.Second})
				outage.begin(w)
				time.AfterFunc(8*time.Second, func() { outage.end(w) })
				l, err := i.Acquire(t.Context(), "a")
				require.NoError(t, err)
				require.NoError(t, l.Release(t.Context()))

				outage.begin(w)
				start := time.Now()
				_, err = i.Acquire(t.Context(), "a")
				require.Error(t, err)
				require.NotErrorIs(t, err, lease.ErrHeld)
				require.WithinRange(t, time.Now(), start.Add(9*time.Second), start.Add(12*time.Second))
				outage.end(w)
			})
		})
	}
}

// A Sentinel group is one deployment for whoever uses it: the client library has two kinds of
// clients of it.
func TestAllClientsOfASentinelGroupHearEachOther(t *testing.T) {
	t.Parallel()
	sentinel := testenv.Sentinel(t)
	o := sentinel.Options()
	clients := map[string]redis.UniversalClient{"failover": sentinel.Client()}
	for name, options := range map[string]redis.UniversalOptions{
		"by latency": {RouteByLatency: true},
		"randomly":   {RouteRandomly: true},
		"as cluster": {IsClusterMode: true},
	} {
		options.MasterName, options.Addrs = o.MasterName, o.SentinelAddrs
		client := redis.NewUniversalClient(&options)
		t.Cleanup(func() { _ = client.Close() })
		clients[name] = client
	}
	for holding, first := range clients {
		for waiting, second := range clients {
			t.Run(holding+", then "+waiting, func(t *testing.T) {
				cfg := lease.Config{TTL: time.Minute, Namespace: testenv.Namespace(t)}
				holder, waiter := (&world{client: first}).issuer(t, cfg), (&world{client: second}).issuer(t, cfg)
				l := try(t, holder, "a")
				grants := make(chan grant)
				wait(t.Context(), waiter, 0, grants)
				key := lease.Key{Namespace: cfg.Namespace, Resource: "a"}
				queue, wake := key, key
				queue.Field, wake.Field = "queue", "wake"
				never := func() bool { return false }
				leasetest.AwaitListener(t.Context(), sentinel.Primary().Client(), queue.String(), wake.String(), never)
				took := testenv.Stopwatch(t)
				require.NoError(t, l.Release(t.Context()))
				g := <-grants
				require.NoError(t, g.err)
				require.Less(t, took(), 4*time.Second, "it did not wait until it asks by itself")
				require.NoError(t, g.lease.Release(t.Context()))
			})
		}
	}
}

func TestOutOfMemory(t *testing.T) {
	t.Parallel()
	w := worldOn(t, testenv.OwnRedis(t).Client())
	i := w.issuer(t, lease.Config{TTL: time.Minute, RenewEvery: lease.Never})
	l := try(t, i, "a")
	require.NoError(t, w.client.ConfigSet(t.Context(), "maxmemory", "1").Err())
	_, err := i.Acquire(t.Context(), "b", lease.NoWait())
	require.ErrorIs(t, err, &lease.RefusedError{Code: "OOM"})
	require.Zero(t, w.client.Exists(t.Context(), w.key("b", "owner"), w.key("b", "fence")).Val())
	require.NoError(t, l.Extend(t.Context()), "what is held goes on")
	require.NoError(t, l.Release(t.Context()), "and can be given back")
}

// The release is let through, and calls: the waiter is told at once why it gets nothing.
func TestAReleaseWithoutMemoryCallsTheFirstWaiter(t *testing.T) {
	t.Parallel()
	w := worldOn(t, testenv.OwnRedis(t).Client())
	holder := try(t, w.issuer(t, lease.Config{TTL: time.Minute}), "a")
	i, grants := w.issuer(t, lease.Config{TTL: time.Minute}), make(chan grant)
	queued := func() bool { return w.snapshot(t, "a").waiters == 1 }
	wait(t.Context(), i, 0, grants)
	require.Eventually(t, queued, patience, ms)
	require.NoError(t, holder.Release(t.Context()))
	first := <-grants
	require.NoError(t, first.err)
	wait(t.Context(), i, 1, grants) // asks once: its process listens already
	require.Eventually(t, queued, patience, ms)

	require.NoError(t, w.client.ConfigSet(t.Context(), "maxmemory", "1").Err())
	require.NoError(t, first.lease.Release(t.Context()))
	took := testenv.Stopwatch(t)
	second := <-grants
	require.ErrorIs(t, second.err, &lease.RefusedError{Code: "OOM"})
	require.Less(t, took(), 4*time.Second, "it did not wait until it asks by itself")
}

func TestAReplicaGrantsNothing(t *testing.T) {
	t.Parallel()
	w := worldOn(t, testenv.OwnRedis(t).Client())
	i := w.issuer(t, lease.Config{TTL: time.Minute})
	require.NoError(t, w.client.Do(t.Context(), "REPLICAOF", "127.0.0.1", "1").Err())
	_, err := i.Acquire(t.Context(), "a", lease.NoWait())
	require.ErrorIs(t, err, &lease.RefusedError{Code: "READONLY"})
	grants := make(chan grant)
	wait(t.Context(), i, 0, grants)
	require.NoError(t, w.client.Do(t.Context(), "REPLICAOF", "NO", "ONE").Err())
	g := <-grants
	require.NoError(t, g.err)
	require.NoError(t, g.lease.Release(t.Context()))
}

func TestReplicasHaveToConfirm(t *testing.T) {
	t.Parallel()
	lonely := worldOn(t, testenv.OwnRedis(t).Client())
	strict := lonely.issuer(t, lease.Config{TTL: time.Minute, Replicas: 1, ReplicaTimeout: 20 * ms})
	for _, acquire := range []func() (*lease.Lease, error){
		func() (*lease.Lease, error) { return strict.Acquire(t.Context(), "a", lease.NoWait()) },
		func() (*lease.Lease, error) { return strict.Acquire(t.Context(), "a") },
	} {
		_, err := acquire()
		require.ErrorIs(t, err, &lease.RefusedError{Code: "NOREPLICAS"})
		require.Eventually(t, func() bool { return lonely.snapshot(t, "a").owner == "" }, patience, ms, "undone")
	}
	l := try(t, lonely.issuer(t, lease.Config{TTL: time.Minute}), "a")
	_, err := strict.Acquire(t.Context(), "a", lease.NoWait())
	require.ErrorIs(t, err, lease.ErrHeld, "a refusal needs no witnesses")
	require.NoError(t, l.Release(t.Context()))

	require.NoError(t, lonely.client.ConfigSet(t.Context(), "min-replicas-to-write", "1").Err())
	_, err = lonely.issuer(t, lease.Config{TTL: time.Minute}).Acquire(t.Context(), "a", lease.NoWait())
	require.ErrorIs(t, err, &lease.RefusedError{Code: "NOREPLICAS"})

	sharded := &world{client: testenv.Cluster(t).Client(), namespace: "cluster"}
	_, err = sharded.issuer(t, lease.Config{TTL: time.Minute, Replicas: 1, ReplicaTimeout: 20 * ms}).Acquire(t.Context(), "a", lease.NoWait())
	require.ErrorIs(t, err, &lease.RefusedError{Code: "NOREPLICAS"})
}

// A grant that no replica has can be forgotten; with Replicas it is not given.
func TestFailOver(t *testing.T) {
	t.Parallel()
	sentinel := testenv.Sentinel(t)
	w := &world{client: sentinel.Client(), namespace: "sentinel"}
	strict := w.issuer(t, lease.Config{TTL: time.Minute, Replicas: 1})
	plain := w.issuer(t, lease.Config{TTL: time.Minute})
	patient := lease.Config{TTL: time.Minute, Replicas: 1, ReplicaTimeout: 50 * time.Second}
	confirmed := try(t, w.issuer(t, patient), "confirmed")

	replicas := sentinel.Replicas()
	sentinel.CutOff()
	_, err := strict.Acquire(t.Context(), "forgotten", lease.NoWait())
	require.ErrorIs(t, err, &lease.RefusedError{Code: "NOREPLICAS"})
	forgotten := try(t, plain, "forgotten")

	old := sentinel.Primary()
	old.Kill()
	for _, replica := range replicas {
		replica.Resume()
	}
	again, err := plain.Acquire(t.Context(), "forgotten")
	require.NoError(t, err, "it waits for the new primary")
	sentinel.AwaitPromotion(old)
	require.Greater(t, again.Token(), forgotten.Token(), "the new primary never heard of that token")
	require.ErrorIs(t, forgotten.Extend(t.Context()), lease.ErrLost)
	require.NoError(t, confirmed.Extend(t.Context()), "this one it knows")
	require.NoError(t, again.Release(t.Context()))
}

func TestASlotOnItsWay(t *testing.T) {
	t.Parallel()
	cluster := testenv.Cluster(t)
	w := &world{client: cluster.Client(), namespace: "cluster"}
	i := w.issuer(t, lease.Config{TTL: time.Minute})
	slot := cluster.Slot(w.key("a", "owner"))
	require.NoError(t, try(t, i, "a").Release(t.Context()))
	cluster.BeginMove(slot)
	moved := make(chan grant, 1)
	wait(context.Background(), i, 0, moved)
	cluster.FinishMove(slot)
	g := <-moved
	require.NoError(t, g.err)
	cluster.MoveSlot(slot)
	// The nodes may contradict each other for a moment.
	settled := func(what error) bool { return !errors.Is(what, &lease.RefusedError{Code: "CLUSTERDOWN"}) }
	require.Eventually(t, func() bool { return settled(g.lease.Extend(t.Context())) }, time.Minute, 50*ms)
	require.Eventually(t, func() bool { return settled(g.lease.Release(t.Context())) }, time.Minute, 50*ms)
	require.ErrorIs(t, g.lease.Err(), lease.ErrReleased)

	replicated := lease.Config{TTL: time.Minute, Replicas: 1, ReplicaTimeout: 20 * ms}
	require.ErrorIs(t, acquireOn(t, w, replicated), &lease.RefusedError{Code: "NOREPLICAS"})
	cluster.MoveSlot(slot)
	require.ErrorIs(t, acquireOn(t, w, replicated), &lease.RefusedError{Code: "NOREPLICAS"},
		"the right server is found again")
}

func acquireOn(t *testing.T, w *world, cfg lease.Config) error {
	t.Helper()
	_, err := w.issuer(t, cfg).Acquire(t.Context(), "a")
	return err
}
