package migrations_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const insufficientPrivilege = "42501"

// withRole makes a role that may enter and, if kind is "operator", operate. It drops the role at
// the end.
func (s *session) withRole(kind string) (role string) {
	s.Helper()
	role = `"` + kind + `_` + s.one(`current_database()`) + `"`
	s.exec(`CREATE ROLE ` + role + `; SELECT fencedb.allow('` + role + `', operator => ` + strconv.FormatBool(kind == "operator") + `)`)
	s.Cleanup(func() {
		_, err := s.conn.PgConn().Exec(context.Background(), `RESET SESSION AUTHORIZATION; DROP OWNED BY `+role+`; DROP ROLE `+role).ReadAll()
		require.NoError(s, err)
	})
	return role
}

func TestWhatWasRecordedStays(t *testing.T) {
	t.Parallel()
	s := newSession(t)

	s.exec(`SELECT fencedb.record('revoke', 'seat:1', 'ann@host', 'it hangs')`)

	for _, change := range []string{`UPDATE fencedb.audit SET reason = 'x'`, `DELETE FROM fencedb.audit`, `UPDATE fencedb.events SET reason = 'x'`, `DELETE FROM fencedb.events`, `TRUNCATE fencedb.events`} {
		s.refused(insufficientPrivilege, change)
	}
	require.Equal(t, "it hangs", s.one(`SELECT reason FROM fencedb.audit`))
}

func TestAnOperatorRecordsUnderTheNameItLoggedInWith(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`SET SESSION AUTHORIZATION ` + s.withRole("operator"))

	s.exec(`SELECT fencedb.record('revoke', 'seat:1', 'ann@host', 'it hangs'); ` + enter(41, "seat:1"))

	require.Contains(t, s.one(`session_user`), "operator")
	require.Equal(t, s.one(`session_user`), s.one(`SELECT role FROM fencedb.audit`))
	require.Equal(t, "41", s.one(`SELECT last_fencing_token FROM fencedb.fences`))
	for _, past := range []string{
		`INSERT INTO fencedb.audit (operator, event, reason, role) VALUES ('ann', 'revoke', 'none', 'bob')`,
		`DELETE FROM fencedb.audit`,
		`INSERT INTO fencedb.events (kind, event, operator, reason) VALUES ('audit', 'revoke', 'ann', 'none')`,
		`SET LOCAL fencedb.forgets = 'on'; DELETE FROM fencedb.events`,
		`SELECT fencedb.log_event('revoke', NULL, 'ann', 'none', '{}')`,
		`SELECT fencedb.forget_events('audit', 'infinity', 1)`,
		`SELECT nextval('fencedb.event_id')`,
		`DELETE FROM fencedb.fences`,
		`ALTER TABLE fencedb.events DISABLE TRIGGER keep`,
	} {
		s.refused(insufficientPrivilege, past)
	}
}

func TestAnApplicationDoesNotReachTheAudit(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`SET SESSION AUTHORIZATION ` + s.withRole("writer"))

	for _, past := range []string{
		`SELECT * FROM fencedb.audit`,
		`SELECT fencedb.record('revoke', 'seat:1', 'ann@host', 'it hangs')`,
		`SELECT * FROM fencedb.events`,
		`SELECT fencedb.prune('audit', interval '365 days', 'ann@host', 'yearly')`,
		`DELETE FROM fencedb.audit`,
	} {
		s.refused(insufficientPrivilege, past)
	}
}

// protections lists what the audit has about protection, oldest first, without the schema and the
// user of the test.
func (s *session) protections() string {
	s.Helper()
	return s.one(`SELECT string_agg(concat_ws(' ', CASE WHEN reason ^@ 'found by' THEN 'found' END, event, details ->> 'table', details -> 'resource' ->> 0), '; ' ORDER BY id)
		FROM fencedb.audit`)
}

