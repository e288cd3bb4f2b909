package migrations_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// Counts that do not depend on the machine, so that nobody makes a fenced write dearer by accident.
func TestWhatAFencedWriteCosts(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	s.exec(`SET statement_timeout = '30s'; SET idle_in_transaction_session_timeout = '1min'; SET lock_timeout = '5s'`) // as services do
	s.exec(enter(41, "room:red"))
	s.exec(s.fenced(41, "room:red", `UPDATE seats SET guest = 'ann' WHERE id = 1`)) // plans and caches are there
	const calls = `SELECT string_agg(funcname || ' ' || calls, ', ' ORDER BY funcname) FROM pg_stat_xact_user_functions`

	require.Regexp(t, `^WAL: records=1 bytes=\d\d$`, s.leastWAL(enter(41, "room:red")), "the lock of the fence, and nothing else")
	s.exec(`SET track_functions = 'all'`)
	s.begin(enter(41, "room:red"))
	require.Equal(t, "enter 1", s.one(calls), "entering what has entered before is one function")
	s.exec(`INSERT INTO seats SELECT i, 'red' FROM generate_series(10, 109) i; UPDATE seats SET guest = 'zoe' WHERE id > 9`)
	require.Equal(t, "enter 1, fencedb_guard_seats 200, guard_statement 2, require 2", s.one(calls),
		"the first row is judged, the second also noted, and the others compared with the note")
	s.exec(`COMMIT; SELECT pg_stat_force_next_flush()`) // the counts begin again
	s.begin(enter(42, "room:red"))
	require.Equal(t, "enter 1", s.one(calls), "and so is entering with a newer token")
	s.exec(`COMMIT; SELECT pg_stat_force_next_flush()`)

	s.begin(strings.Replace(enter(42, "room:red"), "fencedb.enter", "r FROM fencedb.reenter", 1) + ` r`)
	require.Empty(t, s.one(calls), "entering behind BEGIN what has entered before is no function")
	s.exec(`UPDATE seats SET guest = 'zoe' WHERE id = 10`)
	require.Equal(t, "fencedb_guard_seats 1, guard_statement 1, require 1", s.one(calls))
	s.exec(`COMMIT; SELECT pg_stat_force_next_flush()`)

	s.exec(`BEGIN; SELECT fencedb.enter_all(array_agg('room:' || i), array_agg(i), array_agg(gen_random_uuid())) FROM generate_series(1, 50) i`)
	s.exec(`INSERT INTO seats SELECT 1000 + i, i % 50 + 1 FROM generate_series(1, 100) i`)
	require.Equal(t, "fencedb_guard_seats 100, grants 1, guard_statement 1, require 100", s.one(calls+
		` WHERE funcname ~ '^(fencedb_guard_seats|grants|guard_statement|require|require_all|held)$'`),
		"rows of many resources are judged by the locks of their fences; the list of grants is read when entering, and not again")
	require.Empty(t, s.one(`current_setting('fencedb.noted')`), "none of them is noted, since the next is of another")
	s.exec(`COMMIT; SELECT pg_stat_force_next_flush()`)

	sharer := s.beside()
	sharer.exec(`BEGIN; ` + enter(42, "room:red"))
	s.exec(`BEGIN; ` + enter(42, "room:red") + `; UPDATE seats SET guest = 'zoe' WHERE room = 'red'`)
	require.Equal(t, "require 2, require_all 2", s.one(calls+` WHERE funcname ~ '^require(_all)?$'`), "a shared fence is looked at as often")
	s.exec(`COMMIT`)
	sharer.exec(`COMMIT`)

	s.exec(`CREATE TABLE lists (rooms text[] NOT NULL); SELECT fencedb.protect('lists', 'rooms')`)
	s.exec(`BEGIN; ` + enter(42, "red") + `; INSERT INTO lists SELECT '{red}' FROM generate_series(1, 3)`)
	require.Empty(t, s.one(`current_setting('fencedb.noted', true)`), "nobody reads a note of rows that may have several resources")
	s.exec(`COMMIT`)
}

func TestWhatACarriedWriteCosts(t *testing.T) {
	t.Parallel()
	s := newJobs(t)
	s.exec(s.carried(41, "job:1", `UPDATE jobs SET state = 'RUNNING' WHERE id = 1`)) // plans, caches and the epoch are there

	require.Empty(t, s.leastWAL(carry(41, "job:1")), "it writes nothing and locks nothing")
	s.exec(`SET track_functions = 'all'; BEGIN; ` + carry(41, "job:1"))
	s.exec(`UPDATE jobs SET state = 'DONE' WHERE id = 1`)
	require.Equal(t, "carry 1, fencedb_guard_jobs 1, guard_statement 1, require_row 1",
		s.one(`SELECT string_agg(funcname || ' ' || calls, ', ' ORDER BY funcname) FROM pg_stat_xact_user_functions`))
	s.exec(`COMMIT`)
}

// leastWAL is the least that a statement has written in five transactions: whoever reads a page may
// have to prune it, and one of the catalog may just be due.
func (s *session) leastWAL(statement string) string {
	s.Helper()
	var least []string
	for range 5 {
		rows, err := s.conn.Query(s.Context(), `EXPLAIN (ANALYZE, WAL, COSTS off, TIMING off) `+statement)
		require.NoError(s, err)
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(s, err)
		least = append(least, regexp.MustCompile(`WAL: .*|$`).FindString(strings.Join(plan, "\n")))
	}
	return slices.Min(least)
}
