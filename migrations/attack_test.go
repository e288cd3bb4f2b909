package migrations_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/migrations"
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

	require.Error(t, err)
	require.Regexp(t, "25P04|57014", err.Error(), "or the limit of the statement, where both have passed")
}

// Whoever locks rows makes multixacts, and by and by one with the number that the last holder has
// left on its fence. It has the attacker's own transaction in it, and says nothing of the fence.
func TestAMultixactOfOtherRowsIsNoEntry(t *testing.T) {
	t.Parallel()
	url := testenv.OwnPostgres(t).URL() // where the numbers are not far apart
	require.NoError(t, migrations.Up(t.Context(), open(t, url)))
	s := connect(t, url)
	const role = "writer_of_rows"
	s.exec(`CREATE ROLE ` + role + `; CREATE TABLE seats (id int PRIMARY KEY, room text NOT NULL); INSERT INTO seats VALUES (1, 'own'); SELECT fencedb.protect('seats', 'room'); GRANT ALL ON seats TO ` + role)
	s.exec(enter(41, "red"))
	s.exec(enter(41, "red")) // shares it
	left, err := strconv.Atoi(s.one(`SELECT xmax FROM fencedb.fences`))
	require.NoError(t, err)

	attacker, helper := s.beside(), s.beside()
	attacker.exec(`SET SESSION AUTHORIZATION ` + role + `; BEGIN; SELECT FROM seats FOR SHARE`)
	own := attacker.one(`pg_current_xact_id()`)
	made := `SELECT EXISTS (SELECT FROM pg_get_multixact_members('` + strconv.Itoa(left) + `') m WHERE m.xid = '` + own + `')`
	helper.exec(`DO $$ BEGIN
		WHILE mxid_age('` + strconv.Itoa(left) + `') <= 0 LOOP
			BEGIN PERFORM FROM seats FOR SHARE; RAISE EXCEPTION USING ERRCODE = 'FN000'; EXCEPTION WHEN SQLSTATE 'FN000' THEN END;
		END LOOP;
	END $$`)
	require.Equal(t, "true", s.one(made), "the attack is none")

	attacker.exec(`SELECT set_config('fencedb.entered', pg_current_xact_id() || ' 60000 60000', true), set_config('fencedb.grants', '{"red": "1 x"}', true)`)
	attacker.refused("FN003", `INSERT INTO seats VALUES (2, 'red')`)
}

