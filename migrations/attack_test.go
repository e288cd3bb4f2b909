package migrations_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// Attacks that once got past the guard, or past the list of what is guarded.

func TestProtectRefusesTriggersThatCouldChangeAJudgedRow(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE seats (room text NOT NULL); CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.room := 'blue'; RETURN NEW; END $$;
		CREATE TRIGGER "überschreiben" BEFORE INSERT ON seats FOR EACH ROW EXECUTE FUNCTION f()`)

	s.refused("55000", `SELECT fencedb.protect('seats', '{room}')`)

	s.exec(`DROP TRIGGER "überschreiben" ON seats; CREATE TRIGGER "überprüfen" AFTER INSERT ON seats FOR EACH ROW EXECUTE FUNCTION f()`)
	s.exec(`SELECT fencedb.protect('seats', '{room}')`)
}

func TestProtectIsNotFooledByAPlantedTrigger(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE seats (room text NOT NULL); CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$`)
	for _, name := range []string{"~fencedb_row", "~fencedb_statement", "~fencedb_truncate"} {
		s.exec(`CREATE TRIGGER "` + name + `" BEFORE INSERT ON seats FOR EACH ROW EXECUTE FUNCTION f()`)
		s.refused("42710", `SELECT fencedb.protect('seats', '{room}')`)
		s.exec(`DROP TRIGGER "` + name + `" ON seats`)
	}

	// Nor does one whose comment says that it is what we make.
	planter := s.withRole("allow")
	s.exec(`GRANT TRIGGER ON seats TO ` + planter + `; CREATE SCHEMA planter AUTHORIZATION ` + planter + `; SET SESSION AUTHORIZATION ` + planter + `;
		CREATE FUNCTION planter.guard_seats() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$;
		COMMENT ON FUNCTION planter.guard_seats() IS '{"resource": ["{room}"], "columns_added": ["room"], "stamp": true}';
		CREATE TRIGGER "~fencedb_row" BEFORE INSERT ON seats FOR EACH ROW EXECUTE FUNCTION planter.guard_seats(); RESET SESSION AUTHORIZATION`)
	s.refused("42710", `SELECT fencedb.protect('seats', '{room}')`)
	s.exec(`SELECT fencedb.unprotect('seats'); DROP TRIGGER "~fencedb_row" ON seats`)
	require.Equal(t, "room", s.one(`SELECT string_agg(attname, ' ') FROM pg_attribute WHERE attrelid = 'seats'::regclass AND attnum > 0`), "its comment is not believed either")

	// Nor does one on another table break the list of protected tables.
	s.exec(`CREATE TABLE other (a int); CREATE TRIGGER "~fencedb_row" BEFORE INSERT ON other FOR EACH ROW EXECUTE FUNCTION f()`)
	s.exec(`SELECT fencedb.protect('seats', '{room}')`)
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

	s.exec(`SELECT fencedb.protect('seats', resource => 'room:{room}')`)

	require.Equal(t, "true", s.one(`SELECT enabled FROM fencedb.protected_tables`))
	s.refused("FN002", `UPDATE seats SET guest = 'zoe'`)
	s.refused("FN002", `TRUNCATE seats`)
}