func TestProtectingAndUnprotectingIsRecorded(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	const protect = `SELECT fencedb.protect('seats', resource => 'seat:{id}');`
	s.exec(`CREATE TABLE seats (id int NOT NULL); ` + protect + protect)
	require.Equal(t, "protect public.seats seat:{id}", s.protections(), "the second call changed nothing")

	s.exec(`ALTER TABLE seats RENAME TO chairs`)
	s.exec(`SELECT fencedb.unprotect('chairs'); SELECT fencedb.unprotect('chairs')`)
	s.exec(`CREATE TABLE jobs (id int PRIMARY KEY); SELECT fencedb.protect('jobs', resource => 'job:{id}', mode => 'observe'), fencedb.enforce('jobs')`)
	s.exec(`BEGIN; SELECT fencedb.unprotect('jobs'); ROLLBACK`)

	require.Equal(t, "protect public.seats seat:{id}; unprotect public.chairs seat:{id}; "+
		"observe public.jobs job:{id}; protect public.jobs job:{id}", s.protections())
}

// Who finds a guard missing or switched off, and puts it back, leaves a trace of both.
func TestAGuardThatWasTakenAwayByHandIsRecordedWhenItIsSeen(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	const protect = `SELECT fencedb.protect('seats', resource => 'seat:{id}');`
	s.exec(`CREATE TABLE seats (id int NOT NULL); ` + protect)
	for _, away := range []string{
		`ALTER TABLE seats DISABLE TRIGGER "~fencedb_row"`,
		`ALTER TABLE seats ENABLE REPLICA TRIGGER "~fencedb_row"`,
		`DROP TRIGGER "~fencedb_row" ON seats`,
		`DROP TRIGGER "~fencedb_truncate" ON seats; DROP TRIGGER "~fencedb_statement" ON seats`,
	} {
		before := s.protections()
		s.exec(away + `; ` + protect)
		require.Equal(t, before+"; found unprotect public.seats seat:{id}; protect public.seats seat:{id}", s.protections(), away)
	}
}

// A database made from a dump of the schema alone has no audit.
func TestUnprotectingWhatTheAuditDoesNotKnowIsRecorded(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE seats (id int NOT NULL); SELECT fencedb.protect('seats', resource => 'seat:{id}')`)
	s.exec(`SET session_replication_role = replica; DELETE FROM fencedb.events; RESET session_replication_role`)

	s.exec(`SELECT fencedb.unprotect('seats')`)

	require.Equal(t, "found protect public.seats seat:{id}; unprotect public.seats seat:{id}", s.protections())
}

func TestTheOwnerOfATableIsRecordedUnderTheNameItLoggedInWith(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	owner, app := s.withRole("operator"), s.withRole("writer")
	s.exec(`GRANT CREATE ON SCHEMA public TO ` + owner + `; GRANT ` + owner + ` TO ` + app + `; SET SESSION AUTHORIZATION ` + owner)
	s.exec(`CREATE TABLE seats (id int NOT NULL); SELECT fencedb.protect('seats', resource => 'seat:{id}')`)
	require.Equal(t, s.one(`session_user`), s.one(`SELECT role FROM fencedb.audit`))

	s.exec(`RESET SESSION AUTHORIZATION; SET SESSION AUTHORIZATION ` + app)
	login := s.one(`session_user`)
	s.exec(`SET ROLE ` + owner + `; SELECT fencedb.unprotect('seats')`)
	require.Equal(t, login, s.one(`SELECT role FROM fencedb.audit WHERE event = 'unprotect'`), "whatever SET ROLE said")
	require.Contains(t, s.one(`SELECT operator FROM fencedb.audit WHERE event = 'unprotect'`), login+"@")
}

func TestNobodyRecordsAProtectionThatIsNotTheirs(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE seats (id int NOT NULL); CREATE TABLE rooms (id int NOT NULL); SELECT fencedb.protect('seats', resource => 'seat:{id}')`)
	s.exec(`SELECT fencedb.record_protection('rooms', false), fencedb.record_protection('seats', false)`) // no news

	s.exec(`SET SESSION AUTHORIZATION ` + s.withRole("writer"))
	s.exec(`SELECT fencedb.record_protection('seats', false), fencedb.record_protection('rooms', false)`) // no news
	s.refused(insufficientPrivilege, `SELECT fencedb.unprotect('seats')`)
	s.exec(`RESET SESSION AUTHORIZATION`)
	require.Equal(t, "protect public.seats seat:{id}", s.protections())
}

