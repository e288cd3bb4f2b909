package pgbouncer

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
)

// PgBouncer itself ends a client that begins a transaction here, and says why; it has no SQLSTATE of its own for it.
func TestStatementPoolingRefusesTransactions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bouncer := testenv.PgBouncer(t, w.url(), "statement")
	for _, mode := range withoutNames {
		pool := w.pool(bouncer, mode)
		for _, name := range []string{"Tx", "Enter", "EnterSQL"} {
			err := everyWay[name](w, pool, grant("table:12", 41))
			require.ErrorAs(t, err, new(*pgconn.PgError), "%s, %v", name, mode)
			require.NotErrorIs(t, err, fencedb.ErrCommitUnknown, "%s, %v", name, mode)
		}
	}
	require.Empty(t, w.guests())
	require.Zero(t, w.fence("table:12"))
}

// What travels in one round trip is one statement to PgBouncer and one transaction to Postgres.
func TestStatementPoolingLetsSingleRoundTripsPass(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bouncer := testenv.PgBouncer(t, w.url(), "statement", "default_pool_size=2")
	pool := w.pool(bouncer, pgx.QueryExecModeExec)
	for i, name := range []string{"Exec", "QueryRow", "SendBatch"} {
		require.NoError(t, everyWay[name](w, pool, grant("table:12", int64(41+2*i))), name)
		require.ErrorIs(t, everyWay[name](w, pool, grant("table:12", int64(40+2*i))), fencedb.ErrStale, name)
		require.ErrorIs(t, everyWay[name](w, pool, grant("table:13", int64(41+2*i))), fencedb.ErrWrongResource, name)
	}
	require.Equal(t, []string{"ann", "ann", "ann"}, w.guests())
}