func TestProtectRefusesAStampThatItCannotSet(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE seats (room text NOT NULL, last_fencing_token bigint GENERATED ALWAYS AS (7) STORED)`)

	s.refused("42804", `SELECT fencedb.protect('seats', '{room}')`)
}

// The first holder ends in time, the second does not: the second wait must not begin with a full
// time limit.
func TestWaitingForSeveralFencesEndsWithTheLease(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(enter(1, "a") + "; " + enter(1, "b"))
	for resource, hold := range map[string]string{"a": "0.1", "b": "6"} {
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

// What a session may set must not change what our functions say: each setting by itself, in a
// session of its own, since PL/pgSQL reads a function once in each.
func TestTheSessionsSettingsDoNotChangeTheVerdict(t *testing.T) {
	t.Parallel()
	owner, _, role := newLegacy(t)
	owner.exec(`CREATE TABLE notes (room text NOT NULL, day date NOT NULL DEFAULT '2026-05-01'); SELECT fencedb.protect('notes', ARRAY['{room}', 'day:{day}']); GRANT ALL ON notes TO ` + role + `; ` + enter(41, "room:blue"))
	for n, setting := range []string{`datestyle = 'German'`, `datestyle = 'SQL, DMY'`, `timezone = 'Asia/Tokyo'`, `extra_float_digits = -15`, `bytea_output = 'escape'`,
		`intervalstyle = 'iso_8601'`, `intervalstyle = 'sql_standard'`, `standard_conforming_strings = off`, `quote_all_identifiers = on`, `array_nulls = off`,
		`transform_null_equals = on`, `search_path = pg_temp, public`, `statement_timeout = '10min'`} {
		t.Run(setting, func(t *testing.T) {
			url := owner.conn.Config().ConnString()
			other, s, legacy := connect(t, url), connect(t, url), connect(t, url)
			legacy.exec(`SET SESSION AUTHORIZATION ` + role)
			token := 41 + 2*n
			red, day := enter(token, "room:red"), enter(token, "day:2026-05-01")
			other.exec(red)
			other.exec(`BEGIN; ` + red) // shares the fence
			s.exec(`SET ` + setting)

			for _, more := range []string{``, enter(41, "room:blue") + `; `, day + `; INSERT INTO notes VALUES ('room:red'); UPDATE notes SET room = 'room:red'; DELETE FROM notes; `} {
				s.exec(`BEGIN; ` + red + `; ` + more + `UPDATE seats SET guest = 'ann' WHERE room = 'red'; COMMIT`)
			}
			s.refused("FN003", `BEGIN; `+red+`; UPDATE seats SET guest = 'zoe' WHERE room = 'blue'`)
			s.refused("FN003", `BEGIN; `+red+`; INSERT INTO notes VALUES ('room:red')`)
			s.refused("22023", `BEGIN; `+red+`; SELECT fencedb.enter('room:red', 41, gen_random_uuid())`)

			// The limit is of whole milliseconds, and a later statement gets what is left of it.
			s.exec(`BEGIN; SET LOCAL statement_timeout = '10min'; ` + strings.TrimSuffix(red, ")") + `, 1611)`)
			require.Equal(t, "true", s.one(`current_setting('fencedb.lease') ~ '^[0-9]+ [0-9]+ [0-9]+ [0-9a-f]+ '`))
			s.exec(`SELECT pg_sleep(0.01); UPDATE seats SET guest = 'ann' WHERE room = 'red'`)
			require.Equal(t, "true", s.one(`extract(epoch FROM current_setting('statement_timeout')::interval) * 1000 < 1611 - 10`))
			s.exec(`ROLLBACK`)
			other.exec(`ROLLBACK`)

			// What a role has overtaken is for one table, whatever it sets in between.
			overtakes := `BEGIN; UPDATE seats SET guest = 'leo' WHERE id = 1; `
			legacy.refused("FN003", overtakes+`SELECT set_config('fencedb.lease', pg_current_xact_id() || ' 60000 60000', true); SET LOCAL `+setting+`; INSERT INTO notes VALUES ('room:red')`)
			legacy.exec(overtakes + `SET LOCAL ` + setting + `; UPDATE seats SET guest = 'max' WHERE id = 1; COMMIT`)
			require.Equal(t, strconv.Itoa(token+1), owner.one(`SELECT last_fencing_token FROM fencedb.fences WHERE resource = 'room:red'`), "once for each transaction")
		})
	}
}

// Every function that a writer may call is called with all of them, three times each. But for the
// doors: they let in whoever presents a new token.
func TestNoFunctionOpensAFenceToItsCaller(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	s.exec(`CREATE TABLE moves (a text NOT NULL, b text NOT NULL); SELECT fencedb.protect('moves', ARRAY['room:{a}', 'room:{b}']);
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
	s.exec(s.fenced(token, "room:red", `UPDATE seats SET guest = NULL WHERE room = 'red'`))
	writer := s.withRole("allow")
	s.exec(`GRANT ALL ON seats, moves TO ` + writer)

	const refused = `ARRAY['UPDATE seats SET guest = $$zoe$$ WHERE room = $$red$$', 'INSERT INTO seats VALUES (8, $$red$$), (9, $$red$$)', 'DELETE FROM seats WHERE id = 1',
		'UPDATE seats SET room = $$blue$$ WHERE id = 2', 'INSERT INTO moves VALUES ($$blue$$, $$red$$)']`
	text := []string{`'room:red'`, `'room:blue'`, `'INSERT'`, `'UPDATE'`, `'DELETE'`, `NULL`}
	numbers := []string{`0`, fmt.Sprint(token), `NULL`}
	tables := []string{`'seats'::regclass`, `'moves'::regclass`}
	arguments := map[string][]string{
		"text": text, "name": text, "text[]": {`ARRAY['room:red']`, `ARRAY['room:blue', 'room:red']`, `ARRAY['room:red', 'room:blue']`, `'{}'`, `NULL`}, "name[]": {`'{id}'`},
		"bigint": numbers, "integer": numbers[:2], "double precision": {`9007199254740991`}, "boolean": {`true`, `false`},
		"regclass": tables, "oid": tables, "regprocedure": {`'fencedb.guard_seats()'::regprocedure`}, "regrole": {`current_user::regrole`},
		"uuid": {`gen_random_uuid()`, `NULL`}, "xid": {`pg_current_xact_id()::xid`, `NULL`}, "xid8": {`pg_current_xact_id()`, `NULL`},
		"jsonb": {fmt.Sprintf(`'{"room:red": "%d x"}'`, token)}, "anyelement": {`'room:red'::text`}, "bytea": {`'x'`}, "interval": {`interval '1 day'`}, "timestamp with time zone": {`now() + interval '1 day'`},
	}
	calls := map[string][]string{}
	rows, err := s.conn.Query(t.Context(), `SELECT p.oid::regproc::text, ARRAY(SELECT a::regtype::text FROM unnest(p.proargtypes) a) FROM pg_proc p
		WHERE p.pronamespace = 'fencedb'::regnamespace AND p.prorettype <> 'trigger'::regtype AND has_function_privilege($1, p.oid, 'EXECUTE')
		AND NOT 'record'::regtype = ANY (p.proargtypes) AND p.proname NOT IN ('enter', 'enter_all', 'reenter')`, strings.Trim(writer, `"`))
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
	for state, begin := range map[string]string{"nothing": `SELECT`, "entered": enter(41, "room:blue")} {
		for _, attempts := range calls {
			s.exec(`BEGIN; ` + begin)
			require.Empty(t, s.one(`opens($1, `+refused+`)`, attempts), state)
			s.exec(`ROLLBACK`)
		}
	}
	s.exec(`RESET SESSION AUTHORIZATION`)
}