// The audit cannot be emptied, so nobody may fill it: not with a table that only looks protected,
// and not by repeating.
func TestAStrangerCannotFloodTheAudit(t *testing.T) {
	t.Parallel()
	const plant = `CREATE FUNCTION %[1]s.f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$;
		DO $$ BEGIN EXECUTE format('COMMENT ON FUNCTION %[1]s.f() IS %%L', jsonb_build_object('resource', jsonb_build_array(repeat('x', 100000)))); END $$;
		CREATE TABLE %[1]s.seats (id int);
		CREATE TRIGGER "~fencedb_row" BEFORE INSERT ON %[1]s.seats FOR EACH ROW EXECUTE FUNCTION %[1]s.f();
		CREATE TRIGGER "~fencedb_statement" BEFORE INSERT ON %[1]s.seats FOR EACH STATEMENT EXECUTE FUNCTION %[1]s.f();
		CREATE TRIGGER "~fencedb_truncate" BEFORE TRUNCATE ON %[1]s.seats FOR EACH STATEMENT EXECUTE FUNCTION %[1]s.f();`
	const loop = `DO $$ BEGIN FOR i IN 1 .. 100 LOOP %s; END LOOP; EXCEPTION WHEN wrong_object_type OR invalid_parameter_value THEN END $$`
	for name, c := range map[string]struct {
		before, repeated string
		most             int // bytes
	}{
		"a temporary table that looks protected": {fmt.Sprintf(plant, "pg_temp"), `PERFORM fencedb.record_protection('pg_temp.seats', false)`, 0},
		"a temporary table with the triggers of another": {strings.ReplaceAll(fmt.Sprintf(plant, "pg_temp"), "EXECUTE FUNCTION pg_temp.f", "EXECUTE FUNCTION GUARD"),
			`PERFORM fencedb.record_protection('pg_temp.seats', false)`, 2000},
		"a temporary table that is taken over": {fmt.Sprintf(plant, "pg_temp"), `PERFORM fencedb.take_over_as('pg_temp.seats', session_user::regrole, now() + i * interval '1 hour')`, 0},
		"a temporary table of ours":            {`CREATE TEMPORARY TABLE seats (id int NOT NULL)`, `PERFORM fencedb.protect('pg_temp.seats', resource => 'seat:{id}')`, 0},
		"a table that looks protected":         {fmt.Sprintf(plant, "own"), `PERFORM fencedb.record_protection('own.seats', false)`, 0},
		"a protected table": {`CREATE TABLE own.seats (id int NOT NULL); SELECT fencedb.protect('own.seats', resource => repeat('x', 400) || ':{id}')`,
			`PERFORM fencedb.record_protection('own.seats', false)`, 2000},
		"a table protected again": {`CREATE TABLE own.seats (id int NOT NULL)`, `PERFORM fencedb.protect('own.seats', resource => 'seat:{id}')`, 2000},
	} {
		s := newSession(t)
		role := s.withRole("writer")
		s.exec(`CREATE SCHEMA own AUTHORIZATION ` + role)
		require.Empty(t, s.as(role, `CREATE TABLE own.others (id int NOT NULL); SELECT fencedb.protect('own.others', 'seat:{id}')`))
		require.Empty(t, s.as(role, strings.ReplaceAll(c.before, "GUARD", s.one(`SELECT guard::oid::regproc FROM fencedb.protected_tables`))), name)
		require.Empty(t, s.as(role, fmt.Sprintf(loop, c.repeated)), name)

		var size int
		require.NoError(t, s.conn.QueryRow(t.Context(), `SELECT coalesce(sum(pg_column_size(a.*)), 0) FROM fencedb.audit a WHERE details ->> 'table' <> 'own.others'`).Scan(&size))
		require.LessOrEqual(t, size, c.most, name)
	}
}

// The audit says of what this server does itself what it knows, not what somebody says.
func TestAnOperatorCannotRecordWhatTheServerDoes(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`SET SESSION AUTHORIZATION ` + s.withRole("operator"))
	const invalidParameter = "22023"
	for _, event := range []string{"protect", "unprotect", "reset", "prune", "keep_history"} {
		s.refused(invalidParameter, `SELECT fencedb.record('`+event+`', NULL, 'bob@host', 'by fencedb.`+event+`', '{"table": "public.seats"}')`)
	}
	require.Equal(t, "0", s.one(`SELECT count(*) FROM fencedb.audit`))
}

