package migrations_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const keepHistory = `SELECT fencedb.keep_history('30 days');`

// forgetHistory goes past the trigger, as only a superuser can.
const forgetHistory = `SET session_replication_role = replica; DELETE FROM fencedb.events WHERE kind = 'history'; RESET session_replication_role`

// newNoted is newSeats with history.
func newNoted(t *testing.T) *session {
	s := newSeatsWithDetours(t)
	s.exec(keepHistory + `SELECT fencedb.protect('seats', resource => 'room:{room}', history => true)`)
	return s
}

// noted is what the history has, in order, and forgets it.
func (s *session) noted() string {
	s.Helper()
	told := s.one(`SELECT string_agg(concat_ws(' ', lower(event), resource, coalesce(token::text, 'none'), 'after ' || former_token, row_count || ' of ' || quote_ident(table_schema) || '.' || quote_ident(table_name)), ', ' ORDER BY at, ctid) FROM fencedb.events WHERE kind = 'history'`)
	s.exec(forgetHistory)
	return told
}

func TestEveryEntryIsKept(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(keepHistory + `CREATE TABLE seats (id int NOT NULL, room text NOT NULL); SELECT fencedb.protect('seats', 'room:{room}'), fencedb.take_over_as('seats', session_user::regrole, 'tomorrow'); INSERT INTO fencedb.foreign_issuers VALUES ('room')`)
	for _, c := range []struct{ sql, want string }{
		{enter(41, "room:red"), "enter room:red 41"},
		{enter(41, "room:red"), ""},
		{s.fenced(42, "room:red", "SELECT"), "enter room:red 42 after 41"},
		{"BEGIN; " + enter(43, "room:red") + "; ROLLBACK", ""},
		{"BEGIN; SAVEPOINT a; " + enter(43, "room:red") + "; ROLLBACK TO a; " + enter(44, "room:red") + "; COMMIT", "enter room:red 44 after 42"},
		{`SELECT fencedb.enter_all('{room:red,room:blue}', '{45,45}', ARRAY[gen_random_uuid(), gen_random_uuid()])`, "enter room:blue 45, enter room:red 45 after 44"},
		{reset("room:red", 40), "reset room:red 40 after 45"},
		{reset("room:red", 0), "reset room:red 0 after 40"},
		{`INSERT INTO seats VALUES (1, 'green'), (2, 'green')`, "enter room:green 1"},
		{`UPDATE seats SET room = 'blue' WHERE id = 2`, "enter room:blue 46 after 45, enter room:green 2 after 1"},
		{`SELECT fencedb.prune('fences', '2 days', 'ann@desk', 'monthly', clock_timestamp(), '{room:red}')`, ""},
	} {
		s.exec(c.sql)
		require.Equal(t, c.want, s.noted(), c.sql)
	}
	s.refused("FN001", enter(1, "room:blue"))
	require.Empty(t, s.noted())

	role := s.withRole("writer")
	s.exec(`SET application_name = 'desk'; SET ROLE ` + role + `; ` + enter(90, "room:red") + `; RESET ROLE`)
	require.Equal(t, "true", s.one(`SELECT bool_and(h.role = $1 AND h.application = 'desk' AND h.client = inet_client_addr() IS NOT FALSE AND h.at = f.advanced_at AND h.lease_id = f.lease_id)
		FROM fencedb.history h JOIN fencedb.fences f USING (resource)`, strings.Trim(role, `"`)))
}

// Under every kind of statement, at every isolation level.
func TestEveryStatementIsKept(t *testing.T) {
	t.Parallel()
	s := newNoted(t)
	s.exec(enter(41, "room:red"))
	want := map[string]string{
		"INSERT": "insert", "INSERT SELECT": "insert", "MERGE insert": "insert",
		"DELETE": "delete", "DELETE USING": "delete", "MERGE delete": "delete",
	}
	for _, level := range []string{"READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"} {
		for name, write := range writes {
			kind := want[name]
			if kind == "" {
				kind = "update"
			}
			s.exec(forgetHistory)
			s.exec(`BEGIN ISOLATION LEVEL ` + level + `; ` + enter(41, "room:red") + "; " + write)
			require.Equal(t, kind+" room:red 41 1 public.seats", s.one(`SELECT string_agg(concat_ws(' ', lower(event), resource, token, row_count, concat(table_schema, '.', table_name)), ', ') FROM fencedb.history WHERE xid = pg_current_xact_id()`), "%s: %s", level, name)
			s.exec(`ROLLBACK`)
		}
	}
	require.Empty(t, s.noted(), "what is rolled back is not kept")
}