// withWriter is a role that may write to rows of tables, and may not enter.
func (s *session) withWriter(tables string) (role string) {
	s.Helper()
	role = s.withRole("allow")
	s.exec(`REVOKE ALL ON ALL FUNCTIONS IN SCHEMA fencedb FROM ` + role + `; REVOKE ALL ON ALL TABLES IN SCHEMA fencedb FROM ` + role + `; GRANT ALL ON ` + tables + ` TO ` + role)
	return role
}

// withKey is a session of role in which a guard has judged before, so that it has a key.
func (s *session) withKey(role string) *session {
	s.Helper()
	one := s.beside()
	one.exec(`CREATE TABLE IF NOT EXISTS own (id int NOT NULL); SELECT fencedb.protect('own', 'own:{id}'); ` + one.fenced(41, "own:1", `INSERT INTO own VALUES (1)`) + `; SET SESSION AUTHORIZATION ` + role)
	return one
}

// signed is fencedb.signature as anybody can compute it who knows the key, as an expression.
func signed(resource, token, key string) string {
	return `hashtextextended('` + resource + `' COLLATE "C", hashint8extended(` + token + `, hashint8extended(0, hashint8extended(txid_current(), ` + key + `))))::text`
}

func TestSignedIsTheSignature(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	s.exec(`SELECT fencedb.draw_key()`)
	require.Equal(t, "true", s.one(`SELECT fencedb.signature('room:red', 41) = `+signed("room:red", "41", `currval('fencedb.session_key')`)))
}

// forgeries is what a statement may write into the settings of the guard, as expressions, for the
// resource room:red and token 100. The last of them is the signature without the key.
var forgeries = []string{
	`'room:red'`, `hashtextextended('room:red', 0)::text`, `concat(pg_current_xact_id(), ' room:red')`, signed("room:red", "100", "0"),
}

// entered is how a transaction says that it has entered the fence of a resource, as an expression.
func entered(resource, token string, lease uuid.UUID) string {
	return fmt.Sprintf(`to_hex(hashtextextended('%s', uuid_hash_extended('%s', hashint8extended(%s, txid_current()))))`, resource, lease, token)
}

// A role that may only write rows writes what a guard would have left, where each row reads it: in
// the WHERE of its statement. It has no token, so it says which transaction it is, too.
func TestASettingWrittenInTheStatementOpensNothing(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	s.exec(s.fenced(41, "room:red", `UPDATE seats SET guest = 'ann' WHERE id = 1`))
	writer := s.withWriter("seats")
	eve := s.withKey(writer)
	before := s.one(`SELECT json_agg(seats ORDER BY id) FROM seats`)
	lease := `SELECT set_config('fencedb.lease', concat_ws(' ', pg_current_xact_id(), 600000, 600000, ` + entered("room:red", "41", leaseOf(42)) + `, to_hex(hashtextextended('room:red', hashint8extended(41, txid_current()))), ''), true); `

	for _, judged := range forgeries {
		forged := `set_config('fencedb.token', '100', true) IS NOT NULL AND set_config('fencedb.judged', ` + judged + `, true) IS NOT NULL`
		for _, write := range []string{
			`UPDATE seats SET guest = 'eve' WHERE id = 1 AND ` + forged, `DELETE FROM seats WHERE id = 1 AND ` + forged, `INSERT INTO seats SELECT 9, 'red' WHERE ` + forged,
			`UPDATE seats SET guest = 'eve' WHERE id = 1`, `INSERT INTO seats VALUES (1, 'red') ON CONFLICT (id) DO UPDATE SET guest = 'eve'`,
		} {
			eve.refused("FN002", write)
			for _, before := range []string{`SELECT ` + forged + `; `, ``} {
				eve.refused("FN003", `BEGIN; `+lease+before+write)
			}
		}
	}
	for _, secret := range []string{
		`SELECT currval('fencedb.session_key')`, `SELECT nextval('fencedb.session_key')`, `SELECT setval('fencedb.session_key', 1)`, `SELECT last_value FROM fencedb.session_key`,
		`SELECT fencedb.signature('room:red', 100)`, `SELECT fencedb.draw_key()`, `SELECT lease_id FROM fencedb.fences`, `SELECT lease_id FROM fencedb.fences_to_share`,
		`SELECT fencedb.judge('room:red', 0)`, `SELECT fencedb.judge_any('seats'::regclass, 'INSERT', NULL, '{room:red}', NULL, 'room:red', false)`,
	} {
		eve.refused(insufficientPrivilege, secret)
	}
	fresh := s.beside()
	fresh.exec(`SET SESSION AUTHORIZATION ` + writer)
	fresh.refused("55000", `BEGIN; `+lease+`SELECT set_config('fencedb.token', '100', true), set_config('fencedb.judged', '1', true); UPDATE seats SET guest = 'eve'`) // a session without a key
	require.Equal(t, before, s.one(`SELECT json_agg(seats ORDER BY id) FROM seats`))
}

