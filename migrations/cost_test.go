package migrations_test

import (
	"fmt"
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
	require.Equal(t, "enter 1, guard_seats 202", s.one(calls), "each row is looked up in the list")
	s.exec(`COMMIT; SELECT pg_stat_force_next_flush()`) // the counts begin again
	s.begin(enter(42, "room:red"))
	require.Equal(t, "enter 1", s.one(calls), "and so is entering with a newer token")
	s.exec(`COMMIT; SELECT pg_stat_force_next_flush()`)

	s.begin(strings.Replace(enter(42, "room:red"), "fencedb.enter", "r FROM fencedb.reenter", 1) + ` r`)
	require.Empty(t, s.one(calls), "entering behind BEGIN what has entered before is no function")
	s.exec(`UPDATE seats SET guest = 'zoe' WHERE id = 10`)
	require.Equal(t, "guard_seats 2", s.one(calls))
	s.exec(`COMMIT; SELECT pg_stat_force_next_flush()`)
}

// Rows of many resources need no look-up of a fence, whoever shares the fences.
func TestWhatRowsOfManyResourcesCost(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	const enterAll = `SELECT fencedb.enter_all(array_agg('room:' || i), array_agg(7), array_agg('6ba7b810-9dad-11d1-80b4-00c04fd430c8'::uuid)) FROM generate_series(1, 50) i`
	s.exec(enterAll)
	const scans = `SELECT seq_scan + idx_scan FROM pg_stat_xact_user_tables WHERE relid = 'fencedb.fences'::regclass`
	sharer := s.beside()
	for _, shared := range []bool{false, true} {
		if shared {
			sharer.exec(`BEGIN; ` + enterAll)
		}
		for _, write := range []string{
			`INSERT INTO seats SELECT 1000 + i, (i % 50 + 1)::text FROM generate_series(1, 200) i`, // no row has the resource of the one before
			`UPDATE seats SET guest = 'zoe' WHERE id BETWEEN 2001 AND 2200`,
			`UPDATE seats SET room = CASE room WHEN '1' THEN '2' ELSE '1' END WHERE id BETWEEN 2001 AND 2008`, // from and to
			`DELETE FROM seats WHERE id > 2000`,
		} {
			s.exec(`BEGIN; ` + enterAll)
			s.exec(`INSERT INTO seats SELECT 2000 + i, ((i - 1) / 4 + 1)::text FROM generate_series(1, 200) i`)
			before := s.one(scans)
			s.exec(write)
			require.Equal(t, before, s.one(scans), "shared: %v: %s", shared, write)
			s.exec(`ROLLBACK; SELECT pg_stat_force_next_flush()`)
		}
	}
}

// Fences that are not there are made in one go, and each is looked for once.
func TestWhatFencesThatAreNewCost(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`SELECT fencedb.epoch()`)
	const scans = `SELECT seq_scan + idx_scan FROM pg_stat_xact_user_tables WHERE relid = 'fencedb.fences'::regclass`
	const many = 500

	s.exec(`BEGIN`)
	before := s.one(scans)
	s.exec(fmt.Sprintf(`SELECT fencedb.enter_all(array_agg('room:' || i), array_agg(7), array_agg('%v'::uuid)) FROM generate_series(1, %d) i`, leases, many))
	require.Equal(t, "true", s.one(fmt.Sprintf(`SELECT (%s) - %s <= %d + 10`, scans, before, many)))
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
