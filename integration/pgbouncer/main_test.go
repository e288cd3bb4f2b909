// Package pgbouncer shows the write layer behind PgBouncer, where a client has a server connection for one transaction and
// the next client finds on it what it left there.
package pgbouncer

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// world is a database with one protected table, and a pool that goes to it directly.
type world struct {
	*testing.T
	direct *pgxpool.Pool
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t, testenv.Postgres(t)}
	_, err := w.direct.Exec(t.Context(), `CREATE TABLE bookings (id int GENERATED ALWAYS AS IDENTITY, table_id int NOT NULL, guest text NOT NULL);
		SELECT fencedb.protect('bookings', resource => $$ 'table:' || table_id $$)`)
	require.NoError(t, err)
	return w
}

func (w *world) url() string { return w.direct.Config().ConnString() }

// pool is a client of the PgBouncer whose queries are sent in a mode of pgx.
func (w *world) pool(b *testenv.PgBouncerServer, mode pgx.QueryExecMode) *pgxpool.Pool {
	w.Helper()
	config, err := pgxpool.ParseConfig(b.URL())
	require.NoError(w, err)
	config.ConnConfig.DefaultQueryExecMode = mode
	pool, err := pgxpool.NewWithConfig(w.Context(), config)
	require.NoError(w, err)
	w.Cleanup(pool.Close)
	return pool
}

func (w *world) guests() []string {
	w.Helper()
	rows, err := w.direct.Query(w.Context(), `SELECT guest FROM bookings ORDER BY id`)
	require.NoError(w, err)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(w, err)
	return names
}

func (w *world) fence(resource string) (token int64) {
	w.Helper()
	require.NoError(w, w.direct.QueryRow(w.Context(), `SELECT coalesce(fencedb.last_token($1), 0)`, resource).Scan(&token))
	return token
}

const insert = `INSERT INTO bookings (table_id, guest) VALUES ($1, $2)`

// book is a transaction that books table 12.
func (w *world) book(db fencedb.DB, grant fencedb.Grant, guest string) error {
	return fencedb.Tx(w.Context(), db, grant, func(tx pgx.Tx) error {
		_, err := tx.Exec(w.Context(), insert, 12, guest)
		return err
	})
}

func grant(resource string, token int64) fencedb.Grant {
	return fencedb.NewGrant(resource, token, uuid.New(), time.Time{})
}

func grantFor(resource string, token int64, validity time.Duration) fencedb.Grant {
	return fencedb.NewGrant(resource, token, uuid.New(), time.Now().Add(validity))
}