// The guard of rows relies on no guard of statements.
func TestASettingOfTheSessionOpensNothingWhereNoStatementIsJudged(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE parts (id int, room text NOT NULL) PARTITION BY LIST (room); SELECT fencedb.protect('parts', 'room:{room}');
		CREATE TABLE red PARTITION OF parts FOR VALUES IN ('red');
		CREATE TABLE parent (id int, room text NOT NULL); CREATE TABLE child () INHERITS (parent); SELECT fencedb.protect('child', 'room:{room}');
		CREATE TABLE rooms (name text PRIMARY KEY); INSERT INTO rooms VALUES ('red');
		` + s.fenced(41, "room:red", `INSERT INTO red VALUES (1, 'red'); INSERT INTO child VALUES (1, 'red')`) + `;
		ALTER TABLE child ADD FOREIGN KEY (room) REFERENCES rooms ON DELETE CASCADE`)
	s.exec(`BEGIN; ` + enter(41, "room:red"))
	former := s.one(`current_setting('fencedb.lease')`)
	s.exec(`COMMIT`)
	eve := s.withKey(s.withWriter("parts, red, parent, child, rooms"))
	eve.exec(`SET fencedb.token = '100'; SET fencedb.lease = '` + former + `'`)

	for _, write := range []string{`INSERT INTO red VALUES (2, 'red')`, `UPDATE red SET id = 2`, `DELETE FROM red`, `UPDATE parent SET id = 2`, `DELETE FROM parent`, `DELETE FROM rooms`} {
		for _, judged := range forgeries {
			eve.refused("FN002", `BEGIN; SELECT set_config('fencedb.judged', `+judged+`, false); `+write)
		}
	}
}

// What a guard has judged counts in its transaction, for its resource and its token.
func TestWhatWasJudgedIsOfOneTransaction(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	const write = `UPDATE seats SET guest = 'eve' WHERE id = 1`
	s.exec("BEGIN; " + enter(41, "room:red") + "; " + write)
	judged := s.one(`current_setting('fencedb.judged')`)
	own := s.one(`current_setting('fencedb.lease')`)
	require.NotEmpty(t, judged)
	require.Equal(t, "41", s.one(`current_setting('fencedb.token')`))
	require.Equal(t, "true", s.one(`concat_ws(' ', pg_current_xact_id(), split_part($1, ' ', 2), split_part($1, ' ', 3), `+entered("room:red", "41", leaseOf(41))+`, '') = $1`, own), "as the forgeries here have it")
	setting := func(lease, token, judged string) string {
		return `SELECT set_config('fencedb.lease', '` + lease + `', LOCAL), set_config('fencedb.token', '` + token + `', LOCAL), set_config('fencedb.judged', '` + judged + `', LOCAL); `
	}
	copied := setting(own, "41", judged)

	// In the same transaction, with a higher token, and for another resource.
	s.exec(`SAVEPOINT a; ` + strings.ReplaceAll(setting(own, "42", judged), "LOCAL", "true") + write)
	require.Equal(t, "41", s.one(`SELECT last_fencing_token FROM seats WHERE id = 1`))
	s.exec(`ROLLBACK TO a`)
	s.refused("FN003", strings.ReplaceAll(copied, "LOCAL", "true")+`UPDATE seats SET guest = 'eve' WHERE room = 'blue'`)

	// In another one: what has entered nothing, another fence, and the same with a newer token.
	s.exec("BEGIN; " + enter(41, "room:red") + "; COMMIT")
	for _, local := range []string{"true", "false"} {
		forged := strings.ReplaceAll(copied, "LOCAL", local)
		s.refused("FN002", "BEGIN; "+forged+write)
		s.refused("FN003", "BEGIN; "+enter(41, "room:blue")+"; "+
			`SELECT set_config('fencedb.token', '41', `+local+`), set_config('fencedb.judged', '`+judged+`', `+local+`); `+write)
		s.refused("FN003", "BEGIN; "+enter(41, "room:blue")+`; UPDATE seats SET guest = 'bob' WHERE id = 3; SELECT set_config('fencedb.judged', '`+judged+`', `+local+`); `+write)
	}
	s.exec(`SELECT set_config('fencedb.lease', '` + own + `', false), set_config('fencedb.token', '41', false), set_config('fencedb.judged', '` + judged + `', false)`)
	for _, sql := range []string{write, `BEGIN; ` + write, `BEGIN ISOLATION LEVEL SERIALIZABLE; ` + write, `DO $$ BEGIN ` + write + `; END $$`, `COPY seats FROM PROGRAM 'printf "9\\tred\\tzoe\\t0\\n"'`} {
		s.refused("FN002", sql)
	}
	for _, setting := range []string{"", "{", own} { // whatever stands there keeps nobody from entering
		s.exec(`SELECT set_config('fencedb.lease', '` + setting + `', false)`)
		s.refused("FN002", write)
		s.exec(s.fenced(42, "room:red", write))
		require.Equal(t, "42", s.one(`SELECT last_fencing_token FROM seats WHERE id = 1`))
	}
}

// AcquireAll gives one lease id to all its resources. One that was not entered was not waited for.
func TestTheLeaseOfOneResourceIsNoneOfAnother(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	s.exec(enter(41, "room:red") + "; " + enter(41, "room:blue")) // by one lease: its id follows from the token

	s.refused("FN003", s.fenced(41, "room:red", `UPDATE seats SET guest = 'eve' WHERE room = 'blue'`))
	s.refused("FN003", s.fenced(41, "room:red", `UPDATE seats SET guest = 'eve'`))
	s.exec("BEGIN; " + enter(41, "room:red") + "; " + enter(41, "room:blue") + `; UPDATE seats SET guest = 'eve'; COMMIT`)
}

// Lock, entry and what was judged go back together, and so do they come.
func TestSavepointsTakeBackWhatTheyTakeBack(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	newer := s.beside()
	const write, red, blue = `UPDATE seats SET guest = 'eve' WHERE id = 1`, "room:red", "room:blue"
	s.exec(enter(41, red))

	for name, c := range map[string]struct{ code, sql string }{
		"entered behind it":               {"", `SAVEPOINT a; ` + enter(41, red) + `; ` + write + `; RELEASE a; ` + write},
		"rolled back":                     {"FN002", `SAVEPOINT a; ` + enter(41, red) + `; ` + write + `; ROLLBACK TO a; ` + write},
		"rolled back and entered again":   {"", `SAVEPOINT a; ` + enter(41, red) + `; ` + write + `; ROLLBACK TO a; ` + enter(41, red) + `; ` + write},
		"another one stays":               {"FN003", enter(41, blue) + `; SAVEPOINT a; ` + enter(41, red) + `; ` + write + `; ROLLBACK TO a; ` + write},
		"judged behind it":                {"", enter(41, red) + `; SAVEPOINT a; ` + write + `; ROLLBACK TO a; ` + write},
		"judged before, another behind":   {"", enter(41, red) + `; ` + enter(41, blue) + `; ` + write + `; SAVEPOINT a; UPDATE seats SET guest = 'bob' WHERE id = 3; ROLLBACK TO a; ` + write},
		"within another":                  {"FN002", `SAVEPOINT a; SAVEPOINT b; ` + enter(41, red) + `; RELEASE b; ` + write + `; ROLLBACK TO a; ` + write},
		"the name twice":                  {"", enter(41, red) + `; SAVEPOINT a; SAVEPOINT a; ` + write + `; ROLLBACK TO a; RELEASE a; ` + write},
		"an exception block":              {"FN002", `DO $$ BEGIN BEGIN PERFORM ` + strings.TrimPrefix(enter(41, red), "SELECT ") + `; ` + write + `; RAISE 'back'; EXCEPTION WHEN OTHERS THEN END; ` + write + `; END $$`},
		"an exception block that is left": {"", `DO $$ BEGIN BEGIN PERFORM ` + strings.TrimPrefix(enter(41, red), "SELECT ") + `; ` + write + `; EXCEPTION WHEN OTHERS THEN END; ` + write + `; END $$`},
		"judged in an exception block":    {"", enter(41, red) + `; DO $$ BEGIN BEGIN ` + write + `; RAISE 'back'; EXCEPTION WHEN OTHERS THEN END; ` + write + `; END $$`},
		"COMMIT AND CHAIN":                {"FN002", enter(41, red) + `; ` + write + `; COMMIT AND CHAIN; ` + write},
		"ROLLBACK AND CHAIN":              {"FN002", enter(41, red) + `; ` + write + `; ROLLBACK AND CHAIN; ` + write},
		"RESET ALL":                       {"FN002", enter(41, red) + `; ` + write + `; RESET ALL; ` + write},
		"SET LOCAL in a function":         {"", `CREATE FUNCTION f() RETURNS void LANGUAGE plpgsql SET search_path = public SET work_mem = '1MB' AS $$ BEGIN PERFORM ` + strings.TrimPrefix(enter(41, red), "SELECT ") + `; ` + write + `; END $$; SELECT f(); ` + write},
	} {
		sql := `BEGIN; ` + c.sql
		if c.code == "" {
			s.exec(sql + `; ROLLBACK`)
		} else {
			s.refused(c.code, sql)
		}
		require.NotEmpty(t, name)
	}

	s.refused("FN002", `DO $$ BEGIN PERFORM `+strings.TrimPrefix(enter(41, red), "SELECT ")+`; `+write+`; COMMIT; `+write+`; END $$`)

	// A newcomer gets a fence that was given back, and what was judged by it is judged anew.
	s.exec(`BEGIN; ` + enter(41, blue) + `; SAVEPOINT a; ` + enter(41, red) + `; ` + write + `; ROLLBACK TO a`)
	newer.exec(`SET lock_timeout = '1s'; ` + newer.fenced(42, red, write))
	s.refused("FN001", enter(41, red))

	// What was entered, put back by hand, is compared with the ledger, and locks what it has lost.
	s.exec(enter(43, red))
	s.exec(`BEGIN; ` + enter(41, blue) + `; SAVEPOINT a; ` + enter(43, red) + `; ` + write)
	own := s.one(`current_setting('fencedb.lease')`)
	s.exec(`ROLLBACK TO a; SELECT set_config('fencedb.lease', '` + own + `', true)`)
	s.exec(write)
	newer.refused("55P03", `SET lock_timeout = '50ms'; `+enter(44, red))
	s.exec(`ROLLBACK TO a`)
	newer.exec(enter(44, red))
	s.refused("FN003", `SELECT set_config('fencedb.lease', '`+own+`', true); `+write)

	// A function that has settings of its own, of ours too, gives them back.
	s.exec(`CREATE FUNCTION forgets() RETURNS void LANGUAGE sql SET fencedb.lease = '' SET fencedb.judged = '' AS $$ SELECT $$`)
	s.exec(`BEGIN; ` + enter(45, red) + `; ` + write + `; SELECT forgets(); ` + write + `; COMMIT`)
}

// A prepared transaction holds its fence like an open one; its session has entered nothing.
func TestAPreparedTransactionTakesItsEntryAlong(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	const write = `UPDATE seats SET guest = 'eve' WHERE id = 1`
	name := s.one(`current_database()`)
	s.exec(enter(41, "room:red"))

	s.exec(`BEGIN; ` + enter(41, "room:red") + `; ` + write + `; PREPARE TRANSACTION '` + name + `'`)
	s.refused("FN002", write)
	s.refused("FN002", `BEGIN; `+write)
	s.refused("55P03", strings.TrimSuffix(enter(42, "room:red"), ")")+`, 100)`)
	s.exec(`COMMIT PREPARED '` + name + `'`)
	require.Equal(t, "eve 41", s.one(`SELECT concat_ws(' ', guest, last_fencing_token) FROM seats WHERE id = 1`))
	s.refused("FN002", write)
}

// Each row of a statement may be of another resource than what its own triggers wrote last.
func TestNestedTriggersChangeWhatWasJudgedLast(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	s.exec(`CREATE TABLE log (id int, room text NOT NULL); SELECT fencedb.protect('log', 'log:{room}');
		CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO log VALUES (NEW.id, coalesce(NEW.guest, 'x')); RETURN NEW; END $$;
		CREATE TRIGGER note_before BEFORE INSERT OR UPDATE ON seats FOR EACH ROW EXECUTE FUNCTION note();
		CREATE TRIGGER note_after AFTER INSERT OR UPDATE ON seats FOR EACH ROW EXECUTE FUNCTION note()`)
	entered := "BEGIN; " + enter(41, "room:red") + "; " + enter(42, "log:x") + "; "

	for _, write := range []string{
		`UPDATE seats SET guest = 'x' WHERE room = 'red'`, `INSERT INTO seats SELECT i, 'red' FROM generate_series(10, 12) i`,
		`MERGE INTO seats USING generate_series(1, 12) v(id) ON seats.id = v.id AND room = 'red' WHEN MATCHED AND seats.id < 9 THEN UPDATE SET guest = 'x' WHEN MATCHED THEN DELETE WHEN NOT MATCHED AND v.id > 12 THEN INSERT VALUES (v.id, 'red')`,
		`INSERT INTO seats SELECT i, 'red' FROM generate_series(1, 2) i ON CONFLICT (id) DO UPDATE SET guest = 'x'`,
	} {
		s.exec(entered + write)
		require.Equal(t, "41", s.one(`SELECT string_agg(DISTINCT last_fencing_token::text, ' ') FROM seats WHERE last_fencing_token > 0`), write)
		require.Regexp(t, "^(42)?$", s.one(`SELECT string_agg(DISTINCT last_fencing_token::text, ' ') FROM log`), write)
		s.exec(`ROLLBACK`)
		s.refused("FN003", entered+write+`; UPDATE seats SET guest = 'x'`)
	}
	s.refused("FN003", entered+`INSERT INTO seats SELECT i, CASE i WHEN 12 THEN 'blue' ELSE 'red' END FROM generate_series(10, 12) i`)
	s.refused("FN003", entered+`UPDATE seats SET guest = CASE id WHEN 2 THEN 'y' ELSE 'x' END WHERE room = 'red'`)
	s.refused("FN003", entered+`INSERT INTO seats VALUES (3, 'red') ON CONFLICT (id) DO UPDATE SET guest = 'x'`)
}

// Whoever's rows have one resource is judged once; whose rows alternate is judged at each change.
func TestRowsOfOneResourceAreJudgedOnce(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE lines (id int PRIMARY KEY, sku int NOT NULL); SELECT fencedb.protect('lines', 'sku:{sku}'); SET track_functions = 'all'`)
	judged := func(entered, write string) string {
		s.exec(`BEGIN; ` + entered + `; ` + write)
		defer s.exec(`COMMIT; SELECT pg_stat_force_next_flush()`)
		return s.one(`SELECT string_agg(funcname || ' ' || calls, ', ' ORDER BY funcname) FROM pg_stat_xact_user_functions WHERE funcname IN ('judge', 'judge_any', 'judge_statement')`)
	}
	const twenty = `SELECT fencedb.enter_all(array_agg('sku:' || i), array_agg(41 + 0 * i), array_agg('6ba7b810-9dad-11d1-80b4-00c04fd430c8'::uuid)) FROM generate_series(1, 20) i`

	judged(enter(41, "sku:0"), `INSERT INTO lines VALUES (0, 0)`) // draws the key of the session
	require.Equal(t, "judge 1", judged(enter(41, "sku:0"), `INSERT INTO lines SELECT i, 0 FROM generate_series(1, 10000) i`))
	require.Equal(t, "judge 1", judged(enter(41, "sku:0"), `UPDATE lines SET id = -id; UPDATE lines SET id = -id WHERE id > -9`))
	require.Equal(t, "judge 1", judged(enter(41, "sku:0"), `DELETE FROM lines`))
	require.Equal(t, "judge 20000", judged(twenty, `INSERT INTO lines SELECT i, i % 20 + 1 FROM generate_series(1, 20000) i`))
	require.Equal(t, "judge 20", judged(twenty, `INSERT INTO lines SELECT -i, (i - 1) / 1000 + 1 FROM generate_series(1, 20000) i`))
	require.Equal(t, "judge_any 1", judged(twenty, `UPDATE lines SET sku = 2 WHERE id = 20; UPDATE lines SET sku = 2 WHERE id = 1`), "a row that moved to 2, and then a row of 2")
}

