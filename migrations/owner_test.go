package migrations_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Who changes a guard proves in that statement what only the owner of the table can do.

// changes are what changes a guard, or orders it to be changed.
var changes = []string{
	`fencedb.protect('public.seats', 'mallory:1')`, `fencedb.protect('public.seats', 'room:{room}', mode => 'observe')`, `fencedb.unprotect('public.seats')`, `fencedb.enforce('public.seats', observing => true)`,
	`fencedb.order_guard('public.seats', '{"resource": ["mallory:1"], "observes": true}')`, `fencedb.write_guard('public.seats')`, `fencedb.drop_guard('fencedb.guard_seats()')`,
	`fencedb.take_over_as('public.seats', '%[1]s', now() + interval '1 day')`, `fencedb.let_overtake('public.seats')`, `fencedb.take_over_as('public.seats', NULL, NULL)`, `fencedb.end_overtaking('public.seats')`,
}

// Postgres runs the code of one role in the session of another: in ANALYZE and REINDEX, for a
// materialized view, and in a function with the rights of its owner. The login is the owner of the
// table there, or a superuser; the one who acts is not.
func TestCodeThatRunsForOthersChangesNoGuard(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	owner, mallory := s.withRole("operator"), s.withRole("writer")
	s.exec(`ALTER TABLE seats OWNER TO ` + owner + `; GRANT ALL ON seats TO ` + mallory + `; CREATE SCHEMA mal AUTHORIZATION ` + mallory + `; GRANT USAGE ON SCHEMA mal TO PUBLIC; GRANT CREATE ON SCHEMA public TO ` + owner)
	s.exec(`SET SESSION AUTHORIZATION ` + owner + `; SELECT fencedb.take_over_as('seats', '` + owner + `', now() + interval '1 hour')`)
	state := func() string {
		return s.guard("seats") + s.one(`SELECT concat((SELECT json_agg(p) FROM fencedb.protected_tables p), (SELECT json_agg(o) FROM fencedb.take_overs o), (SELECT count(*) FROM fencedb.audit), (SELECT json_agg(t.tgname ORDER BY t.tgname) FROM pg_trigger t WHERE t.tgrelid = 'seats'::regclass))`)
	}
	s.exec(`RESET SESSION AUTHORIZATION`)
	before := state()

	for i, change := range changes {
		change = strings.ReplaceAll(fmt.Sprintf(change+`%.0[1]s`, strings.Trim(mallory, `"`)), "'", "''")
		change = strings.ReplaceAll(change, strings.Trim(mallory, `"`), strings.ReplaceAll(mallory, "'", "''"))
		s.exec(fmt.Sprintf(`SET SESSION AUTHORIZATION %[1]s; CREATE FUNCTION mal.try%[2]d() RETURNS int LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'SELECT %[3]s'; RETURN 1; EXCEPTION WHEN OTHERS THEN RETURN 1; END $$;
			CREATE FUNCTION mal.index%[2]d(i int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN RETURN mal.try%[2]d(); END $$;
			CREATE FUNCTION mal.rate%[2]d() RETURNS int SECURITY DEFINER LANGUAGE plpgsql AS $$ BEGIN RETURN mal.try%[2]d(); END $$;
			CREATE TABLE mal.t%[2]d (i int); INSERT INTO mal.t%[2]d SELECT generate_series(1, 100); CREATE INDEX ON mal.t%[2]d (mal.index%[2]d(i));
			CREATE MATERIALIZED VIEW mal.v%[2]d AS SELECT mal.try%[2]d() AS i; RESET SESSION AUTHORIZATION`, mallory, i, change))
		for _, run := range []string{`SELECT mal.try%d()`, `SELECT mal.rate%d()`} {
			s.exec(`SET SESSION AUTHORIZATION ` + mallory + `; ` + fmt.Sprintf(run, i) + `; RESET SESSION AUTHORIZATION`)
			require.Equal(t, before, state(), "%s: %s", change, run)
		}
		for _, run := range []string{`ANALYZE mal.t%d`, `REINDEX TABLE mal.t%d`, `REFRESH MATERIALIZED VIEW mal.v%d`, `SELECT mal.rate%d()`} {
			s.exec(fmt.Sprintf(run, i))
			require.Equal(t, before, state(), "%s: %s by a superuser", change, run)
		}
		s.exec(`SET SESSION AUTHORIZATION ` + owner + `; SELECT ` + fmt.Sprintf(`mal.rate%d()`, i) + `; RESET SESSION AUTHORIZATION`)
		require.Equal(t, before, state(), "%s: by the owner", change)
	}
	s.exec(`DROP SCHEMA mal CASCADE`)
}

