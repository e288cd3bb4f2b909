package lease_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
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
		took := testenv.Stopwatch(t)
		require.NoError(t, holder.Release(t.Context()))
		l, err := i.Acquire(t.Context(), holder.Resource())
		require.NoError(t, err)
		require.Less(t, took(), 4*time.Second, "woken, not by asking again")
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
		}, patience, ms)
		took := testenv.Stopwatch(t)
		require.NoError(t, holder.Release(t.Context()))
		g := <-grants
		require.NoError(t, g.err)
		require.Less(t, took(), 4*time.Second, "woken, not by asking again")
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
	require.Eventually(t, func() bool { return w.snapshot(t, "a").waiters == 1 }, patience, ms)
	require.Eventually(t, func() bool {
		channels, err := cluster.Owner(slot).Client().PubSubShardChannels(t.Context(), w.key("a", "wake")+":*").Result()
		return err == nil && len(channels) == 1
	}, patience, ms, "it listens")
	took := testenv.Stopwatch(t)
	cluster.MoveSlot(slot)
	require.Eventually(t, func() bool {
		channels, err := cluster.Owner(slot).Client().PubSubShardChannels(t.Context(), w.key("a", "wake")+":*").Result()
		return err == nil && len(channels) == 1
	}, patience, 10*ms, "the subscription follows")
	require.Less(t, took(), 4*time.Second, "before the waiter asks again by itself")
	require.NoError(t, holder.Release(t.Context()))
	g := <-grants
	require.NoError(t, g.err)
	require.Greater(t, g.lease.Token(), holder.Token())
	require.NoError(t, g.lease.Release(t.Context()))
}

// A master that gives a slot away ends a script that asks for a key that it has removed itself, as
// that of the queue when the only waiter leaves it. By then the permit is granted.
func TestAScriptThatEndsInTheMiddleIsSentAgain(t *testing.T) {
	t.Parallel()
	cluster := testenv.Cluster(t)
	w := &world{client: cluster.Client(), namespace: "cluster"}
	s := w.semaphore(t, 3, lease.Config{TTL: time.Minute, RenewEvery: lease.Never})
	for range 3 {
		tryPermit(t, s, "a")
	}
	grants := make(chan grant)
	go func() {
		l, err := s.Acquire(t.Context(), "a")
		grants <- grant{lease: l, err: err}
	}()
	owner := "semaphore:v1:{cluster/a}:owner"
	require.Eventually(t, func() bool {
		found, err := s.Inspect(t.Context(), "a")
		return err == nil && found.Waiters == 1
	}, patience, ms)
	cluster.BeginMove(cluster.Slot(owner))
	for _, permit := range w.client.ZRange(t.Context(), owner, 0, 1).Val() {
		require.NoError(t, w.client.ZAddXX(t.Context(), owner, redis.Z{Score: 1, Member: permit}).Err())
	}
	require.Eventually(t, func() bool { // the waiter asks, and the script removes its queue
		return w.client.Exists(t.Context(), "semaphore:v1:{cluster/a}:queue").Val() == 0
	}, patience, ms)
	cluster.FinishMove(cluster.Slot(owner))
	g := <-grants
	require.NoError(t, g.err)
	found, err := s.Inspect(t.Context(), "a")
	require.NoError(t, err)
	require.Len(t, found.Permits, 2)
	require.NoError(t, g.lease.Release(t.Context()))
}

func TestAMasterThatHangsEndsOnlyItsOwnLeases(t *testing.T) {
	t.Parallel()
	cluster := testenv.Cluster(t)
	w := &world{client: cluster.Client(), namespace: "cluster"}
	const ttl = 6 * time.Second
	i := w.issuer(t, lease.Config{TTL: ttl})
	owner := func(l *lease.Lease) *testenv.RedisServer {
		return cluster.Owner(cluster.Slot(w.key(l.Resource(), "owner")))
	}
	var all lease.Leases
	for n := range 20 {
		all = append(all, try(t, i, "a"+itoa(int64(n))))
	}
	hangs := owner(all[0])
	paused := time.Now()
	require.NoError(t, hangs.Client().ClientPause(t.Context(), 3*ttl).Err())
	<-all[0].Context().Done()
	require.ErrorIs(t, all[0].Err(), lease.ErrUnreachable)
	for _, l := range all {
		if owner(l) != hangs {
			require.NoError(t, l.Err())
			require.Greater(t, l.ValidUntil(), paused.Add(ttl), "it was renewed")
		}
	}
}