// Whoever protects a table has its guard written in the name of the owner of the schema. It must be
// the guard of that table, and nobody else's.
func TestNobodyChangesTheGuardOfAnothersTable(t *testing.T) {
	t.Parallel()
	const plant = `CREATE TABLE own.bait (id int NOT NULL, room text NOT NULL); CREATE TRIGGER "~fencedb_%s" BEFORE INSERT ON own.bait FOR EACH %s EXECUTE FUNCTION fencedb.guard_seats(); `
	for _, bait := range []string{fmt.Sprintf(plant, "row", "ROW"), fmt.Sprintf(plant, "statement", "STATEMENT"), fmt.Sprintf(plant, "truncate", "STATEMENT")} {
		for _, call := range []string{`observe('own.bait')`, `protect('own.bait', 'id:{id}', mode => 'observe')`, `protect('own.bait', 'id:{id}', stamp => false)`, `protect('own.bait', 'room:{room}')`, `unprotect('own.bait')`,
			`write_guard('own.bait', '{id:{id}}', false, true, '{}')`, `drop_guard('fencedb.guard_seats()')`} {
			s := newSeats(t)
			eve := s.withRole("allow")
			before := s.guard("seats")
			s.exec(`CREATE SCHEMA own AUTHORIZATION ` + eve)

			s.as(eve, bait+`SELECT fencedb.`+call)

			require.Equal(t, before, s.guard("seats"), call)
			s.beside().refused("FN002", `UPDATE seats SET guest = 'eve'`)
			require.Equal(t, "true false", s.one(`SELECT concat_ws(' ', enabled::text, observed::text) FROM fencedb.protected_tables WHERE table_name = 'seats'::regclass`))
		}
	}
}