// Transactions of one lease that come and go change the list of those who share its fence, also
// while a guard looks at it.
func TestManyShareAFenceAtOnce(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	s.exec(enter(41, "room:red"))
	var all errgroup.Group
	for n, level := range []string{"READ COMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"} {
		one := s.beside()
		all.Go(func() error {
			for i := range 200 {
				_, err := one.conn.PgConn().Exec(t.Context(), `BEGIN ISOLATION LEVEL `+level+`; `+enter(41, "room:red")+fmt.Sprintf(`; INSERT INTO seats VALUES (%d, 'red'); COMMIT`, 1000*n+i+10)).ReadAll()
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, all.Wait())
}

// The guards call require with what they know of a row, but anybody can call it, as often as it
// takes for a note.
func TestWhatRequireIsAskedAboutIsWhatItNotes(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	s.exec(enter(100, "room:blue"))
	for _, asked := range []string{
		`'INSERT', 'room:blue', 'room:red'`, `'DELETE', 'room:red', 'room:blue'`, `'UPDATE', 'room:red', 'room:red'`, `'TRUNCATE', 'room:blue', 'room:red'`,
	} {
		s.exec(`BEGIN; ` + enter(41, "room:red") + strings.Repeat(`; SELECT fencedb.require('seats', `+asked+`, 0)`, 3))
		s.refused("FN003", `INSERT INTO seats VALUES (9, 'blue'), (10, 'blue')`)
	}
}

// What a session may set must not change what our functions say: each setting by itself, in a
// session of its own, since PL/pgSQL reads a function once in each.
func TestTheSessionsSettingsDoNotChangeTheVerdict(t *testing.T) {
	t.Parallel()
	owner, _, role := newLegacy(t)
	owner.exec(`CREATE TABLE notes (room text NOT NULL); SELECT fencedb.protect('notes', 'room'); GRANT ALL ON notes TO ` + role + `;
		CREATE TABLE jobs (id text PRIMARY KEY, state text); SELECT fencedb.protect_row('jobs', 'id'); ` + enter(41, "room:blue"))
	owner.exec(`BEGIN; ` + carry(41, "job:1") + `; INSERT INTO jobs VALUES ('job:1', 'new'); COMMIT`)
	for n, setting := range []string{`datestyle = 'German'`, `datestyle = 'SQL, DMY'`, `timezone = 'Asia/Tokyo'`, `extra_float_digits = -15`, `bytea_output = 'escape'`,
		`intervalstyle = 'iso_8601'`, `intervalstyle = 'sql_standard'`, `standard_conforming_strings = off`, `quote_all_identifiers = on`, `array_nulls = off`,
		`transform_null_equals = on`, `search_path = pg_temp, public`, `statement_timeout = '10min'`} {
		t.Run(setting, func(t *testing.T) {
			url := owner.conn.Config().ConnString()
			other, s, legacy := connect(t, url), connect(t, url), connect(t, url)
			legacy.exec(`SET SESSION AUTHORIZATION ` + role)
			token := 41 + 2*n
			red := enter(token, "room:red")
			other.exec(red)
			other.exec(`BEGIN; ` + red) // shares the fence
			s.exec(`SET ` + setting)

			for _, more := range []string{``, enter(41, "room:blue") + `; `, carry(41, "job:1") + `; UPDATE jobs SET state = 'done'; `} {
				s.exec(`BEGIN; ` + red + `; ` + more + `UPDATE seats SET guest = 'ann' WHERE room = 'red'; COMMIT`)
			}
			s.refused("FN003", `BEGIN; `+red+`; UPDATE seats SET guest = 'zoe' WHERE room = 'blue'`)
			s.refused("22023", `BEGIN; `+red+`; SELECT fencedb.enter('room:red', 41, gen_random_uuid())`)

			// The limit is of whole milliseconds, and a later statement gets what is left of it.
			s.exec(`BEGIN; SET LOCAL statement_timeout = '10min'; ` + strings.TrimSuffix(red, ")") + `, 1611)`)
			require.Equal(t, "true", s.one(`current_setting('fencedb.entered') ~ '^[0-9]+ [0-9]+ [0-9]+'`))
			s.exec(`SELECT pg_sleep(0.01); UPDATE seats SET guest = 'ann' WHERE room = 'red'`)
			require.Equal(t, "true", s.one(`split_part(current_setting('fencedb.entered'), ' ', 3)::numeric < 1611 - 10`))
			s.exec(`ROLLBACK`)
			other.exec(`ROLLBACK`)

			// What a role has overtaken is for one table, whatever it sets in between.
			overtakes := `BEGIN; UPDATE seats SET guest = 'leo' WHERE id = 1; `
			legacy.refused("FN003", overtakes+`SELECT set_config('fencedb.entered', pg_current_xact_id() || ' 60000 60000', true); SET LOCAL `+setting+`; INSERT INTO notes VALUES ('room:red')`)
			legacy.exec(overtakes + `SET LOCAL ` + setting + `; UPDATE seats SET guest = 'max' WHERE id = 1; COMMIT`)
			require.Equal(t, strconv.Itoa(token+1), owner.one(`SELECT last_fencing_token FROM fencedb.fences WHERE resource = 'room:red'`), "once for each transaction")
		})
	}
}

func TestAReadOnlyTransactionCarriesAnyGrant(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	for _, limit := range []string{``, `SET LOCAL statement_timeout = '10min'; `} {
		s.exec(`BEGIN READ ONLY; ` + limit + carry(41, "job:1") + `; ` + carry(41, "job:2") + `; COMMIT`)
		s.exec(`BEGIN READ ONLY; ` + limit + `SELECT fencedb.carry_all('{job:1,job:2}', '{41,41}', ARRAY[gen_random_uuid(), gen_random_uuid()]); COMMIT`)
	}
}

// Guards run as the writer, so everybody may call what they call, with arguments that no guard has.
// Every function that a writer may call is called with all of them, three times each, as a note
// begins with the second row. But for the doors: they let in whoever presents a new token.
func TestNoFunctionOpensAFenceToItsCaller(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	s.exec(`CREATE TABLE jobs (id int PRIMARY KEY, state text); INSERT INTO jobs VALUES (1, 'NEW'), (2, 'NEW'); SELECT fencedb.protect_row('jobs', $$ 'job:' || id $$);
		CREATE TABLE moves (rooms text[] NOT NULL); SELECT fencedb.protect('moves', 'rooms');
		CREATE FUNCTION opens(calls text[], writes text[]) RETURNS text LANGUAGE plpgsql AS $$
		DECLARE attempt text; write text; opened text;
		BEGIN
			FOREACH attempt IN ARRAY calls LOOP
				BEGIN
					EXECUTE attempt; EXECUTE attempt; EXECUTE attempt;
					FOREACH write IN ARRAY writes LOOP
						BEGIN
							EXECUTE write;
							opened := attempt || '; ' || write;
						EXCEPTION WHEN SQLSTATE 'FN001' OR SQLSTATE 'FN002' OR SQLSTATE 'FN003' OR SQLSTATE 'FN006' THEN
						END;
					END LOOP;
					RAISE EXCEPTION 'the next begins where this one did';
				EXCEPTION WHEN OTHERS THEN
				END;
			END LOOP;
			RETURN opened;
		END $$`)
	const token = 60_000 // which is a time limit to some functions, and must not pass
	s.exec(s.fenced(token, "room:red", carry(token, "job:2")+`; UPDATE seats SET guest = NULL WHERE room = 'red'; UPDATE jobs SET state = 'RUN' WHERE id = 2`))
	writer := s.withRole("allow")
	s.exec(`GRANT ALL ON seats, jobs, moves TO ` + writer)

	const refused = `ARRAY['UPDATE seats SET guest = $$zoe$$ WHERE room = $$red$$', 'INSERT INTO seats VALUES (8, $$red$$), (9, $$red$$)', 'DELETE FROM seats WHERE id = 1',
		'UPDATE seats SET room = $$blue$$ WHERE id = 2', 'INSERT INTO moves VALUES ($${room:blue,room:red}$$)', 'UPDATE jobs SET state = $$ZOE$$ WHERE id = 2', 'DELETE FROM jobs WHERE id = 2', 'INSERT INTO jobs VALUES (3, $$x$$)']`
	text := []string{`'room:red'`, `'room:blue'`, `'INSERT'`, `'UPDATE'`, `'DELETE'`, `NULL`}
	numbers := []string{`0`, fmt.Sprint(token), `NULL`}
	tables := []string{`'seats'::regclass`, `'jobs'::regclass`}
	arguments := map[string][]string{
		"text": text, "name": text, "text[]": {`ARRAY['room:red']`, `ARRAY['room:blue', 'room:red']`, `ARRAY['room:red', 'room:blue']`, `'{}'`, `NULL`}, "name[]": {`'{id}'`},
		"bigint": numbers, "integer": numbers[:2], "double precision": {`9007199254740991`}, "boolean": {`true`, `false`},
		"regclass": tables, "oid": tables, "regprocedure": {`'fencedb_guard_seats()'::regprocedure`}, "regrole": {`current_user::regrole`},
		"uuid": {`gen_random_uuid()`, `fencedb.overtaking_lease()`, `NULL`}, "xid": {`pg_current_xact_id()::xid`, `NULL`}, "xid8": {`pg_current_xact_id()`, `NULL`},
		"jsonb": {fmt.Sprintf(`'{"room:red": "%d x"}'`, token)}, "anyelement": {`'room:red'::text`}, "bytea": {`'x'`}, "interval": {`interval '1 day'`}, "timestamp with time zone": {`now() + interval '1 day'`},
	}
	calls := map[string][]string{}
	rows, err := s.conn.Query(t.Context(), `SELECT p.oid::regproc::text, ARRAY(SELECT a::regtype::text FROM unnest(p.proargtypes) a) FROM pg_proc p
		WHERE p.pronamespace = 'fencedb'::regnamespace AND p.prorettype <> 'trigger'::regtype AND has_function_privilege($1, p.oid, 'EXECUTE')
		AND NOT 'record'::regtype = ANY (p.proargtypes) AND p.proname NOT IN ('enter', 'enter_all', 'carry', 'carry_all')`, strings.Trim(writer, `"`))
	require.NoError(t, err)
	for rows.Next() {
		var function string
		var types []string
		require.NoError(t, rows.Scan(&function, &types))
		lists := []string{""}
		for _, argument := range types {
			require.NotEmpty(t, arguments[argument], "%s takes a %s: add some", function, argument)
			var longer []string
			for _, list := range lists {
				for _, value := range arguments[argument] {
					longer = append(longer, list+", "+value)
				}
			}
			lists = longer
		}
		rand.New(rand.NewPCG(1, 2)).Shuffle(len(lists), func(i, j int) { lists[i], lists[j] = lists[j], lists[i] })
		for _, list := range lists[:min(len(lists), 1000)] {
			calls[function] = append(calls[function], `SELECT * FROM `+function+`(`+strings.TrimPrefix(list, ", ")+`)`)
		}
	}
	require.NoError(t, rows.Err())
	require.Greater(t, len(calls), 20)

	s.exec(`SET SESSION AUTHORIZATION ` + writer)
	for state, begin := range map[string]string{"nothing": `SELECT`, "entered": enter(41, "room:blue"), "carried": carry(41, "job:1")} {
		for _, attempts := range calls {
			s.exec(`BEGIN; ` + begin)
			require.Empty(t, s.one(`opens($1, `+refused+`)`, attempts), state)
			s.exec(`ROLLBACK`)
		}
	}
	s.exec(`RESET SESSION AUTHORIZATION`)
}
