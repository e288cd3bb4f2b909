package lease_test

import (
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/leasetest"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

func TestContractOnRedis(t *testing.T) {
	t.Parallel()
	leasetest.Run(t, newWorld(t).forSubtests())
}

func TestContractOnRedisWithHashedResources(t *testing.T) {
	t.Parallel()
	issuer := newWorld(t).forSubtests()
	leasetest.Run(t, func(t *testing.T, cfg lease.Config) *lease.Issuer {
		cfg.HashResources = true
		return issuer(t, cfg)
	})
}

func TestContractWithLostReplies(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.faults.First(faulty.LoseReply)
	leasetest.Run(t, w.forSubtests())
}

func TestContractWithLostRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.faults.First(faulty.LoseRequest)
	leasetest.Run(t, w.forSubtests())
}

func TestContractOnMiniredis(t *testing.T) {
	t.Parallel()
	server := miniredis.RunT(t)
	server.ClockTTL(true)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	leasetest.Run(t, (&world{client: client, namespace: "contract"}).forSubtests())
}

func (w *world) forSubtests() leasetest.NewIssuer {
	return func(t *testing.T, cfg lease.Config) *lease.Issuer {
		cfg.Namespace = subspace(t, w.namespace)
		return w.issuer(t, cfg)
	}
}

func TestContractOnCluster(t *testing.T) {
	t.Parallel()
	client := testenv.Cluster(t).Client()
	leasetest.Run(t, (&world{client: client, namespace: "contract"}).forSubtests())
}

func TestContractOnSentinel(t *testing.T) {
	t.Parallel()
	client := testenv.Sentinel(t).Client()
	leasetest.Run(t, (&world{client: client, namespace: "contract"}).forSubtests())
}