// killMaster kills the master that has the resource. It has one replica, which the others make the
// master.
func killMaster(t *testing.T, w *world, cluster *testenv.ClusterServers, resource string) {
	t.Helper()
	key := w.key(resource, "owner")
	master := cluster.Owner(cluster.Slot(key))
	reading := cluster.Replicate(master).Client().Conn()
	defer reading.Close()
	require.NoError(t, reading.ReadOnly(t.Context()).Err())
	held := master.Client().Exists(t.Context(), key).Val()
	require.Eventually(t, func() bool { return reading.Exists(t.Context(), key).Val() == held }, patience, ms)
	master.Kill()
}

// neverLooks returns a client that knows the masters, and looks for others only when it is told to.
func neverLooks(t *testing.T, cluster *testenv.ClusterServers) *redis.ClusterClient {
	t.Helper()
	options := cluster.Options()
	options.ClusterStateReloadInterval = time.Hour
	client := redis.NewClusterClient(options)
	t.Cleanup(func() { _ = client.Close() })
	require.NoError(t, client.Ping(t.Context()).Err())
	return client
}

// A client of a Cluster learns of a new master from the answer of a server, and one that is dead
// answers nothing.
func TestALeaseSurvivesTheDeathOfAMasterOfItsCluster(t *testing.T) {
	t.Parallel()
	cluster := testenv.Cluster(t)
	w := &world{client: neverLooks(t, cluster), namespace: "cluster"}
	l := try(t, w.issuer(t, lease.Config{TTL: time.Minute, RenewEvery: time.Second}), "a")
	killMaster(t, w, cluster, "a")
	died := time.Now()
	require.Eventually(t, func() bool { return l.ValidUntil().After(died.Add(time.Minute)) }, 59*time.Second, 10*ms)
	require.NoError(t, l.Err())
	require.NoError(t, l.Release(t.Context()))
}

// A grant that replicas confirm goes to the master itself, and so do the answers that a client of a
// Cluster follows otherwise. That the new master has no replica is its answer.
func TestAGrantThatReplicasConfirmFindsTheNewMaster(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(w *world, cluster *testenv.ClusterServers){
		"after the master died":    func(w *world, cluster *testenv.ClusterServers) { killMaster(t, w, cluster, "a") },
		"after the slot was moved": func(w *world, cluster *testenv.ClusterServers) { cluster.MoveSlot(cluster.Slot(w.key("a", "owner"))) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := testenv.Cluster(t)
			w := &world{client: neverLooks(t, cluster), namespace: "cluster"}
			i := w.issuer(t, lease.Config{TTL: time.Minute, Replicas: 1})

			change(w, cluster)

			_, err := i.Acquire(t.Context(), "a")
			require.ErrorIs(t, err, &lease.RefusedError{Code: "NOREPLICAS"})
		})
	}
}

// listens reports whether a waiter's process is subscribed on the server that has the resource.
func listens(t *testing.T, w *world, cluster *testenv.ClusterServers, resource string) bool {
	owner := cluster.Owner(cluster.Slot(w.key(resource, "owner")))
	names := w.key(resource, "wake") + ":*"
	sharded, err := owner.Client().PubSubShardChannels(t.Context(), names).Result()
	require.NoError(t, err)
	plain, err := owner.Client().PubSubChannels(t.Context(), names).Result() // for a client that was given its slots
	require.NoError(t, err)
	return len(sharded)+len(plain) == 1
}

// requireWoken hands the lease over to a waiter that is woken, and does not come by asking again.
func requireWoken(t *testing.T, w *world, cluster *testenv.ClusterServers,
	holder *lease.Lease, grants chan grant) *lease.Lease {
	t.Helper()
	require.Eventually(t, func() bool {
		return listens(t, w, cluster, holder.Resource()) && w.snapshot(t, holder.Resource()).waiters == 1
	}, patience, ms, "the waiter listens")
	took := testenv.Stopwatch(t)
	require.NoError(t, holder.Release(t.Context()))
	g := <-grants
	require.NoError(t, g.err)
	require.Less(t, took(), 4*time.Second, "woken, not by asking again")
	return g.lease
}