func TestWhatAStatementWritesIsKeptByResource(t *testing.T) {
	t.Parallel()
	s := newNoted(t)
	s.exec(`CREATE TABLE jobs (name text NOT NULL, day date NOT NULL, n int); CREATE TABLE logs (room text NOT NULL); CREATE TABLE moves (a text NOT NULL, b text NOT NULL);
		SELECT fencedb.protect('moves', resource => ARRAY['job:{a}', 'job:{b}'], history => true), fencedb.protect('jobs', resource => ARRAY['job:{name}', 'on:{day}'], history => true), fencedb.protect('logs', resource => 'log:{room}', history => true); INSERT INTO fencedb.foreign_issuers VALUES ('room')`)
	both := "BEGIN; " + enter(41, "room:red") + "; " + enter(41, "room:blue") + "; "
	s.exec(both + `COMMIT; ` + enter(41, "job:a") + `; ` + enter(41, "on:2026-11-20") + `; ` + enter(41, "log:red"))
	s.noted()
	for _, c := range []struct{ sql, want string }{
		{both + `UPDATE seats SET guest = 'eve'; COMMIT`, "update room:blue 41 1 of public.seats, update room:red 41 2 of public.seats"},
		{both + `UPDATE seats SET room = 'blue' WHERE id = 1; COMMIT`, "update room:blue 41 1 of public.seats, update room:red 41 1 of public.seats"},
		{both + `UPDATE seats SET room = CASE id WHEN 1 THEN 'red' ELSE room END; COMMIT`, "update room:blue 41 2 of public.seats, update room:red 41 2 of public.seats"},
		{both + `UPDATE seats SET guest = 'eve' WHERE false; COMMIT`, ""},
		{both + `INSERT INTO seats VALUES (1, 'red') ON CONFLICT DO NOTHING; COMMIT`, ""},
		{both + `MERGE INTO seats USING (VALUES (1), (9)) v(id) ON seats.id = v.id WHEN MATCHED THEN UPDATE SET guest = 'zoe' WHEN NOT MATCHED THEN INSERT VALUES (v.id, 'red'); COMMIT`, "update room:red 41 1 of public.seats, insert room:red 41 1 of public.seats"},
		{both + `DELETE FROM seats WHERE room = 'red'; COMMIT`, "delete room:red 41 3 of public.seats"},
		{`BEGIN; ` + enter(41, "job:a") + `; ` + enter(41, "on:2026-11-20") + `; INSERT INTO jobs VALUES ('a', '2026-11-20', 1); COMMIT`, "insert job:a 41 1 of public.jobs, insert on:2026-11-20 41 1 of public.jobs"},
		{s.fenced(41, "job:b", `INSERT INTO moves VALUES ('b', 'b'), ('b', 'b'); UPDATE moves SET b = 'b'`), "enter job:b 41, insert job:b 41 2 of public.moves, update job:b 41 2 of public.moves"},
		{s.fenced(41, "log:red", `INSERT INTO logs VALUES ('red'); COPY logs (room) FROM PROGRAM 'echo red'`), "insert log:red 41 1 of public.logs, insert log:red 41 1 of public.logs"},
		{s.fenced(41, "log:red", `SAVEPOINT a; DELETE FROM logs; ROLLBACK TO a; INSERT INTO logs VALUES ('red')`), "insert log:red 41 1 of public.logs"},
	} {
		s.exec(c.sql)
		require.Equal(t, c.want, s.noted(), c.sql)
	}
}

