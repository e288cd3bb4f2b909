package integration

// What is said, and what goes on, while one of the two servers hangs.

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

// The resource is free after one TTL, and whoever reads the error looks at the right server: nobody
// else has the resource.
func TestASealThatHangsNamesPostgres(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t)
	server.Pool() // which migrates
	for name, first := range map[string]func(ctx context.Context, pool *pgxpool.Pool, issuer *lease.Issuer) error{
		"on a connection that has sealed": func(ctx context.Context, _ *pgxpool.Pool, issuer *lease.Issuer) error {
			l, err := issuer.Acquire(ctx, "table:12")
			if err != nil {
				return err
			}
			return l.Release(ctx)
		},
		"on one that has not": func(ctx context.Context, pool *pgxpool.Pool, _ *lease.Issuer) error { return pool.Ping(ctx) },
		"on none":             func(context.Context, *pgxpool.Pool, *lease.Issuer) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy := faulty.NewPostgresProxy(t, server.URL())
			pool, err := pgxpool.New(t.Context(), proxy.URL())
			require.NoError(t, err)
			t.Cleanup(pool.Close)
			t.Cleanup(proxy.Sever)
			cfg := lease.Config{TTL: 6 * time.Second, Namespace: testenv.Namespace(t), Seal: fencedb.Sealer(pool)}
			issuer, err := lease.New(testenv.Redis(t), cfg)
			require.NoError(t, err)
			require.NoError(t, first(t.Context(), pool, issuer))
			proxy.Hang(true)

			_, err = issuer.Acquire(t.Context(), "table:12", lease.NoWait())

			if name != "on none" {
				require.ErrorContains(t, err, "the data store has not answered within the TTL of the lease (6s)")
			}
			require.NotContains(t, err.Error(), "redis")
			require.False(t, lease.IsLost(err), "%v", err)
			require.Equal(t, guard.Unavailable, guard.Answer(err), "%v", err)
		})
	}
}

// A lease is full from its first moment, also one that was waited for: nothing has to be asked of
// Redis before the work.
func TestATransactionRightAfterAHandOverNeedsNoRedis(t *testing.T) {
	t.Parallel()
	pool, server := testenv.OwnPostgres(t).Pool(), testenv.OwnRedis(t)
	var next *lease.Lease
	require.NoError(t, whenCalled(t, server, "table:12", func(waiter *lease.Issuer) (err error) {
		next, err = waiter.Acquire(t.Context(), "table:12")
		return err
	}))

	server.Pause()
	defer server.Resume()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	require.NoError(t, fencedb.Tx(ctx, pool, next, func(pgx.Tx) error { return nil }))
	require.NoError(t, ctx.Err())
}

// A desk releases as well, which Redis does not answer: the call ends with its context.
func TestADesksTransactionRightAfterAHandOverEndsWithItsContext(t *testing.T) {
	t.Parallel()
	pool := testenv.OwnPostgres(t).Pool()
	for name, c := range map[string]struct {
		after time.Duration // that Redis hangs, the context ends
		err   error
	}{
		"before it commits":   {0, context.Canceled},
		"while it gives back": {2 * time.Second, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testenv.OwnRedis(t)
			t.Cleanup(server.Resume)
			ctx, cancel := context.WithCancel(t.Context())
			var sinceEnd atomic.Pointer[func() time.Duration]
			err := whenCalled(t, server, "table:"+name, func(waiter *lease.Issuer) error {
				return guard.New(waiter, pool).Tx(ctx, "table:"+name, func(context.Context, pgx.Tx) error {
					server.Pause()
					end := func() { ran := testenv.Stopwatch(t); sinceEnd.Store(&ran); cancel() }
					if c.after > 0 {
						time.AfterFunc(c.after, end)
					} else {
						end()
					}
					return nil
				})
			})
			require.Error(t, ctx.Err(), "the release has waited for Redis")
			require.Less(t, (*sinceEnd.Load())(), 2*time.Second, "a release waits for five")
			require.ErrorIs(t, err, c.err)
		})
	}
}

// whenCalled runs the work of one that waits for the resource until its holder releases it.
func whenCalled(t *testing.T, server *testenv.RedisServer, resource string,
	work func(waiter *lease.Issuer) error) error {
	newIssuer := func() *lease.Issuer {
		options := *server.Client().Options()
		client := redis.NewClient(&options)
		t.Cleanup(func() { _ = client.Close() })
		issuer, err := lease.New(client, lease.Config{TTL: time.Minute})
		require.NoError(t, err)
		return issuer
	}
	l, err := newIssuer().Acquire(t.Context(), resource)
	require.NoError(t, err)
	waiter, done := newIssuer(), make(chan error)
	go func() { done <- work(waiter) }()
	waits := func() bool {
		found, err := waiter.Inspect(t.Context(), resource)
		return err == nil && found.Waiters == 1
	}
	require.Eventually(t, waits, time.Minute, time.Millisecond)
	require.NoError(t, l.Release(t.Context()))
	return <-done
}
