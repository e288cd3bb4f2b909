package fencedb_test

import (
	"context"
	"flag"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
)

// TestMain runs four tests at once on two processors too, since most of their time they wait.
// -parallel 1 runs one.
func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == "2" {
		_ = f.Value.Set("4")
	}
	testenv.Main(m)
}

// world is a migrated database of its own with one protected table.
type world struct {
	*testing.T
	pool *pgxpool.Pool
	late int // how often judge could not ask
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return &world{T: t, pool: testenv.Postgres(t,
		`CREATE TABLE bookings (id int PRIMARY KEY, table_id int NOT NULL, guest text NOT NULL)`,
		`SELECT fencedb.protect('bookings', resource => 'table:{table_id}')`)}
}

func (w *world) exec(sql string, args ...any) {
	w.Helper()
	_, err := w.pool.Exec(w.Context(), sql, args...)
	require.NoError(w, err)
}

// guests are the names in the bookings table, by id.
func (w *world) guests() []string {
	w.Helper()
	return collect[string](w, `SELECT guest FROM bookings ORDER BY id`)
}

// fence is the token stored for a resource, 0 if there is none.
func (w *world) fence(resource string) int64 {
	w.Helper()
	return collect[int64](w, `SELECT coalesce(fencedb.last_token($1), 0)`, resource)[0]
}

func collect[T any](w *world, sql string, args ...any) []T {
	w.Helper()
	rows, err := w.pool.Query(w.Context(), sql, args...)
	require.NoError(w, err)
	values, err := pgx.CollectRows(rows, pgx.RowTo[T])
	require.NoError(w, err)
	return values
}

// conn is a connection that the test drives by itself.
func (w *world) conn() *pgx.Conn {
	w.Helper()
	conn, err := pgx.ConnectConfig(w.Context(), w.pool.Config().ConnConfig.Copy())
	require.NoError(w, err)
	w.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// awaitBlocked waits until the backend pid waits for a lock of another session.
func (w *world) awaitBlocked(pid uint32) {
	w.Helper()
	require.Eventually(w, func() bool {
		return collect[int](w, `SELECT cardinality(pg_blocking_pids($1))`, pid)[0] > 0
	}, time.Minute, 2*time.Millisecond, "backend %d does not wait for anybody", pid)
}

// awaitIdle waits until every connection is back: pgxpool destroys a broken one in the background.
func (w *world) awaitIdle(pool *pgxpool.Pool) {
	w.Helper()
	require.Eventually(w, func() bool { return pool.Stat().AcquiredConns() == 0 }, time.Minute, time.Millisecond,
		"a connection was not given back")
}

// grant is the grant of a new lease, unbounded in time.
func grant(resource string, token int64) fencedb.Grant {
	return fencedb.NewGrant(resource, token, uuid.New(), fencedb.NoEnd)
}

func grantFor(resource string, token int64, validity time.Duration) fencedb.Grant {
	return fencedb.NewGrant(resource, token, uuid.New(), time.Now().Add(validity))
}

var ids atomic.Int32

// book inserts a booking with a fresh id.
func book(ctx context.Context, tx pgx.Tx, table int, guest string) error {
	_, err := tx.Exec(ctx, `INSERT INTO bookings (id, table_id, guest) VALUES ($1, $2, $3)`, ids.Add(1), table, guest)
	return err
}

// enter and enterSQL are for transactions of whose outcome nobody asks.
func enter(ctx context.Context, tx pgx.Tx, g fencedb.Grant, opts ...fencedb.Option) error {
	_, err := fencedb.Enter(ctx, tx, g, opts...)
	return err
}

func enterSQL(ctx context.Context, tx fencedb.SQLTx, g fencedb.Grant, opts ...fencedb.Option) error {
	_, err := fencedb.EnterSQL(ctx, tx, g, opts...)
	return err
}
