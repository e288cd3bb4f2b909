package lease_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/leasetest"
	"github.com/fencedb/fencedb/internal/testenv"
	workers "github.com/fencedb/fencedb/internal/worker"
	"github.com/fencedb/fencedb/lease"
)

func TestMain(m *testing.M) {
	workers.Become(holders)
	testenv.Main(m)
}

// world is one test's view of the shared Redis: issuers made in it share resources with each other
// and with no other test.
type world struct {
	client    redis.UniversalClient
	namespace string
	faults    *faulty.Redis        // in front of client
	memory    *miniredis.Miniredis // the server, if it is one of a bubble
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return worldOn(t, testenv.Redis(t))
}

// worldOn gives a client like the one given, with faults of its own.
func worldOn(t *testing.T, base *redis.Client) *world {
	t.Helper()
	options := *base.Options()
	client := redis.NewClient(&options)
	t.Cleanup(func() { _ = client.Close() })
	w := &world{client: client, namespace: testenv.Namespace(t), faults: new(faulty.Redis)}
	client.AddHook(w.faults)
	return w
}

func (w *world) issuer(t *testing.T, cfg lease.Config) *lease.Issuer {
	t.Helper()
	if cfg.Namespace == "" {
		cfg.Namespace = w.namespace
	}
	i, err := lease.New(w.client, cfg)
	require.NoError(t, err)
	return i
}

// key is the name of a key of the resource; the resource needs no escaping.
func (w *world) key(resource, name string) string {
	return "lease:v1:{" + w.namespace + "/" + resource + "}:" + name
}

// inMemory is a world of its own in the caller's bubble.
func inMemory(t *testing.T) *world {
	t.Helper()
	client, server := leasetest.InMemory(t)
	w := &world{client: client, namespace: "test", faults: new(faulty.Redis), memory: server}
	client.AddHook(w.faults)
	return w
}

// try makes one attempt and fails the test if it is refused. The lease is given back at the end of
// the test.
func try(t *testing.T, i *lease.Issuer, resource string, opts ...lease.Option) *lease.Lease {
	t.Helper()
	l, err := i.Acquire(t.Context(), resource, append(slices.Clip(opts), lease.NoWait())...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Release(context.Background()) })
	return l
}

// subspace is a namespace below base for a subtest.
func subspace(t *testing.T, base string) string {
	_, name, _ := strings.Cut(t.Name(), "/")
	return base + "/" + name
}
