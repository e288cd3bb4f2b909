package migrations_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Attacks that once got past the guard, or past the list of what is guarded.

// The same row is the same resource in every session, whatever that has set.
func TestTheSessionsSettingsDoNotChangeTheResource(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE slots (d date, at timestamptz, f float8, b bytea, i interval)`)
	s.exec(`SELECT fencedb.protect('slots', $$ concat_ws('|', d, at, f, b, i) $$)`)
	const row = `INSERT INTO slots VALUES (date '2026-05-01', timestamptz '2026-05-01 12:00:00Z', 0.1::float8 + 0.2::float8, '\x00ff', interval '1 day 2 hours')`
	const resource = `2026-05-01|2026-05-01 12:00:00+00|0.30000000000000004|\x00ff|1 day 02:00:00`
	s.exec(s.fenced(41, resource, row))

	s.exec(`SET datestyle = 'German'; SET timezone = 'Asia/Tokyo'; SET extra_float_digits = -12; SET bytea_output = 'escape'; SET intervalstyle = 'iso_8601'`)

	s.exec(s.fenced(41, resource, row))
}

func TestProtectRefusesExpressionsOverMoreThanTheRow(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE seats (id int, room text);
		CREATE FUNCTION tenant() RETURNS text LANGUAGE sql STABLE AS $$ SELECT 'x'::text $$;
		CREATE FUNCTION lookup(text) RETURNS text LANGUAGE sql STABLE AS $$ SELECT $1 $$`)
	for _, expression := range []string{
		`current_setting('app.tenant') || id`, `now()::text`, `current_user || id`, `current_date || room`, `tenant() || id`, `lookup(room)`, `current_database() || id`,
	} {
		_, err := s.conn.Exec(t.Context(), `SELECT fencedb.protect('seats', $1)`, expression)
		require.ErrorContains(t, err, "depends on more than the row", expression)
	}
}

func TestProtectRefusesTriggersThatCouldChangeAJudgedRow(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE seats (room text); CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.room := 'blue'; RETURN NEW; END $$;
		CREATE TRIGGER "überschreiben" BEFORE INSERT ON seats FOR EACH ROW EXECUTE FUNCTION f()`)

	s.refused("55000", `SELECT fencedb.protect('seats', $$ room $$)`)

	s.exec(`DROP TRIGGER "überschreiben" ON seats; CREATE TRIGGER "überprüfen" AFTER INSERT ON seats FOR EACH ROW EXECUTE FUNCTION f()`)
	s.exec(`SELECT fencedb.protect('seats', $$ room $$)`)
}

func TestProtectIsNotFooledByAPlantedTrigger(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE seats (room text); CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$`)
	for _, name := range []string{"~fencedb_row", "~fencedb_statement", "~fencedb_truncate"} {
		s.exec(`CREATE TRIGGER "` + name + `" BEFORE INSERT ON seats FOR EACH ROW EXECUTE FUNCTION f()`)
		s.refused("42710", `SELECT fencedb.protect('seats', $$ room $$)`)
		s.exec(`DROP TRIGGER "` + name + `" ON seats`)
	}

	// Nor does one whose comment says that it is what we make.
	planter := s.withRole("allow")
	s.exec(`GRANT TRIGGER ON seats TO ` + planter + `; CREATE SCHEMA planter AUTHORIZATION ` + planter + `; SET SESSION AUTHORIZATION ` + planter + `;
		CREATE FUNCTION planter.fencedb_guard_seats() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$;
		COMMENT ON FUNCTION planter.fencedb_guard_seats() IS '{"mode": "ledger", "resource": "room", "columns_added": ["room"], "stamp": true}';
		CREATE TRIGGER "~fencedb_row" BEFORE INSERT ON seats FOR EACH ROW EXECUTE FUNCTION planter.fencedb_guard_seats(); RESET SESSION AUTHORIZATION`)
	s.refused("42710", `SELECT fencedb.protect('seats', $$ room $$)`)
	s.exec(`SELECT fencedb.unprotect('seats')`)
	require.Equal(t, "room", s.one(`SELECT string_agg(attname, ' ') FROM pg_attribute WHERE attrelid = 'seats'::regclass AND attnum > 0`), "its comment is not believed either")

	// Nor does one on another table break the list of protected tables.
	s.exec(`CREATE TABLE other (a int); CREATE TRIGGER "~fencedb_row" BEFORE INSERT ON other FOR EACH ROW EXECUTE FUNCTION f()`)
	s.exec(`SELECT fencedb.protect('seats', $$ room $$)`)
	for _, facts := range []string{`not JSON`, `1`, `[]`, `{"mode": "\u0000"}`, `{"mode": "row", "columns_added": 1}`, strings.Repeat("[", 100_000)} {
		s.exec(`COMMENT ON FUNCTION f() IS '` + facts + `'`)
		require.Equal(t, "seats", s.one(`SELECT string_agg(table_name::text, ',') FROM fencedb.protected_tables`), "%.40s", facts)
	}
}

