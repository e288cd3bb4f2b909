package chaos

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

const ttl = 300 * time.Millisecond

var resources = []string{"account:1", "account:2"}

// schema has what workers count, and a history of it. Arrivals is the judge's: its rows number the commits of a resource in
// their order with or without a fence, because the row stays locked from the increment to the commit.
const schema = `
	CREATE TABLE counters (resource text PRIMARY KEY, value bigint NOT NULL);
	CREATE TABLE history (resource text, place bigint, value bigint, token bigint, lease_id uuid, PRIMARY KEY (resource, place));
	CREATE TABLE arrivals (resource text PRIMARY KEY, places bigint NOT NULL)`

const protection = `SELECT fencedb.protect('counters', $$ resource $$), fencedb.protect('history', $$ resource $$)`

// world is one test's Postgres, its workers and their way to Redis.
type world struct {
	*testing.T
	pool   *pgxpool.Pool
	client func() redis.UniversalClient // a new one for each worker, as if each were a process
	config lease.Config
	write  writing
	board  *board

	// forgetful says that an overtaken holder may write if it comes before the fence is past its token: without sealing nobody
	// promises more when Redis loses its data and its clock at once.
	forgetful bool
}

// writing is how workers write: behind the fence, or in the control without.
type writing struct {
	acquiring func(ctx context.Context, i *lease.Issuer, db *pgxpool.Pool, resource string, fn func(context.Context, pgx.Tx) error) error
	holding   func(ctx context.Context, db *pgxpool.Pool, grant fencedb.Grant, fn func(pgx.Tx) error) error
}

var fenced = writing{
	acquiring: func(ctx context.Context, i *lease.Issuer, db *pgxpool.Pool, resource string, fn func(context.Context, pgx.Tx) error) error {
		return guard.Tx(ctx, i, db, resource, func(ctx context.Context, _ *lease.Lease, tx pgx.Tx) error { return fn(ctx, tx) })
	},
	holding: func(ctx context.Context, db *pgxpool.Pool, grant fencedb.Grant, fn func(pgx.Tx) error) error {
		return fencedb.Tx(ctx, db, grant, fn)
	},
}

var unfenced = writing{
	acquiring: func(ctx context.Context, i *lease.Issuer, db *pgxpool.Pool, resource string, fn func(context.Context, pgx.Tx) error) error {
		return i.Do(ctx, resource, func(ctx context.Context, _ *lease.Lease) error {
			return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error { return fn(ctx, tx) })
		})
	},
	holding: func(ctx context.Context, db *pgxpool.Pool, _ fencedb.Grant, fn func(pgx.Tx) error) error {
		return pgx.BeginFunc(ctx, db, fn)
	},
}

func newWorld(t *testing.T, client func() redis.UniversalClient) *world {
	w := &world{T: t, pool: newPool(t), client: client, config: lease.Config{TTL: ttl, Namespace: "chaos"}, write: fenced, board: newBoard()}
	w.exec(schema)
	for _, resource := range resources {
		w.exec(`INSERT INTO counters VALUES ($1, 0)`, resource)
		w.exec(`INSERT INTO arrivals VALUES ($1, 0)`, resource)
	}
	w.exec(protection)
	return w
}

// newPool has a connection for every worker: a transaction that oversleeps keeps its own.
func newPool(t *testing.T) *pgxpool.Pool {
	config := testenv.Postgres(t).Config()
	config.MaxConns = 20
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func (w *world) exec(sql string, args ...any) {
	w.Helper()
	_, err := w.pool.Exec(w.Context(), sql, args...)
	require.NoError(w, err)
}

// clientsOf makes clients of one server.
func clientsOf(t *testing.T, addr string) func() redis.UniversalClient {
	return func() redis.UniversalClient {
		client := redis.NewClient(&redis.Options{Addr: addr})
		t.Cleanup(func() { _ = client.Close() })
		return client
	}
}

// increment counts one further, with a pause between reading and writing.
func increment(ctx context.Context, tx pgx.Tx, g fencedb.Grant, pause func()) error {
	var value int64
	if err := tx.QueryRow(ctx, `SELECT value FROM counters WHERE resource = $1`, g.Resource()).Scan(&value); err != nil {
		return err
	}
	pause()
	if _, err := tx.Exec(ctx, `UPDATE counters SET value = $2 WHERE resource = $1`, g.Resource(), value+1); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `
		WITH arrival AS (UPDATE arrivals SET places = places + 1 WHERE resource = $1 RETURNING places)
		INSERT INTO history SELECT $1, places, $2, $3, $4 FROM arrival`, g.Resource(), value+1, g.Token(), g.LeaseID())
	return err
}

func atOnce() {}
