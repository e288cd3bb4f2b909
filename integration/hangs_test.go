package integration

// What is said, and what goes on, while one of the two servers hangs.

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

// The resource is free after one TTL, and whoever reads the error looks at the right server.
func TestASealThatHangsNamesPostgres(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t)
	server.Pool() // which migrates
	proxy := faulty.NewPostgresProxy(t, server.URL())
	pool, err := pgxpool.New(t.Context(), proxy.URL())
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	t.Cleanup(proxy.Sever)
	cfg := lease.Config{TTL: 2 * time.Second, Namespace: testenv.Namespace(t), Seal: fencedb.Sealer(pool)}
	issuer, err := lease.New(testenv.Redis(t), cfg)
	require.NoError(t, err)
	l, err := issuer.Acquire(t.Context(), "table:12")
	require.NoError(t, err)
	require.NoError(t, l.Release(t.Context()))
	proxy.Hang(true)

	_, err = issuer.TryAcquire(t.Context(), "table:12")

	require.ErrorContains(t, err, "the data store has not answered within the TTL of the lease (2s)")
	require.ErrorContains(t, err, "Postgres did not answer")
	require.NotContains(t, err.Error(), "redis")
}

// A lease is full from its first moment, also one that was waited for: nothing has to be asked of
// Redis before the work.
func TestATransactionRightAfterAHandOverNeedsNoRedis(t *testing.T) {
	t.Parallel()
	pool, server := testenv.OwnPostgres(t).Pool(), testenv.OwnRedis(t)
	newIssuer := func() *lease.Issuer {
		options := *server.Client().Options()
		client := redis.NewClient(&options)
		t.Cleanup(func() { _ = client.Close() })
		issuer, err := lease.New(client, lease.Config{TTL: time.Minute})
		require.NoError(t, err)
		return issuer
	}
	l, err := newIssuer().Acquire(t.Context(), "table:12")
	require.NoError(t, err)
	waiter, handed := newIssuer(), make(chan *lease.Lease)
	go func() {
		l, _ := waiter.Acquire(t.Context(), "table:12")
		handed <- l
	}()
	waits := func() bool {
		found, err := waiter.Inspect(t.Context(), "table:12")
		return err == nil && found.Waiters == 1
	}
	require.Eventually(t, waits, 10*time.Second, time.Millisecond)
	require.NoError(t, l.Release(t.Context()))
	next := <-handed
	require.NotNil(t, next)

	server.Pause()
	defer server.Resume()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	require.NoError(t, fencedb.Tx(ctx, pool, next, func(pgx.Tx) error { return nil }))
	require.NoError(t, ctx.Err())
}