func TestProtectingAgainSwitchesADisabledGuardOn(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	s.exec(`ALTER TABLE seats DISABLE TRIGGER ALL`)
	require.Equal(t, "false", s.one(`SELECT enabled FROM fencedb.protected_tables`))

	s.exec(`SELECT fencedb.protect('seats', resource => $$ 'room:' || room $$)`)

	require.Equal(t, "true", s.one(`SELECT enabled FROM fencedb.protected_tables`))
	s.refused("FN002", `UPDATE seats SET guest = 'zoe'`)
	s.refused("FN002", `TRUNCATE seats`)
}

func TestProtectRefusesAStampThatItCannotSet(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE seats (room text, last_fencing_token bigint GENERATED ALWAYS AS (7) STORED)`)

	s.refused("42804", `SELECT fencedb.protect('seats', $$ room $$)`)
}

// The first holder ends in time, the second does not: the second wait must not begin with a full
// time limit.
func TestWaitingForSeveralFencesEndsWithTheLease(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(enter(1, "a") + "; " + enter(1, "b"))
	for resource, hold := range map[string]string{"a": "0.1", "b": "2"} {
		holder := s.beside()
		holder.exec("BEGIN; " + enter(1, resource))
		done := make(chan error, 1)
		go func() {
			_, err := holder.conn.PgConn().Exec(t.Context(), "SELECT pg_sleep("+hold+"); COMMIT").ReadAll()
			done <- err
		}()
		defer func() { require.NoError(t, <-done) }()
	}

	_, err := s.conn.Exec(t.Context(), `SELECT fencedb.enter_all('{a,b}'::text[], '{2,2}', ARRAY[gen_random_uuid(), gen_random_uuid()], 300)`)

	require.ErrorContains(t, err, "55P03", "the second wait gets only what the first has left")
	require.Equal(t, "1", s.one(`fencedb.last_token('b')`))
}

// Nobody is in the way, but to take so many takes longer than the lease has left.
func TestALeaseThatEndsWhileEnteringIsOver(t *testing.T) {
	t.Parallel()
	s := newSession(t)

	s.refused("FN004", `SELECT fencedb.enter_all(array_agg('r' || n), array_agg(n::bigint), array_agg(gen_random_uuid()), 1) FROM generate_series(1, 1000) n`)

	require.Equal(t, "0", s.one(`SELECT count(*) FROM fencedb.fences`))
}

func TestATighterTransactionTimeoutStays(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	if s.one(`current_setting('transaction_timeout', true)`) == "" {
		return // Postgres 15 and 16 have none
	}

	_, err := s.conn.PgConn().Exec(t.Context(), `BEGIN; SET LOCAL transaction_timeout = '600ms'; SELECT fencedb.enter('room:red', 41, gen_random_uuid(), 700);
		SELECT pg_sleep(0.4); UPDATE seats SET guest = 'zoe' WHERE id = 1; SELECT pg_sleep(0.25); COMMIT`).ReadAll()

	require.ErrorContains(t, err, "25P04")
}
