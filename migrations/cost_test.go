package migrations_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// Counts that do not depend on the machine, so that nobody makes a fenced write dearer by accident.
func TestWhatAFencedWriteCosts(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	s.exec(enter(41, "room:red"))
	s.exec(s.fenced(41, "room:red", `UPDATE seats SET guest = 'ann' WHERE id = 1`)) // plans and caches are there
	const calls = `SELECT string_agg(funcname || ' ' || calls, ', ' ORDER BY funcname) FROM pg_stat_xact_user_functions`

	s.exec(`SET track_functions = 'all'; BEGIN`)
	rows, err := s.conn.Query(t.Context(), `EXPLAIN (ANALYZE, WAL, COSTS off, TIMING off) `+enter(41, "room:red"))
	require.NoError(t, err)
	plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Regexp(t, `WAL: records=1 bytes=\d\d\b`, strings.Join(plan, "\n"), "the lock of the fence, and nothing else")
	require.Equal(t, "enter 1", s.one(calls), "entering what has entered before is one function")
	s.exec(`INSERT INTO seats SELECT i, 'red' FROM generate_series(10, 109) i; UPDATE seats SET guest = 'zoe' WHERE id > 9`)
	require.Equal(t, "enter 1, fencedb_guard_seats 200, granted 2, guard_statement 2, sign 2", s.one(calls),
		"the rows are compared with the note, and none is judged by fencedb.require")
	s.exec(`COMMIT`)
}