// The client library closes its client of a master that is not in the topology, and makes another
// when it returns.
func TestAMasterThatLeavesAndReturnsIsListenedToAgain(t *testing.T) {
	t.Parallel()
	cluster := testenv.Cluster(t)
	options, plain := cluster.Options(), cluster.Client()
	var absent atomic.Pointer[string]
	options.ClusterSlots = func(ctx context.Context) ([]redis.ClusterSlot, error) {
		//nolint:staticcheck // deprecated, and the option takes what it answers
		all, err := plain.ClusterSlots(ctx).Result()
		var present []redis.ClusterSlot
		for _, slot := range all {
			if addr := absent.Load(); addr == nil || slot.Nodes[0].Addr != *addr {
				present = append(present, slot)
			}
		}
		return present, err
	}
	client := redis.NewClusterClient(options)
	t.Cleanup(func() { _ = client.Close() })
	w := &world{client: client, namespace: "cluster"}
	i := w.issuer(t, lease.Config{TTL: 10 * time.Minute, RenewEvery: lease.Never})
	key := w.key("a", "owner")
	addr := cluster.Owner(cluster.Slot(key)).Addr()
	master := func() *redis.Client {
		client, err := client.MasterForKey(t.Context(), key)
		require.NoError(t, err)
		return client
	}
	leaveAndReturn := func() {
		before := master()
		absent.Store(&addr)
		require.Eventually(t, func() bool {
			client.ReloadState(t.Context())
			return errors.Is(before.Ping(t.Context()).Err(), redis.ErrClosed)
		}, 2*time.Minute, 100*ms, "go-redis gives a node a minute")
		absent.Store(nil)
		require.Eventually(t, func() bool {
			client.ReloadState(t.Context())
			now := master()
			return now.Options().Addr == before.Options().Addr && now != before
		}, patience, 100*ms)
	}

	holder := try(t, i, "a")
	grants := make(chan grant)
	wait(context.Background(), i, 0, grants)
	holder = requireWoken(t, w, cluster, holder, grants)

	wait(context.Background(), i, 1, grants) // while somebody waits, and for those who come later
	require.Eventually(t, func() bool { return listens(t, w, cluster, "a") }, patience, ms)
	leaveAndReturn()
	holder = requireWoken(t, w, cluster, holder, grants)
	wait(context.Background(), i, 2, grants)
	holder = requireWoken(t, w, cluster, holder, grants)

	require.NoError(t, holder.Release(t.Context()))
}

// A connection that breaks had channels of several slots, for which a Cluster takes one request
// each.
func TestASubscriptionOfSeveralSlotsIsMadeAgain(t *testing.T) {
	t.Parallel()
	cluster := testenv.Cluster(t)
	w := &world{client: cluster.Client(), namespace: "cluster"}
	i := w.issuer(t, lease.Config{TTL: time.Minute})
	server := cluster.Nodes()[0]
	var held lease.Leases
	var waiting []chan grant
	for n := 0; len(held) < 4; n++ {
		resource := fmt.Sprint("a", n)
		if cluster.Owner(cluster.Slot(w.key(resource, "owner"))) != server {
			continue
		}
		held = append(held, try(t, i, resource))
		grants := make(chan grant, 1)
		waiting = append(waiting, grants)
		go func() {
			l, err := i.Acquire(context.Background(), resource)
			grants <- grant{lease: l, err: err, at: time.Now()}
		}()
		require.Eventually(t, func() bool { return listens(t, w, cluster, resource) }, patience, ms)
	}
	require.Positive(t, server.Client().ClientKillByFilter(t.Context(), "TYPE", "pubsub").Val())
	for n, l := range held {
		require.NoError(t, requireWoken(t, w, cluster, l, waiting[n]).Release(t.Context()))
	}
}

// On a Cluster the resources are acquired one after the other. What was granted before one was
// refused is given back, and the call then waits under its own name, although one of its first
// requests went unanswered.
func TestAcquireAllWaitsOnAClusterAfterALostReply(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]faulty.Fault{"lost reply": faulty.LoseReply, "lost request": faulty.LoseRequest} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := testenv.Cluster(t)
			client := cluster.Client()
			var network faulty.Redis
			client.AddHook(&network)
			i := (&world{client: client, namespace: "cluster"}).issuer(t, lease.Config{TTL: time.Minute})
			others := (&world{client: cluster.Client(), namespace: "cluster"}).issuer(t, lease.Config{TTL: time.Minute})
			holder := try(t, others, "b")
			network.Next("acquire", "a", 1, fault)
			grants := make(chan error, 1)
			go func() {
				leases, err := i.AcquireAll(context.Background(), []string{"a", "b"})
				if err == nil {
					err = leases.Release(context.Background())
				}
				grants <- err
			}()
			w := &world{client: cluster.Client(), namespace: "cluster"}
			require.Eventually(t, func() bool { return len(grants) > 0 || w.snapshot(t, "b").waiters == 1 }, patience, ms)
			require.Empty(t, grants, "it waits")
			require.NoError(t, holder.Release(t.Context()))
			require.NoError(t, <-grants)
		})
	}
}