// Without a lease, with that of another resource, with a stale one, and as a role that takes over.
func TestAWriteWithoutALeaseIsToldAsOne(t *testing.T) {
	t.Parallel()
	s := newNoted(t)
	const write = `UPDATE seats SET guest = 'eve' WHERE room = 'red'`
	const without, with = "update room:red none 2 of public.seats", "update room:red 41 2 of public.seats"
	s.exec(`SELECT fencedb.enforce('seats', observing => true); INSERT INTO fencedb.foreign_issuers VALUES ('room'); ` + enter(41, "room:red") + "; " + enter(41, "room:blue"))
	s.noted()
	for sql, want := range map[string]string{
		write:                            without,
		s.fenced(41, "room:blue", write): without,
		s.fenced(41, "room:blue", `UPDATE seats SET guest = 'eve' WHERE room = 'blue'; `+write): "update room:blue 41 1 of public.seats, " + without,
		s.fenced(41, "room:red", write): with,
		`BEGIN; SELECT set_config('fencedb.entered', 'forged', true); ` + write + `; COMMIT`: without,
	} {
		s.exec(sql)
		require.Equal(t, want, s.noted(), sql)
	}
	s.exec(`INSERT INTO seats VALUES (20, repeat('x', 600)), (21, '')`)
	require.Equal(t, "insert room: none 1 of public.seats", s.noted(), "no fence can have the other")

	s.exec(`CREATE TABLE bare (room text NOT NULL); SELECT fencedb.protect('bare', '{room}', mode => 'observe', history => true); INSERT INTO bare VALUES ('')`)
	require.Empty(t, s.noted(), "no fence can have this one either")

	s.exec(`CREATE TABLE days (day date NOT NULL); SELECT fencedb.protect('days', 'on:{day}', mode => 'observe', history => true); ` + enter(41, "on:2026-11-20"))
	s.noted()
	s.exec(s.fenced(41, "on:2026-11-20", `INSERT INTO days VALUES ('2026-11-20'), ('infinity'); UPDATE days SET day = '2026-11-20' WHERE day = 'infinity'`))
	require.Equal(t, "insert on:2026-11-20 41 1 of public.days, update on:2026-11-20 41 1 of public.days", s.noted(), "a row without a resource is none of another's")

	s.exec(`SELECT fencedb.take_over_as('seats', session_user::regrole, 'tomorrow'); ` + write)
	require.Equal(t, without, s.noted(), "a guard that has observed such a write lately judges no row")
	s.beside().exec(write)
	require.Equal(t, "enter room:red 42 after 41, "+strings.Replace(with, "41", "42", 1), s.noted())
	s.exec(`SELECT fencedb.enforce('seats'); ` + write)
	require.Equal(t, "enter room:red 43 after 42, "+strings.Replace(with, "41", "43", 1), s.noted())
	s.exec(s.fenced(44, "room:red", write))
	require.Equal(t, "enter room:red 44 after 43, "+strings.Replace(with, "41", "44", 1), s.noted())
	s.exec(`CREATE FUNCTION ends() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM fencedb.take_over_as('seats', NULL, NULL); RETURN NULL; END $$; CREATE TRIGGER ends AFTER UPDATE ON seats FOR EACH ROW EXECUTE FUNCTION ends(); ` + write)
	require.Equal(t, "enter room:red 45 after 44, "+strings.Replace(with, "41", "45", 1), s.noted(), "it ends while the statement runs")
}

