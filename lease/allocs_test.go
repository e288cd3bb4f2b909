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

// On a client that ends its requests with their contexts, and on one that does not; of a caller
// that can be cancelled, and of one that cannot.
func TestAllocations(t *testing.T) {
	for _, bounded := range []bool{true, false} {
		options := *testenv.Redis(t).Options()
		options.ContextTimeoutEnabled = bounded
		client := redis.NewClient(&options)
		t.Cleanup(func() { _ = client.Close() })
		i, err := lease.New(client, lease.Config{TTL: time.Minute, Namespace: testenv.Namespace(t)})
		require.NoError(t, err)
		cancellable, cancel := context.WithCancel(context.Background())
		defer cancel()
		for name, ctx := range map[string]context.Context{"endless": context.Background(), "cancellable": cancellable} {
			once := func() {
				l, err := i.Acquire(ctx, "a")
				require.NoError(t, err)
				require.NoError(t, l.Release(ctx))
			}
			least := testing.AllocsPerRun(100, once)
			for range 4 { // what else the process does is counted too
				least = min(least, testing.AllocsPerRun(100, once))
			}
			t.Logf("bounded %v, %s: %v", bounded, name, least)
			require.LessOrEqual(t, least, 50.0, "bounded %v, %s", bounded, name)
		}
	}
}