func TestAReasonIsNeeded(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	const invalidParameter = "22023"

	s.refused(invalidParameter, `SELECT fencedb.record('revoke', 'seat:1', 'ann@host', '')`)
	s.refused(invalidParameter, `SELECT fencedb.record('revoke', 'seat:1', 'ann@host', NULL)`)
	s.refused(invalidParameter, `SELECT fencedb.record('revoke', 'seat:1', '', 'it hangs')`)
}

func TestOnlyOldFencesThatNobodyHoldsAreForgotten(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	for _, resource := range []string{"old", "held", "young", "unnamed"} {
		s.exec(enter(41, resource))
	}
	s.exec(`UPDATE fencedb.fences SET advanced_at = advanced_at - interval '31 days' WHERE resource <> 'young'`)
	holder := s.beside()
	holder.exec("BEGIN; " + enter(41, "held"))
	forget := func(resources, older string) string {
		return fmt.Sprintf(`SELECT fencedb.prune('fences', %s, 'bob@host', 'monthly', clock_timestamp(), %s)`, older, resources)
	}

	s.exec(`SET lock_timeout = '5s'`)
	require.Equal(t, "1", s.one(forget(`'{old,held,young}'`, `'30 days'`)))

	require.Equal(t, "held,unnamed,young", s.one(`SELECT string_agg(resource, ',' ORDER BY resource) FROM fencedb.fences`))
	require.Equal(t, "prune bob@host monthly fences 1 30 days", s.one(`SELECT concat_ws(' ', event, operator, reason, details ->> 'what', details ->> 'rows', details ->> 'older_than') FROM fencedb.audit`))
	holder.exec("COMMIT")
	const invalidParameter = "22023"
	s.refused(invalidParameter, forget(`'{held}'`, `'23 hours'`))
	s.refused(invalidParameter, forget(`'{held}'`, `NULL`))
	s.refused(invalidParameter, forget(`'{young}'`, `'-1000 months 30001 days'`)) // compares as one day, and is no age
	s.refused(invalidParameter, forget(`NULL`, `'30 days'`))
}

// aged makes everything that was recorded so far that much older, past the trigger, as only the
// owner can.
func (s *session) aged(by string) {
	s.Helper()
	s.exec(`ALTER TABLE fencedb.events DISABLE TRIGGER keep; UPDATE fencedb.events SET at = at - interval '` + by + `'; ALTER TABLE fencedb.events ENABLE TRIGGER keep`)
}

func TestOldRecordsAreForgottenThroughOneDoorThatRecordsIt(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	const protect = `SELECT fencedb.protect('%[1]s', resource => '%[1]s:{id}');`
	s.exec(`CREATE TABLE seats (id int NOT NULL); CREATE TABLE rooms (id int NOT NULL);` + fmt.Sprintf(protect, "seats") + fmt.Sprintf(protect, "rooms") + `SELECT fencedb.unprotect('rooms')`)
	s.exec(`SELECT fencedb.record('revoke', 'seat:1', 'ann@host', 'it hangs') FROM generate_series(1, 3)`)
	s.aged("91 days")
	s.exec(`SELECT fencedb.record('revoke', 'seat:2', 'ann@host', 'it hangs')`)
	login := s.withRole("operator")
	const invalidParameter = "22023"

	for _, call := range []string{`interval '89 days', 'bob@host', 'yearly'`, `NULL, 'bob@host', 'yearly'`, `'-1000 months 30090 days', 'bob@host', 'to leave no trace'`,
		`'90 days', 'bob@host', NULL`, `'90 days', '', 'yearly'`} {
		require.Equal(t, invalidParameter, s.as(login, `SELECT fencedb.prune('audit', `+call+`, clock_timestamp())`), call)
	}
	require.Equal(t, invalidParameter, s.as(login, `SELECT fencedb.prune('events', '90 days', 'bob@host', 'yearly', clock_timestamp())`))
	require.Equal(t, "7", s.one(`SELECT count(*) FROM fencedb.audit`))
	for _, want := range []string{"2", "2", "1", "0"} { // two at a time
		require.Equal(t, want, s.one(`SELECT fencedb.prune('audit', '90 days', 'bob@host', 'yearly', clock_timestamp(), at_most => 2)`))
	}

	require.Equal(t, "protect public.seats seats:{id}; revoke; prune 2; prune 2; prune 1",
		s.one(`SELECT string_agg(concat_ws(' ', event, details ->> 'table', details -> 'resource' ->> 0, details ->> 'rows'), '; ' ORDER BY id) FROM fencedb.audit`))
	s.refused(insufficientPrivilege, `DELETE FROM fencedb.audit`)
}