// A partition has its triggers from protect; a later one, from the next call.
func TestHistoryFollowsATableThroughItsLife(t *testing.T) {
	t.Parallel()
	s := newParts(t)
	s.exec(keepHistory + `SELECT fencedb.protect('parts', 'room:{room}', history => true)`)
	say := func(sql, want string) {
		t.Helper()
		s.exec(s.fenced(43, "room:red", sql))
		require.Equal(t, want, strings.TrimPrefix(s.noted(), "enter room:red 43 after 42, "), sql)
	}
	for _, table := range []string{"parts", "red"} {
		say(`UPDATE `+table+` SET guest = 'eve' WHERE room = 'red'`, "update room:red 43 1 of public."+table)
	}
	s.exec(s.fenced(43, "room:blue", `INSERT INTO low VALUES (1, 'blue')`))
	require.Equal(t, "enter room:blue 43, insert room:blue 43 1 of public.low", s.noted())
	since := s.one(`SELECT history_since FROM fencedb.protected_tables`)
	require.NotEmpty(t, since)

	s.exec(`CREATE TABLE late PARTITION OF parts FOR VALUES IN ('late')`)
	s.exec(s.fenced(43, "room:late", `INSERT INTO parts VALUES (1, 'late'); INSERT INTO late VALUES (2, 'late')`))
	require.Equal(t, "enter room:late 43, insert room:late 43 1 of public.parts", s.noted())
	s.exec(protectParts) // and keeps that it keeps
	s.exec(s.fenced(43, "room:late", `INSERT INTO late VALUES (3, 'late')`))
	require.Equal(t, "insert room:late 43 1 of public.late", s.noted())
	require.Equal(t, since, s.one(`SELECT history_since FROM fencedb.protected_tables`))

	s.exec(`ALTER TABLE parts DETACH PARTITION red`)
	s.refused(notInPrerequisiteState, s.fenced(43, "room:red", `UPDATE red SET guest = 'zoe'`))
	s.exec(`SELECT fencedb.protect('red', 'seat:{id}')`) // which has another resource now
	s.exec(s.fenced(43, "seat:1", `UPDATE red SET guest = 'zoe'`))
	require.Equal(t, "enter seat:1 43, update seat:1 43 1 of public.red", s.noted())
	s.exec(s.fenced(43, "room:late", `UPDATE parts SET guest = 'zoe' WHERE room = 'late'`))
	require.Equal(t, "update room:late 43 3 of public.parts", s.noted(), "the whole has its own")
	s.exec(`SELECT fencedb.unprotect('red', keep_column => true); ALTER TABLE parts ATTACH PARTITION red FOR VALUES IN ('red'); ` + protectParts)
	say(`UPDATE red SET guest = 'eve'`, "update room:red 43 1 of public.red")

	s.exec(`ALTER TABLE parts RENAME TO pieces; ALTER TABLE pieces RENAME room TO hall; SELECT fencedb.protect('pieces', 'room:{hall}')`)
	say(`UPDATE pieces SET guest = 'bob' WHERE hall = 'red'`, "update room:red 43 1 of public.pieces")
	s.exec(`ALTER TABLE pieces DISABLE TRIGGER "~fencedb_note_update"; SELECT fencedb.protect('pieces', 'room:{hall}')`)
	say(`UPDATE pieces SET guest = 'bob' WHERE hall = 'red'`, "update room:red 43 1 of public.pieces")

	s.exec(`SELECT fencedb.protect('pieces', 'room:{hall}', history => false)`)
	say(`UPDATE pieces SET guest = 'zoe' WHERE hall = 'red'`, "")
	s.exec(`SELECT fencedb.protect('pieces', 'room:{hall}', history => true)`)
	s.exec(`SELECT fencedb.unprotect('pieces'); DELETE FROM pieces`)
	require.Empty(t, s.noted())
	require.Equal(t, "0 0", s.one(`SELECT concat_ws(' ', (SELECT count(*) FROM pg_trigger WHERE tgname ^@ '~fencedb'), (SELECT count(*) FROM pg_proc WHERE proname ~ '^(guard|noted)_' AND prorettype = 'trigger'::regtype))`))
}