// A guard runs as the owner of the schema, and anybody can put it on a table of theirs, whose
// columns have types with casts and constraints that call functions of theirs.
func TestAGuardRunsNoFunctionOfATablesOwner(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	s.exec(`CREATE TYPE mood AS ENUM ('calm'); CREATE DOMAIN code AS text; CREATE DOMAIN day AS date; CREATE DOMAIN flag AS boolean`)
	const plain = `room text, fixed char(4), m public.mood, c public.code, b boolean, f public.flag, d date, day public.day, n int, last_fencing_token bigint`
	var columns []string
	for _, column := range strings.Split(plain, ", ") {
		columns = append(columns, strings.Fields(column)[0])
	}
	s.exec(`CREATE TABLE wide (` + strings.ReplaceAll(plain, ", ", " NOT NULL, ") + ` NOT NULL); SELECT fencedb.protect('wide', '{` + strings.Join(columns[:len(columns)-1], "}:{") + `}');
		CREATE TABLE watched (LIKE seats); SELECT fencedb.protect('watched', 'room:{room}', mode => 'observe')`)
	eve := s.withRole("allow")
	s.exec(`CREATE SCHEMA eve AUTHORIZATION ` + eve + `; CREATE SEQUENCE seen; GRANT ALL ON SEQUENCE seen TO PUBLIC; SET SESSION AUTHORIZATION ` + eve + `; CREATE TYPE eve.mood AS ENUM ('calm'); CREATE TYPE eve.pair AS (x int);
		CREATE FUNCTION eve.run() RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN IF current_user <> session_user THEN PERFORM nextval('public.seen'); END IF; RETURN true; END $$; CREATE DOMAIN eve.stamp AS bigint CHECK (eve.run())`)
	for _, from := range []string{"mood", "pair"} {
		for to, value := range map[string]string{"text": `'red'`, "boolean": `true`, "date": `date '2026-05-01'`, "bigint": `1`, "timestamp": `timestamp '2026-05-01'`, "public.mood": `'calm'::public.mood`, "public.code": `'x'`} {
			name := `eve.` + from + `_to_` + strings.ReplaceAll(to, ".", "_")
			s.exec(`CREATE FUNCTION ` + name + `(eve.` + from + `) RETURNS ` + to + ` IMMUTABLE LANGUAGE sql AS $$ SELECT CASE WHEN eve.run() THEN ` + value + ` END $$; CREATE CAST (eve.` + from + ` AS ` + to + `) WITH FUNCTION ` + name + ` AS IMPLICIT`)
		}
		s.exec(`CREATE FUNCTION eve.to_` + from + `(bigint) RETURNS eve.` + from + ` LANGUAGE plpgsql AS $$ BEGIN PERFORM eve.run(); RETURN NULL; END $$; CREATE CAST (bigint AS eve.` + from + `) WITH FUNCTION eve.to_` + from + ` AS ASSIGNMENT`)
	}
	for _, guard := range []string{"wide", "seats", "watched"} {
		for i, column := range columns {
			for as, value := range map[string]string{"eve.mood": `'calm'`, "eve.pair": `'(1)'`, "eve.stamp": `'1'`} {
				types := strings.Split(plain, ", ")
				types[i] = column + " " + as
				values := `(room) VALUES (` + value + `)`
				if column != "room" {
					values = `(room, ` + column + `) VALUES ('red', ` + value + `)`
				}
				s.exec(`CREATE TABLE eve.bait (` + strings.Join(types, ", ") + `); INSERT INTO eve.bait ` + values + `;
					CREATE TRIGGER "~fencedb_row" BEFORE INSERT OR UPDATE OR DELETE ON eve.bait FOR EACH ROW EXECUTE FUNCTION fencedb.guard_` + guard + `()`)
				for _, write := range []string{`INSERT INTO eve.bait ` + values, `UPDATE eve.bait SET room = room`, `DELETE FROM eve.bait`} {
					_, _ = s.conn.PgConn().Exec(t.Context(), `BEGIN; `+enter(41, "room:red")+`; `+write).ReadAll() // refused or not
					s.exec(`ROLLBACK`)
				}
				s.exec(`DROP TABLE eve.bait`)
				require.Equal(t, "false", s.one(`SELECT is_called FROM seen`), "%s with %s %s", guard, column, as)
			}
		}
	}
	s.exec(`RESET SESSION AUTHORIZATION; DROP SCHEMA eve CASCADE`)
}