// A clock jumps, that of this server or that of the issuer. What was written minutes ago by the
// other is young, and goes in no kind of what prune forgets; nor does history, which goes by
// itself.
func TestNothingYoungByEitherClockIsForgotten(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	// Everything is an hour old by the issuer. In this server it was written 40 days ago by the clock
	// that has jumped ahead since.
	token := s.one(`SELECT floor(extract(epoch FROM clock_timestamp() - interval '40 days 1 hour') * 1000000)::bigint`)
	issued := s.one(`SELECT clock_timestamp() - interval '40 days'`)
	s.exec(keepHistory + `CREATE TABLE seats (id int NOT NULL); SELECT fencedb.protect('seats', 'seat:{id}', mode => 'observe'); INSERT INTO seats VALUES (1)`)
	s.exec(`SELECT fencedb.enter('seat:1', ` + token + `, gen_random_uuid()); INSERT INTO fencedb.once (key) VALUES ('order:1'); SELECT fencedb.record('repair', 'seat:1', 'ann@host', 'x')`)
	s.aged("40 days 1 hour")
	s.exec(`UPDATE fencedb.once SET claimed_at = claimed_at - interval '40 days 1 hour'; UPDATE fencedb.fences SET advanced_at = advanced_at - interval '40 days 1 hour'`)
	counts := `SELECT concat_ws(' ', (SELECT count(*) FROM fencedb.fences), (SELECT count(*) FROM fencedb.once), string_agg(n, ' ' ORDER BY n)) FROM (SELECT kind || ' ' || count(*) AS n FROM fencedb.events GROUP BY kind) k`
	before := s.one(counts)
	prune := func(what, issuer string) string {
		age := map[string]string{"audit": "90 days"}[what]
		if age == "" {
			age = "30 days"
		}
		resources := map[bool]string{true: `'{seat:1}'`, false: `NULL`}[what == "fences"]
		return fmt.Sprintf(`SELECT fencedb.prune('%s', '%s', 'bob@host', 'nightly', %s, %s)`, what, age, issuer, resources)
	}
	kinds := []string{"fences", "once", "audit", "history", "observed"}
	for _, what := range kinds {
		for _, issuer := range []string{`NULL`, `'` + issued + `'`, `clock_timestamp() + interval '40 days'`} {
			refused := s.refused(notInPrerequisiteState, prune(what, issuer))
			require.Regexp(t, `the clock of this server says .*, and that of the issuer \d{4}-`, refused.Message, what)
		}
	}
	s.exec(`SELECT fencedb.trim_history(100)`)
	require.Equal(t, before, s.one(counts))

	// Both say the same again, and a fence is young by its token alone.
	s.exec(`SELECT setseed(0)`) // or history would go by itself one time in a hundred
	s.exec(`UPDATE fencedb.fences SET last_fencing_token = floor(extract(epoch FROM clock_timestamp() - interval '1 hour') * 1000000)`)
	require.Equal(t, "0", s.one(prune("fences", `clock_timestamp()`)))
	require.Equal(t, "0", s.one(prune("fences", `NULL`)))
	s.exec(`UPDATE fencedb.fences SET last_fencing_token = ` + token)
	for _, what := range kinds {
		require.Equal(t, what == "audit", s.one(prune(what, `clock_timestamp()`)) == "0", what)
	}
	require.Equal(t, notInPrerequisiteState, s.as(s.withRole("operator"), `SELECT fencedb.prune('once', '1 day', 'bob@host', 'no token tells a time')`))
}

// Membership in pg_write_all_data is a privilege on every table.
func TestWhoWritesAllDataCannotDeleteARecord(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`SELECT fencedb.record('revoke', 'seat:1', 'ann@host', 'it hangs')`)
	role := s.withRole("writer")
	s.exec(`GRANT pg_write_all_data, pg_read_all_data TO ` + role)

	require.Equal(t, insufficientPrivilege, s.as(role, `SELECT set_config('fencedb.forgets', 'on', false); DELETE FROM fencedb.events`))
	require.Equal(t, insufficientPrivilege, s.as(role, `SELECT set_config('fencedb.forgets', 'on', false); TRUNCATE fencedb.events`))
}
