package pgbouncer

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
)

// PgBouncer 1.21 and newer keep track of prepared statements; older ones hand clients connections on which others have
// prepared, under the same names. There pgx's default mode fails, and the write layer writes nothing.
func TestPgxsDefaultModeNeedsANewerPgBouncer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bouncer := testenv.PgBouncer(t, w.url(), "transaction")
	tracks := bouncer.AtLeast(1, 21)
	if tracks {
		bouncer = testenv.PgBouncer(t, w.url(), "transaction", "max_prepared_statements=100")
	}
	first, second := w.pool(bouncer, pgx.QueryExecModeCacheStatement), w.pool(bouncer, pgx.QueryExecModeCacheStatement)
	require.NoError(t, w.book(first, grant("table:12", 41), "ann"))

	err := w.book(second, grant("table:12", 42), "ben")

	if tracks {
		require.NoError(t, err)
		require.Equal(t, []string{"ann", "ben"}, w.guests())
		return
	}
	const duplicatePreparedStatement = "42P05"
	var pgErr *pgconn.PgError
	require.ErrorAs(t, err, &pgErr)
	require.Equal(t, duplicatePreparedStatement, pgErr.Code)
	require.ErrorContains(t, err, "use pgx.QueryExecModeExec", "the error says what to do")
	require.Equal(t, []string{"ann"}, w.guests())
	require.EqualValues(t, 41, w.fence("table:12"))
}