// A member of the owner that does not inherit from it has nothing, until it takes the role.
func TestAMembershipThatConfersNothingIsNoOwnership(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	owner, member := s.withRole("operator"), s.withRole("writer")
	s.exec(`ALTER TABLE seats OWNER TO ` + owner + `; ALTER ROLE ` + member + ` NOINHERIT; GRANT ` + owner + ` TO ` + member + `; GRANT CREATE ON SCHEMA public TO ` + owner + `; SET SESSION AUTHORIZATION ` + member)
	for _, change := range []string{`fencedb.unprotect('seats')`, `fencedb.enforce('seats', observing => true)`, `fencedb.protect('seats', 'room:{room}')`, `fencedb.take_over_as('seats', current_user::regrole, now() + interval '1 hour')`, `fencedb.take_over_as('seats', NULL, NULL)`} {
		s.refused(insufficientPrivilege, `SELECT `+change)
	}
	s.exec(`SET ROLE ` + owner + `; SELECT fencedb.protect('seats', 'room:{room}'), fencedb.enforce('seats', observing => true), fencedb.enforce('seats'), fencedb.unprotect('seats'); RESET SESSION AUTHORIZATION`)
}

// Whoever changes it, and by whatever way: the audit tells what the catalog says then.
func TestAGuardThatIsChangedIsInTheAudit(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE seats (id int NOT NULL); SELECT fencedb.protect('seats', 'seat:{id}')`)
	last := func() string {
		return s.one(`SELECT concat_ws(' ', event, details -> 'resource') FROM fencedb.audit ORDER BY id DESC LIMIT 1`)
	}
	for _, c := range []struct{ sql, want string }{
		{`SELECT fencedb.protect('seats', 'seat:{id}')`, `protect ["seat:{id}"]`},
		{`SELECT fencedb.order_guard('seats', '{"resource": ["other:{id}"]}'), fencedb.write_guard('seats')`, `protect ["other:{id}"]`},
		{`SELECT fencedb.order_guard('seats', '{"observes": true}'), fencedb.write_guard('seats')`, `observe ["other:{id}"]`},
		{`SELECT fencedb.enforce('seats')`, `protect ["other:{id}"]`},
		{`ALTER TABLE seats DISABLE TRIGGER "~fencedb_row"; SELECT fencedb.record_protection('seats', true)`, `unprotect ["other:{id}"]`},
		{`SELECT fencedb.protect('seats', 'other:{id}')`, `protect ["other:{id}"]`},
		{`SELECT fencedb.unprotect('seats'); SELECT fencedb.protect('seats', 'seat:{id}')`, `protect ["seat:{id}"]`},
	} {
		s.exec(c.sql)
		require.Equal(t, c.want, last(), c.sql)
	}
	require.Equal(t, "8", s.one(`SELECT count(*) FROM fencedb.audit`), "and nothing twice")
}

// DROP TABLE leaves the function of its guard behind. The next call that writes a guard drops it.
func TestTheGuardOfATableThatWasDroppedGoes(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	const guards = `SELECT string_agg(proname, ' ' ORDER BY proname) FROM pg_proc WHERE pronamespace = 'fencedb'::regnamespace AND prorettype = 'trigger'::regtype AND proname ~ '^(guard|noted)_'`
	s.exec(keepHistory + `CREATE TABLE seats (id int NOT NULL); SELECT fencedb.protect('seats', 'seat:{id}', history => true); DROP TABLE seats`)
	require.Equal(t, "guard_seats noted_seats", s.one(guards))
	s.exec(`CREATE TABLE rooms (id int NOT NULL); SELECT fencedb.protect('rooms', 'room:{id}')`)
	require.Equal(t, "guard_rooms", s.one(guards))
}

// A writer that is only observed takes no place among the subtransactions of its transaction for
// each row or resource: above 64 of them a snapshot overflows.
func TestAnObservedWriteTakesFewSubtransactions(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE seats (id int, room text NOT NULL, guest text); INSERT INTO seats SELECT i, i % 50 FROM generate_series(1, 500) i; SELECT fencedb.protect('seats', 'room:{room}', mode => 'observe')`)
	for name, begin := range map[string]string{"without a token": `BEGIN`, "with that of another": `BEGIN; ` + enter(41, "room:x"), "with that of some": `BEGIN; ` + enter(41, "room:1")} {
		for _, write := range []string{`UPDATE seats SET guest = 'eve'`, `UPDATE seats SET room = id % 49`, `INSERT INTO seats SELECT i, i % 50 FROM generate_series(501, 900) i`, `DELETE FROM seats WHERE id % 7 = 0`} {
			s.exec(begin + `; ` + write)
			require.Regexp(t, `^[1-9]$`, s.one(`SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND pid = pg_backend_pid()`), "%s: %s", name, write) // one for each
			s.exec(`ROLLBACK`)
		}
	}
}
