package pgbouncer

import (
	"errors"
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

// A single round trip is a transaction as well, and passes only if its answers reach PgBouncer in one piece. Otherwise PgBouncer
// ends the client in the middle of them. Either way the answer is true, or says that nobody knows.
func TestStatementPoolingAndSingleRoundTrips(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bouncer := testenv.PgBouncer(t, w.url(), "statement", "default_pool_size=2")
	pool := w.pool(bouncer, pgx.QueryExecModeExec)
	for i, name := range []string{"Exec", "QueryRow", "SendBatch"} {
		before := len(w.guests())
		err := everyWay[name](w, pool, grant("table:12", int64(41+i)))
		committed := len(w.guests()) > before
		if !errors.Is(err, fencedb.ErrCommitUnknown) {
			require.Equal(t, committed, err == nil, "%s: %v", name, err)
		}
	}
}
