package migrations_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
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

// Fences that are not there are made in one go: each is looked for once before its INSERT, and once
// by it.
func TestWhatFencesThatAreNewCost(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`SELECT fencedb.epoch()`)
	const scans = `SELECT seq_scan + idx_scan FROM pg_stat_xact_user_tables WHERE relid = 'fencedb.fences'::regclass`
	const many = 500

	s.exec(`BEGIN`)
	before := s.one(scans)
	s.exec(fmt.Sprintf(`SELECT fencedb.enter_all(array_agg('room:' || i), array_agg(7), array_agg('%v'::uuid)) FROM generate_series(1, %d) i`, leases, many))
	require.Equal(t, "true", s.one(fmt.Sprintf(`SELECT (%s) - %s <= 2 * %d + 10`, scans, before, many)))
	s.exec(`COMMIT`)
}

// Whoever protects a table reads its columns alone, and the triggers of others once. protect holds
// the strongest lock meanwhile. Pruning the audit looks once whether tables are still protected.
func TestWhatManyOtherTablesCost(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`DO $$ BEGIN
		FOR i IN 1..400 LOOP
			EXECUTE format('CREATE TABLE seats_%s (id int NOT NULL, room text NOT NULL)', i);
			EXECUTE (SELECT string_agg(format('CREATE TRIGGER "%s" BEFORE UPDATE ON seats_%s FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()', n, i), ';') FROM generate_series(1, 4) n);
			PERFORM fencedb.protect(format('seats_%s', i)::regclass, 'room:{room}') WHERE i <= 20;
		END LOOP;
	END $$; ANALYZE pg_class, pg_attribute, pg_trigger, pg_proc, pg_inherits`)
	s.aged("100 days")
	for _, c := range []struct{ statement, counts, want string }{
		{`SELECT fencedb.protect('seats_21', 'room:{room}')`,
			`SELECT concat(pg_stat_get_xact_numscans('pg_attribute'::regclass), ' of columns, ', pg_stat_get_xact_numscans('pg_trigger'::regclass), ' of triggers')`,
			"0 of columns, 1 of triggers"}, // for guards that DROP TABLE has left behind
		{`SELECT fencedb.unprotect('seats_7')`,
			`SELECT pg_stat_get_xact_numscans('pg_trigger'::regclass)`, "1"}, // whether another table has this guard
		{`SELECT fencedb.prune('audit', '91 days', 'ann', 'yearly', now())`,
			`SELECT pg_stat_get_xact_tuples_returned('pg_trigger_tgrelid_tgname_index'::regclass) < 100`, "true"},
	} {
		s.exec(`SELECT pg_stat_force_next_flush()`)
		s.exec(`BEGIN; ` + c.statement)
		require.Equal(t, c.want, s.one(c.counts), c.statement)
		s.exec(`ROLLBACK`)
	}
}

// The log of events is long. Each change of a guard reads it once before and once after. Pruning
// what was observed counts the rest once, at the end. History looks a resource up once.
func TestWhatIsAskedOfTheLogIsAskedOnce(t *testing.T) {
	t.Parallel()
	s := newNoted(t)
	s.exec(`INSERT INTO fencedb.events (kind, event) SELECT 'observed', 'UPDATE' FROM generate_series(1, 30); SELECT pg_stat_force_next_flush()`)
	const scans = `SELECT seq_scan + idx_scan FROM pg_stat_xact_user_tables WHERE relid = 'fencedb.events'::regclass`
	for _, c := range []struct{ statement, want string }{
		{`SELECT fencedb.protect('jobs', 'job:{id}')`, "2"},
		{`SELECT fencedb.protect('seats', 'room:{room}', history => true)`, "2"},
		{`SELECT fencedb.enforce('seats', observing => true)`, "2"},
		{`SELECT fencedb.unprotect('seats', keep_column => true)`, "2"},
		{`SELECT fencedb.prune('observed', '0', 'ann@host', 'full', clock_timestamp(), at_most => 10)`, "2"}, // to find it and to delete it
		{`SELECT fencedb.prune('observed', '0', 'ann@host', 'full', clock_timestamp())`, "3"},                // and to count the rest
	} {
		s.exec(`BEGIN; CREATE TABLE jobs (id int NOT NULL); ` + c.statement)
		require.Equal(t, c.want, s.one(scans), c.statement)
		s.exec(`ROLLBACK; SELECT pg_stat_force_next_flush()`)
	}

	s.exec(`SELECT setseed(0)`)                                                                // what is old goes at random, and not here
	s.exec(`ALTER FUNCTION fencedb.token_of RENAME TO its_token; SET track_functions = 'all'`) // Postgres counts no function that it inlines
	s.exec(`CREATE FUNCTION fencedb.token_of(resource text) RETURNS bigint LANGUAGE plpgsql AS 'BEGIN RETURN fencedb.its_token(resource); END'`)
	const looks = `SELECT coalesce(sum(calls), 0) FROM pg_stat_xact_user_functions WHERE funcname = 'token_of'`
	for write, want := range map[string]string{
		`UPDATE seats SET guest = 'ann' WHERE room = 'red'`: "1",
		`UPDATE seats SET guest = 'ann'`:                    "2",
		`INSERT INTO seats SELECT 100 + i, CASE i WHEN 1 THEN 'red' ELSE 'blue' END FROM generate_series(1, 9) i`: "2",
	} {
		s.exec(`BEGIN; ` + enter(41, "room:red") + `; ` + enter(41, "room:blue"))
		before := s.one(looks)
		s.exec(write)
		require.Equal(t, want, s.one(fmt.Sprintf(`SELECT (%s) - %s`, looks, before)), write)
		s.exec(`ROLLBACK; SELECT pg_stat_force_next_flush()`)
	}
}

// Rows of a role that takes over cost one plan each; it was three.
func TestWhatRowsOfARoleThatTakesOverCost(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	role := s.withRole("writer")
	s.exec(fmt.Sprintf(`GRANT ALL ON seats TO %[1]s; SELECT fencedb.take_over_as('seats', '%[1]s', now() + interval '1 hour')`, role))
	plans := 0
	cfg := s.conn.Config().Copy()
	cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		if n.Message == "PLANNER STATISTICS" {
			plans++
		}
	}
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	require.NoError(t, err)
	defer conn.Close(t.Context())
	_, err = conn.PgConn().Exec(t.Context(), fmt.Sprintf(`SET log_planner_stats = on; SET client_min_messages = log; BEGIN; SET LOCAL ROLE %s;
		INSERT INTO seats SELECT 1000 + i, 'red' FROM generate_series(1, 300) i; ROLLBACK`, role)).ReadAll()
	require.NoError(t, err)
	require.Positive(t, plans)
	require.Less(t, plans, 450, "one for each row, and some at first")
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