func TestATableOfAnyNameKeepsHistory(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(keepHistory)
	for _, name := range []string{"entry", "writes", "NEW", `a"b`, "x%s", "座席の予約を管理するための長い名前の表一", strings.Repeat("x", 63)} {
		table := `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
		s.exec(`CREATE TABLE ` + table + ` ("NEW.id" int NOT NULL, "%s" text NOT NULL DEFAULT 'a'); SELECT fencedb.protect('` + table + `', 'seat:{NEW.id}/{%s}', history => true)`)
		s.exec(s.fenced(41, "seat:1/a", `INSERT INTO `+table+` VALUES (1); UPDATE `+table+` SET "%s" = 'a'; DELETE FROM `+table))
		require.Regexp(t, `insert seat:1/a 41 1 of \S+, update seat:1/a 41 1 of \S+, delete seat:1/a 41 1 of \S+$`, s.noted(), name)
	}
}

func TestHistoryIsOffAtFirst(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	s.exec(`SELECT fencedb.protect('seats', 'room:{room}', history => true)`)
	s.exec(s.fenced(41, "room:red", `UPDATE seats SET guest = 'ann'`+` WHERE room = 'red'`))
	require.Empty(t, s.noted())
	triggers := `SELECT string_agg(tgname, ',') FROM pg_trigger WHERE tgrelid = 'fencedb.fences'::regclass`
	require.Empty(t, s.one(triggers))

	s.exec(keepHistory)
	s.exec(s.fenced(42, "room:red", `UPDATE seats SET guest = 'ann' WHERE room = 'red'`))
	require.Equal(t, "enter room:red 42 after 41, update room:red 42 2 of public.seats", s.noted())
	since := `SELECT since FROM fencedb.history_kept`
	began := s.one(since)
	s.exec(keepHistory + `SELECT fencedb.keep_history('60 days')`)
	require.Equal(t, began, s.one(since))
	s.exec(`UPDATE fencedb.history_kept SET period = '1 day', since = since - interval '5 days'; SELECT fencedb.keep_history('9 days')`)
	require.Equal(t, "true", s.one(`SELECT since BETWEEN clock_timestamp() - interval '25 hours' AND clock_timestamp() - interval '24 hours' FROM fencedb.history_kept`), "what is older may have gone")
	s.exec(s.fenced(43, "room:red", `UPDATE seats SET guest = 'ann' WHERE room = 'red'`))

	s.exec(`SELECT fencedb.keep_history('0'), fencedb.keep_history(NULL); ` + enter(44, "room:red"))
	require.Equal(t, "enter room:red 43 after 42, update room:red 43 2 of public.seats", s.noted(), "what was kept stays until it is pruned")
	require.Equal(t, "0 0", s.one(`SELECT concat_ws(' ', (SELECT count(*) FROM fencedb.history), (SELECT count(*) FROM fencedb.history_kept))`))
	require.Empty(t, s.one(triggers))
	require.Equal(t, "30 days, 60 days after 30 days, 9 days after 1 day,  after 9 days", s.one(`SELECT string_agg(concat(details ->> 'period', ' after ' || (details ->> 'former_period')), ', ' ORDER BY id) FROM fencedb.audit WHERE event = 'keep_history'`))
	for _, period := range []string{"-1 day", "1000 years 1 day", "10000 years"} { // Postgres has no time so long ago
		s.refused("22023", `SELECT fencedb.keep_history('`+period+`')`)
	}
	s.exec(`SELECT fencedb.keep_history('1000 years'), fencedb.trim_history(100), fencedb.keep_history(NULL)`)
	s.refused("22023", `SELECT fencedb.record('keep_history', NULL, 'ann@desk', 'a lie')`)
}

// What history read of itself could cost the commit of one of two that write beside each other.
func TestHistoryCostsNobodyItsCommit(t *testing.T) {
	t.Parallel()
	s := newNoted(t)
	s.exec(`SELECT fencedb.enforce('seats', observing => true); SET enable_seqscan = off; ` + enter(41, "room:red") + "; " + enter(41, "room:blue"))
	other := s.beside()
	other.exec(`SET enable_seqscan = off`)
	for _, begin := range []string{`BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT`, `BEGIN ISOLATION LEVEL SERIALIZABLE; ` + enter(41, "room:red")} {
		s.exec(begin)
		other.exec(strings.Replace(begin, "red", "blue", 1))
		s.exec(`UPDATE seats SET guest = 'eve' WHERE id IN (1, 3)`)
		other.exec(`INSERT INTO seats VALUES (4, 'blue'), (5, 'red') ON CONFLICT DO NOTHING`)
		s.exec(`SELECT fencedb.trim_history(100)`) // at random
		other.exec(`SELECT fencedb.trim_history(100)`)
		s.exec(`COMMIT`)
		other.exec(`COMMIT`)
	}
}

// A transaction that has written under a fence that it shares enters another.
func TestSwitchingHistoryOnEndsNobodyInADeadlock(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	s.exec(`SELECT fencedb.protect('seats', resource => 'room:{room}', history => true); ` + enter(41, "room:red"))
	s.begin(reenter(41, "room:red", "60000"))
	s.exec(`UPDATE seats SET guest = 'eve' WHERE id = 1`)
	operator, switched := s.beside(), make(chan error, 1)
	go func() {
		_, err := operator.conn.Exec(t.Context(), keepHistory)
		switched <- err
	}()
	watch := s.beside()
	watch.awaitBlocked(operator.conn.PgConn().PID())
	s.exec(enter(41, "room:blue") + `; COMMIT`)
	require.NoError(t, <-switched)
	s.exec(s.fenced(42, "room:red", `UPDATE seats SET guest = 'ann' WHERE id = 1`))
	require.Equal(t, "enter room:red 42 after 41, update room:red 42 1 of public.seats", s.noted())
}

// A dump of the rows alone, or of the schema alone, has one half of what says that history is kept.
func TestHalfADumpLeavesHistoryThatCanBeSwitched(t *testing.T) {
	t.Parallel()
	const rows = `INSERT INTO fencedb.history_kept (period, since) VALUES ('30 days', now() - interval '5 days')`
	const schema = `DROP TRIGGER off ON fencedb.events; CREATE TRIGGER note AFTER INSERT OR UPDATE OF last_fencing_token ON fencedb.fences FOR EACH ROW EXECUTE FUNCTION fencedb.note_entry()`
	for _, half := range []string{rows, schema} {
		s := newSession(t)
		s.exec(half + `; SELECT fencedb.keep_history(NULL); ` + enter(41, "room:red"))
		require.Empty(t, s.noted(), half)

		s.exec(half)
		if half == schema {
			s.exec(`SELECT setseed(0); ` + enter(42, "room:red")) // or it would be forgotten one time in a hundred
			require.Equal(t, "1", s.one(`SELECT count(*) FROM fencedb.history`))
			s.exec(`SELECT fencedb.trim_history(100) FROM generate_series(1, 99)`) // at random
			require.Empty(t, s.noted(), "nobody says for how long")
		}
		s.exec(keepHistory)
		began := s.one(`SELECT since > now() - interval '1 minute' FROM fencedb.history_kept`)
		require.Equal(t, "true", began, half)
		s.exec(enter(43, "room:red"))
		require.Regexp(t, "^enter room:red 43", s.noted(), half)
		s.exec(`SELECT fencedb.keep_history(NULL); ` + enter(44, "room:red"))
		require.Empty(t, s.noted(), half)
	}
}

// What it costs: one function for a new token, one for a statement, none where nothing is new.
func TestWhatHistoryCosts(t *testing.T) {
	t.Parallel()
	s := newNoted(t)
	const calls = `SELECT string_agg(funcname || ' ' || calls, ', ' ORDER BY funcname) FROM pg_stat_xact_user_functions`
	s.exec(s.fenced(41, "room:red", `UPDATE seats SET guest = 'ann' WHERE room = 'red'`))
	s.exec(`SET track_functions = 'all'; SELECT pg_stat_force_next_flush(), setseed(0)`) // what is old goes at random, and not here
	s.begin(enter(41, "room:red"))
	require.Equal(t, "enter 1", s.one(calls))
	s.exec(`UPDATE seats SET guest = 'ann' WHERE room = 'red'`)
	require.Equal(t, "enter 1, guard_seats 3, noted_seats 1", s.one(calls))
	require.Equal(t, "0", s.one(`SELECT seq_scan FROM pg_stat_xact_all_tables WHERE relid = 'fencedb.history_kept'::regclass`), "one query is enough for one resource")
	s.exec(`COMMIT; SELECT pg_stat_force_next_flush()`)
	s.begin(enter(42, "room:red"))
	require.Equal(t, "enter 1, note_entry 1", s.one(calls))
	s.exec(`COMMIT`)
}

// Old rows go, sooner or later, but for one that somebody holds, and what is young stays.
func TestHistoryIsBoundedByItsAge(t *testing.T) {
	t.Parallel()
	for name, fill := range map[string]string{
		"entries":              `SELECT fencedb.enter('room:red', %d, gen_random_uuid())`,
		"statements":           `BEGIN; ` + strings.ReplaceAll(enter(41, "room:red"), "%", "%%") + `; UPDATE seats SET guest = '%d' WHERE id = 1; COMMIT`,
		"above READ COMMITTED": `BEGIN ISOLATION LEVEL REPEATABLE READ; ` + strings.ReplaceAll(enter(41, "room:red"), "%", "%%") + `; UPDATE seats SET guest = '%d' WHERE id = 1; COMMIT`,
	} {
		s := newNoted(t)
		s.exec(`INSERT INTO fencedb.events (kind, at, resource, event) SELECT 'history', clock_timestamp() - i * interval '1 day', 'room:old', 'enter' FROM generate_series(60, 1, -1) i, generate_series(1, 50) ORDER BY i DESC`)
		s.exec(enter(41, "room:red"))
		lock := s.beside()
		lock.exec(`BEGIN; SELECT FROM fencedb.events WHERE resource = 'room:old' ORDER BY ctid LIMIT 1 FOR UPDATE`)
		old := `SELECT count(*) FROM fencedb.history WHERE at < now() - interval '30 days'`
		added := 0
		for ; s.one(old) != "1"; added += 100 {
			require.Less(t, added, 20_000, "%s: there are %s old rows still", name, s.one(old))
			for i := range 100 {
				s.exec(fmt.Sprintf(fill, 100+added+i))
			}
		}
		lock.exec(`ROLLBACK`)
		require.Equal(t, fmt.Sprintf("1450 %d", added), s.one(`SELECT concat_ws(' ', count(*) FILTER (WHERE resource = 'room:old' AND at > now() - interval '30 days'), count(*) FILTER (WHERE resource = 'room:red' AND (token > 41 OR event = 'UPDATE'))) FROM fencedb.history`), name)
	}
}

func TestARowOfHistoryThatHasGoneFailsNobody(t *testing.T) {
	t.Parallel()
	s := newNoted(t)
	s.exec(`INSERT INTO fencedb.events (kind, at, resource, event) VALUES ('history', now() - interval '31 days', 'room:old', 'enter')`)
	s.exec(`BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM seats`)
	s.beside().exec(forgetHistory)
	s.exec(`SELECT fencedb.trim_history(100) FROM generate_series(1, 99); COMMIT`)
}

func TestOnlyOperatorsReadHistory(t *testing.T) {
	t.Parallel()
	s := newNoted(t)
	s.exec(s.fenced(41, "room:red", `UPDATE seats SET guest = 'ann' WHERE room = 'red'`))
	app, operator := s.withRole("writer"), s.withRole("operator")
	s.exec(`GRANT ALL ON seats TO ` + app)
	for _, table := range []string{"history", "history_kept"} {
		require.Empty(t, s.as(operator, `DO $$ BEGIN ASSERT (SELECT count(*) FROM fencedb.`+table+`) > 0; END $$`))
		require.Equal(t, insufficientPrivilege, s.as(app, `SELECT * FROM fencedb.`+table))
		s.exec(`GRANT pg_read_all_data, pg_write_all_data TO ` + app)
		require.Empty(t, s.as(app, `DO $$ BEGIN ASSERT (SELECT count(*) FROM fencedb.`+table+`) = 0; END $$`))
		for _, role := range []string{app, operator} {
			require.Empty(t, s.as(role, `DO $$ BEGIN DELETE FROM fencedb.`+table+`; EXCEPTION WHEN insufficient_privilege THEN END $$`))
			require.Equal(t, insufficientPrivilege, s.as(role, map[string]string{"history": `INSERT INTO fencedb.history (resource, event) VALUES ('room:red', 'enter')`, "history_kept": `INSERT INTO fencedb.history_kept VALUES (true, '1 day', now())`}[table]))
		}
		s.exec(`REVOKE pg_read_all_data, pg_write_all_data FROM ` + app)
	}
	require.Equal(t, insufficientPrivilege, s.as(app, `SELECT fencedb.keep_history('1 day')`))
	require.Equal(t, "2", s.one(`SELECT count(*) FROM fencedb.history`))
	require.Empty(t, s.as(operator, `SELECT fencedb.keep_history('1 day')`))
	require.Empty(t, s.as(app, s.fenced(42, "room:red", `UPDATE seats SET guest = 'bob' WHERE room = 'red'`)), "it writes as before")
	require.Equal(t, "4", s.one(`SELECT count(*) FROM fencedb.history`))
}

// What a statement writes to settings while it runs, history reads when it ends.
func TestAStatementThatClearsWhatItEnteredIsKept(t *testing.T) {
	t.Parallel()
	s := newNoted(t)
	s.exec(enter(41, "room:red") + "; " + enter(50, "room:blue"))
	s.noted()
	for settings, want := range map[string]string{
		`set_config('fencedb.entered', current_setting('fencedb.entered'), true)`: "update room:red 41 1 of public.seats",
		`set_config('fencedb.entered', '', true)`:                                 "update room:red none 1 of public.seats",
		`set_config('fencedb.entered', 'x', true)`:                                "update room:red none 1 of public.seats",
	} {
		s.exec(s.fenced(41, "room:red", `UPDATE seats SET guest = 'eve' WHERE id = 1 RETURNING `+settings))
		require.Equal(t, "true", s.one(`SELECT bool_and((token IS NULL) = (role = session_user) IS NOT FALSE) FROM fencedb.history`), settings)
		require.Equal(t, want, s.noted(), settings)
	}
}

// Any role may make triggers on its temporary tables, with functions that it may execute.
func TestWhoeverMayOnlyWriteNotesNothingElse(t *testing.T) {
	t.Parallel()
	s := newNoted(t)
	app := s.withRole("writer")
	s.exec(`GRANT ALL ON seats TO ` + app)
	forged := `CREATE TEMP TABLE bait (room text); CREATE TRIGGER note AFTER INSERT ON bait REFERENCING NEW TABLE AS written FOR EACH STATEMENT EXECUTE FUNCTION fencedb.noted_seats(); INSERT INTO bait VALUES ('red')`
	require.Equal(t, insufficientPrivilege, s.as(app, forged))
	s.exec(`SELECT fencedb.protect('seats', 'room:{room}')`) // which writes the function anew
	require.Equal(t, insufficientPrivilege, s.as(app, forged))
	require.Empty(t, s.noted())
}

// The function that notes rows runs as the owner of the schema, and reads columns of others.
func TestHistoryRunsNoCastOfTheTablesOwner(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	role := s.withRole("writer")
	s.exec(keepHistory + `CREATE SCHEMA own AUTHORIZATION ` + role)
	s.exec(`CREATE TABLE public.struck (who name)`)
	require.Empty(t, s.as(role, `SET search_path = own; CREATE TABLE seats (room text NOT NULL); SELECT fencedb.protect('seats', 'room:{room}', mode => 'observe', history => true);
		CREATE TYPE kind AS (a int); CREATE FUNCTION strike(kind) RETURNS text LANGUAGE plpgsql AS $$ BEGIN EXECUTE format('CREATE ROLE %I', 'never'); RETURN 'x'; END $$; CREATE CAST (kind AS text) WITH FUNCTION strike(kind);
		CREATE TABLE bait (room kind, last_fencing_token bigint); INSERT INTO bait VALUES (ROW(1)); UPDATE bait SET room = room`))
	notes := s.one(`SELECT oid::regproc FROM pg_proc WHERE proname ~ '^noted_.*seats$'`)
	s.exec(`GRANT EXECUTE ON FUNCTION ` + notes + ` TO ` + role) // as its owner has it
	for _, write := range []string{`INSERT INTO own.bait VALUES (ROW(1))`, `INSERT INTO own.bait SELECT ROW(1)::own.kind WHERE false`} {
		require.Empty(t, s.as(role, `CREATE OR REPLACE TRIGGER a AFTER INSERT ON own.bait REFERENCING NEW TABLE AS written FOR EACH STATEMENT EXECUTE FUNCTION `+notes+`(); `+write))
	}
	require.Empty(t, s.noted(), "of a type that was not protected")
	require.Equal(t, "0", s.one(`SELECT count(*) FROM pg_roles WHERE rolname = 'never'`))
	s.exec(`DROP SCHEMA own CASCADE`)
}
