package migrations_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/fencedb/fencedb/internal/testenv"
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
	planter := s.withRole("writer")
	s.exec(`GRANT TRIGGER ON seats TO ` + planter + `; CREATE SCHEMA planter AUTHORIZATION ` + planter + `; SET SESSION AUTHORIZATION ` + planter + `;
		CREATE FUNCTION planter.guard_seats() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$;
		COMMENT ON FUNCTION planter.guard_seats() IS '{"resource": ["{room}"], "column_added": true, "stamp": true}';
		CREATE TRIGGER "~fencedb_row" BEFORE INSERT ON seats FOR EACH ROW EXECUTE FUNCTION planter.guard_seats(); RESET SESSION AUTHORIZATION`)
	s.refused("42710", `SELECT fencedb.protect('seats', '{room}')`)
	s.exec(`SELECT fencedb.unprotect('seats'); DROP TRIGGER "~fencedb_row" ON seats`)
	require.Equal(t, "room", s.one(`SELECT string_agg(attname, ' ') FROM pg_attribute WHERE attrelid = 'seats'::regclass AND attnum > 0`), "its comment is not believed either")

	// Nor does one on another table break the list of protected tables.
	s.exec(`CREATE TABLE other (a int); CREATE TRIGGER "~fencedb_row" BEFORE INSERT ON other FOR EACH ROW EXECUTE FUNCTION f()`)
	s.exec(`SELECT fencedb.protect('seats', '{room}')`)
	for _, facts := range []string{`not JSON`, `1`, `[]`, `{"mode": "\u0000"}`, `{"mode": "row", "column_added": 1}`, strings.Repeat("[", 100_000)} {
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
	for n, setting := range []string{`datestyle = 'German'`, `datestyle = 'SQL, DMY'`, `datestyle = 'German, MDY'`, `datestyle = 'Postgres, YMD'`, `timezone = 'Asia/Tokyo'`, `extra_float_digits = -15`, `bytea_output = 'escape'`,
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
			require.Equal(t, "true", s.one(`current_setting('fencedb.entered') ~ E'^[0-9]+ [0-9]+ [0-9]+ \x01[0-9]+r'`))
			s.exec(`SELECT pg_sleep(0.01); UPDATE seats SET guest = 'ann' WHERE room = 'red'`)
			require.Equal(t, "true", s.one(`extract(epoch FROM current_setting('statement_timeout')::interval) * 1000 < 1611 - 10`))
			s.exec(`ROLLBACK`)
			other.exec(`ROLLBACK`)

			// What a role has overtaken is the resource of its row alone, whatever it sets in between.
			overtakes := `BEGIN; UPDATE seats SET guest = 'leo' WHERE id = 1; `
			legacy.refused("FN002", overtakes+`SET LOCAL `+setting+`; INSERT INTO notes VALUES ('room:red')`)
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
	writer := s.withRole("writer")
	s.exec(`GRANT ALL ON seats, moves TO ` + writer)

	const refused = `ARRAY['UPDATE seats SET guest = $$zoe$$ WHERE room = $$red$$', 'INSERT INTO seats VALUES (8, $$red$$), (9, $$red$$)', 'DELETE FROM seats WHERE id = 1',
		'UPDATE seats SET room = $$blue$$ WHERE id = 2', 'INSERT INTO moves VALUES ($$blue$$, $$red$$)']`
	text := []string{`'room:red'`, `'room:blue'`, `'INSERT'`, `'UPDATE'`, `'DELETE'`, `NULL`}
	numbers := []string{`0`, fmt.Sprint(token), `NULL`}
	tables := []string{`'seats'::regclass`, `'moves'::regclass`}
	arguments := map[string][]string{
		"text": text, "name": text, "text[]": {`ARRAY['room:red']`, `ARRAY['room:blue', 'room:red']`, `ARRAY['room:red', 'room:blue']`, `'{}'`, `NULL`}, "name[]": {`'{id}'`}, "oid[]": {`'{}'`},
		"bigint": numbers, "integer": numbers[:2], "double precision": {`9007199254740991`}, "boolean": {`true`, `false`},
		"regclass": tables, "oid": tables, "regprocedure": {`'fencedb.guard_seats()'::regprocedure`}, "regrole": {`current_user::regrole`},
		"uuid": {`gen_random_uuid()`, `NULL`}, "xid": {`pg_current_xact_id()::xid`, `NULL`}, "xid8": {`pg_current_xact_id()`, `NULL`},
		"jsonb": {fmt.Sprintf(`'{"room:red": "%d x"}'`, token)}, "anyelement": {`'room:red'::text`}, "bytea": {`'x'`}, "interval": {`interval '1 day'`}, "timestamp with time zone": {`now() + interval '1 day'`},
	}
	calls, most := map[string][]string{}, 1000
	if testenv.Small() {
		most = 200
	}
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
		for _, list := range lists[:min(len(lists), most)] {
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

// withWriter is a role that may write to rows of tables, and may not enter. It has no TRIGGER
// privilege, with which it could replace a guard.
func (s *session) withWriter(tables string) (role string) {
	s.Helper()
	role = s.withRole("operator")
	s.exec(`REVOKE ALL ON ALL FUNCTIONS IN SCHEMA fencedb FROM ` + role + `; REVOKE ALL ON ALL TABLES IN SCHEMA fencedb FROM ` + role + `; GRANT ALL ON ` + tables + ` TO ` + role + `; REVOKE TRIGGER ON ` + tables + ` FROM ` + role)
	return role
}

// forged is the open list as enter would have left it for one resource, as an expression.
func forged(resource, token string) string {
	return `concat(pg_current_xact_id(), ' 9000000000000 9000000000000 ', E'\x01', pg_current_xact_id(), 'r` + resource + `', E'\x01t` + token + `\x01')`
}

// A login that may write to rows and may not enter writes the open list by hand, in every way in
// which a setting can be written, for every kind of table: also those whose rows no statement guard
// stands before.
func TestALoginThatMayNotEnterOpensNothing(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	allowed := s.withRole("writer")
	s.exec(`CREATE TABLE plain (id int, room text NOT NULL); CREATE VIEW seen AS SELECT * FROM plain;
		CREATE TABLE parts (id int, room text NOT NULL) PARTITION BY LIST (id); CREATE TABLE old PARTITION OF parts FOR VALUES IN (1);
		CREATE TABLE parent (id int, room text NOT NULL, last_fencing_token bigint NOT NULL DEFAULT 0); CREATE TABLE child () INHERITS (parent);
		CREATE TABLE late (LIKE parent); CREATE TABLE parent_of_late (LIKE parent);
		CREATE TABLE joined (LIKE parent); CREATE TABLE archive (LIKE parent) PARTITION BY LIST (id);
		CREATE TABLE rooms (name text PRIMARY KEY); CREATE TABLE cascaded (id int, room text NOT NULL REFERENCES rooms ON DELETE CASCADE ON UPDATE CASCADE);
		INSERT INTO rooms VALUES ('red');
		SELECT fencedb.protect(x, 'room:{room}') FROM unnest(ARRAY['plain', 'parts', 'child', 'late', 'joined', 'cascaded']::regclass[]) x;
		CREATE TABLE young PARTITION OF parts FOR VALUES IN (2);
		ALTER TABLE late INHERIT parent_of_late; ALTER TABLE archive ATTACH PARTITION joined FOR VALUES IN (1, 2);
		` + s.fenced(41, "room:red", `INSERT INTO plain VALUES (1, 'red'); INSERT INTO parts VALUES (1, 'red'), (2, 'red'); INSERT INTO child VALUES (1, 'red');
			INSERT INTO late VALUES (1, 'red'); INSERT INTO joined VALUES (1, 'red'); INSERT INTO cascaded VALUES (1, 'red')`) + `;
		CREATE FUNCTION forge() RETURNS boolean LANGUAGE sql AS $$ SELECT set_config('fencedb.entered', ` + forged("room:red", "100") + `, true) IS NOT NULL $$;
		CREATE FUNCTION forge_row() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM forge(); RETURN NEW; END $$;
		GRANT ALL ON SCHEMA public TO PUBLIC`)
	const tables = "plain, seen, parts, old, young, parent, child, late, parent_of_late, joined, archive, rooms, cascaded"
	eve := s.withWriter(tables)
	s.exec(`GRANT ALL ON ` + tables + ` TO ` + allowed + `; SET SESSION AUTHORIZATION ` + allowed + `;
		CREATE FUNCTION lent(write text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN EXECUTE write; END $$;
		SET SESSION AUTHORIZATION ` + eve + `; CREATE TABLE own (id int, forged boolean DEFAULT forge()); CREATE VIEW own_view AS SELECT forge() AS forged;
		CREATE TABLE fires (write text); CREATE FUNCTION fire() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM forge(); EXECUTE NEW.write; RETURN NEW; END $$;
		CREATE TRIGGER fire BEFORE INSERT ON fires FOR EACH ROW EXECUTE FUNCTION fire(); RESET SESSION AUTHORIZATION`)
	before := `SELECT (SELECT json_agg(x) FROM plain x), (SELECT json_agg(x) FROM parts x), (SELECT json_agg(x) FROM parent x), (SELECT json_agg(x) FROM late x), (SELECT json_agg(x) FROM archive x), (SELECT json_agg(x) FROM cascaded x)`
	held := s.one(`SELECT concat_ws(' ', x.*) FROM (` + before + `) x`)
	thief := s.beside()
	thief.exec(`SET SESSION AUTHORIZATION ` + eve)

	writes := map[string]string{"a cascade of DELETE": `DELETE FROM rooms`, "a cascade of UPDATE": `UPDATE rooms SET name = 'blue'`}
	for _, table := range []string{"plain", "seen", "parts", "old", "young", "parent", "child", "late", "parent_of_late", "joined", "archive", "cascaded"} {
		writes["UPDATE "+table] = `UPDATE ` + table + ` SET id = id WHERE %s`
		writes["DELETE "+table] = `DELETE FROM ` + table + ` WHERE %s`
		if id := map[string]string{"young": "2"}[table]; table != "parent" && table != "parent_of_late" {
			writes["INSERT "+table] = `INSERT INTO ` + table + ` SELECT ` + cmp.Or(id, "1") + `, 'red' WHERE %s`
		}
	}
	for name, write := range writes {
		plain, here := write, write
		if strings.Contains(write, "%s") {
			plain, here = fmt.Sprintf(write, "true"), fmt.Sprintf(write, "forge()")
		}
		quoted := strings.ReplaceAll(plain, "'", "''")
		for how, sql := range map[string]string{
			"not at all":                        plain,
			"before":                            `BEGIN; SELECT forge(); ` + plain,
			"before, behind a savepoint":        `BEGIN; SAVEPOINT a; SELECT forge(); ` + plain,
			"in the statement":                  here,
			"in a statement that began forged":  `BEGIN; SELECT forge(); ` + here,
			"by a view":                         `BEGIN; SELECT * FROM own_view; ` + plain,
			"by a default":                      `BEGIN; INSERT INTO own (id) VALUES (1); ` + plain,
			"by a trigger that writes as well":  `INSERT INTO fires VALUES ('` + quoted + `')`,
			"in the session":                    `SET fencedb.entered = 'x'; SELECT forge(); ` + plain,
			"in a DO block":                     `DO $x$ BEGIN PERFORM forge(); ` + plain + `; END $x$`,
			"with a function of one who may":    `BEGIN; SELECT forge(); SELECT lent('` + quoted + `')`,
			"in the statement of one who may":   `SELECT lent('` + strings.ReplaceAll(here, "'", "''") + `')`,
			"in a transaction that is prepared": `BEGIN; SELECT forge(); ` + plain + `; PREPARE TRANSACTION 'eve'`,
		} {
			_, err := thief.conn.PgConn().Exec(t.Context(), sql).ReadAll()
			require.Contains(t, []string{"FN002", "55000"}, sqlstate(err), "%s: %s: %v", name, how, err)
			_, err = thief.conn.PgConn().Exec(t.Context(), `ROLLBACK`).ReadAll()
			require.NoError(t, err)
		}
	}
	require.Equal(t, held, s.one(`SELECT concat_ws(' ', x.*) FROM (`+before+`) x`))

	// Somebody who may enter needs no forgery, and is believed.
	s.exec(`SET SESSION AUTHORIZATION ` + allowed + `; BEGIN; SELECT forge(); UPDATE plain SET id = 5; ROLLBACK`)
	s.exec(`RESET SESSION AUTHORIZATION`)
}

// Who writes is the login. A role that is set behind the fence, the owner of a table in a cascade,
// and a function with the rights of another role may not enter, and need not.
func TestARoleThatIsSetBehindTheFenceWrites(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	login, tenant := s.withRole("writer"), s.withWriter("seats")
	s.exec(`GRANT ` + tenant + ` TO ` + login + `; CREATE TABLE rooms (name text PRIMARY KEY); INSERT INTO rooms VALUES ('red'), ('blue'); GRANT ALL ON rooms TO ` + login + `, ` + tenant + `;
		ALTER TABLE seats ADD FOREIGN KEY (room) REFERENCES rooms ON DELETE CASCADE; ALTER TABLE seats OWNER TO ` + tenant + `; GRANT ALL ON seats TO ` + login + `; GRANT CREATE ON SCHEMA public TO ` + tenant + `;
		SET SESSION AUTHORIZATION ` + tenant + `; CREATE FUNCTION lent() RETURNS void LANGUAGE sql SECURITY DEFINER AS $$ UPDATE seats SET guest = 'leo' WHERE room = 'red' $$;
		SET SESSION AUTHORIZATION ` + login)

	for name, write := range map[string]string{
		"SET LOCAL ROLE": `SET LOCAL ROLE ` + tenant + `; UPDATE seats SET guest = 'leo' WHERE room = 'red'`,
		"a cascade":      `DELETE FROM rooms WHERE name = 'red'`,
		"a function":     `SELECT lent()`,
	} {
		s.exec(`BEGIN; ` + enter(41, "room:red") + `; ` + write + `; ROLLBACK`)
		s.refused("FN003", `BEGIN; `+enter(41, "room:blue")+`; `+write)
		s.refused("FN002", `BEGIN; `+write)
		require.NotEmpty(t, name)
	}
	s.exec(`SET SESSION AUTHORIZATION ` + tenant)
	s.refused("FN002", `UPDATE seats SET guest = 'eve'`)
	s.exec(`RESET SESSION AUTHORIZATION`)
}

// Postgres runs the code of others in the session of a superuser, with their rights: an expression
// of an index, for example, when ANALYZE reads a sample.
func TestCodeOfOthersOpensNothingInTheSessionOfASuperuser(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	s.exec(s.fenced(41, "room:red", `UPDATE seats SET guest = 'ann' WHERE room = 'red'`))
	eve := s.withWriter("seats")
	s.exec(`CREATE SCHEMA eve AUTHORIZATION ` + eve + `; SET SESSION AUTHORIZATION ` + eve + `;
		CREATE SEQUENCE eve.tried; CREATE SEQUENCE eve.wrote; CREATE FUNCTION eve.write() RETURNS int LANGUAGE plpgsql AS $$
		BEGIN
			PERFORM set_config('fencedb.entered', ` + forged("room:red", "100") + `, true), nextval('eve.tried');
			UPDATE public.seats SET guest = 'eve' WHERE id = 1;
			RETURN nextval('eve.wrote');
		EXCEPTION WHEN SQLSTATE 'FN002' THEN
			RETURN 1;
		END $$;
		CREATE FUNCTION eve.index(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RETURN eve.write() + i; END $$;
		CREATE TABLE eve.bait (i int); INSERT INTO eve.bait SELECT generate_series(1, 100); CREATE INDEX ON eve.bait (eve.index(i)); RESET SESSION AUTHORIZATION; SELECT setval('eve.tried', 1, false)`)

	for _, code := range []string{`ANALYZE eve.bait`, `REINDEX TABLE eve.bait`} {
		s.exec(code)
		require.Equal(t, "true", s.one(`SELECT is_called FROM eve.tried`), code)
		s.exec(`SELECT setval('eve.tried', 1, false)`)
	}
	require.Equal(t, "false", s.one(`SELECT is_called FROM eve.wrote`))
	require.Equal(t, "ann", s.one(`SELECT guest FROM seats WHERE id = 1`))
}

// A list counts in its transaction, for its resources.
func TestTheListIsOfOneTransaction(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	s.exec(`CREATE TABLE parts (id int, room text NOT NULL) PARTITION BY LIST (room); SELECT fencedb.protect('parts', 'room:{room}');
		CREATE TABLE red PARTITION OF parts FOR VALUES IN ('red');
		CREATE TABLE parent (id int, room text NOT NULL); CREATE TABLE child () INHERITS (parent); SELECT fencedb.protect('child', 'room:{room}');
		CREATE TABLE rooms (room text PRIMARY KEY); INSERT INTO rooms VALUES ('red'); CREATE TABLE beds (room text NOT NULL REFERENCES rooms ON DELETE CASCADE); SELECT fencedb.protect('beds', 'room:{room}')`)
	s.exec(s.fenced(41, "room:red", `INSERT INTO red VALUES (1, 'red'); INSERT INTO child VALUES (1, 'red'); INSERT INTO beds VALUES ('red')`))
	const write = `UPDATE seats SET guest = 'eve' WHERE id = 1`
	s.exec("BEGIN; " + enter(41, "room:red") + "; " + write)
	own := s.one(`current_setting('fencedb.entered')`)
	require.Equal(t, "true", s.one(`regexp_replace($1, ' [0-9]+ [0-9]+ ', ' ') = regexp_replace(`+forged("room:red", "41")+`, ' [0-9]+ [0-9]+ ', ' ')`, own), "as the forgeries here have it")
	s.exec("COMMIT")

	put := `SELECT set_config('fencedb.entered', E'` + strings.ReplaceAll(own, "\x01", `\x01`) + `', %s)`
	for _, local := range []string{"true", "false"} {
		again := fmt.Sprintf(put, local)
		s.refused("FN002", "BEGIN; "+again+"; "+write)
		for _, unseen := range []string{`INSERT INTO red VALUES (2, 'red')`, `UPDATE red SET id = 2`, `DELETE FROM red`, `UPDATE parent SET id = 2`, `DELETE FROM parent`, `DELETE FROM rooms`} { // no statement guard stands before them, or it leaves them to the guard of rows
			s.refused("FN002", "BEGIN; "+again+"; "+unseen)
			s.refused("FN002", "BEGIN; SELECT pg_current_xact_id(); "+again+"; "+unseen)
		}
		s.refused("FN003", "BEGIN; "+enter(41, "room:blue")+"; SELECT set_config('fencedb.entered', current_setting('fencedb.entered') || (SELECT regexp_replace(E'"+own+"', '^.* ', '')), "+local+"); "+write)
	}
	s.exec(fmt.Sprintf(put, "false"))
	for _, sql := range []string{write, `BEGIN; ` + write, `BEGIN ISOLATION LEVEL SERIALIZABLE; ` + write, `DO $$ BEGIN ` + write + `; END $$`, `COPY seats FROM PROGRAM 'printf "9\\tred\\tzoe\\t0\\n"'`} {
		s.refused("FN002", sql)
	}
	for _, setting := range []string{"", "{", own} { // whatever stands there keeps nobody from entering
		s.exec(`SELECT set_config('fencedb.entered', E'` + setting + `', false)`)
		s.refused("FN002", write)
		s.exec(s.fenced(42, "room:red", write))
		require.Equal(t, "42", s.one(`SELECT last_fencing_token FROM seats WHERE id = 1`))
	}
}

// No resource and no token of an entry can be taken for those of another.
func TestAnEntryIsOfItsResource(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE notes (r text NOT NULL); SELECT fencedb.protect('notes', '{r}')`)
	const odd = `E'a\x01t9\x01'`
	for _, sql := range []string{`SELECT fencedb.enter(` + odd + `, 41, gen_random_uuid())`, `SELECT fencedb.enter_all(ARRAY['a', ` + odd + `], '{41,41}', ARRAY[gen_random_uuid(), gen_random_uuid()])`,
		`SELECT coalesce((SELECT r FROM fencedb.reenter(` + odd + `, 41, '6ba7b810-9dad-11d1-80b4-00c04fd430c8') r), fencedb.enter(` + odd + `, 41, '6ba7b810-9dad-11d1-80b4-00c04fd430c8')::text)`} {
		s.refused("22023", sql)
	}
	s.refused("23514", `INSERT INTO fencedb.fences (resource, last_fencing_token, lease_id) VALUES (`+odd+`, 1, gen_random_uuid())`)
	for _, entered := range []string{"ab", "a", "b", "a b", "a:1", "a:11", "1", "t41", "ra"} {
		for _, row := range []string{"ab", "a", "b", "a b", "a:1", "a:11", "1", "t41", "ra"} {
			if write := s.fenced(41, entered, `INSERT INTO notes VALUES ('`+row+`')`); entered == row {
				s.exec(write)
			} else {
				s.refused("FN003", write)
			}
		}
	}
	s.refused("FN003", s.fenced(41, "a", `INSERT INTO notes VALUES (`+odd+`)`))
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

	// What was entered, put back by hand, is believed: this login may enter.
	s.exec(enter(43, red))
	s.exec(`BEGIN; ` + enter(41, blue) + `; SAVEPOINT a; ` + enter(43, red) + `; ` + write)
	own := s.one(`current_setting('fencedb.entered')`)
	s.exec(`ROLLBACK TO a; SELECT set_config('fencedb.entered', E'` + own + `', true); ` + write + `; ROLLBACK`)

	// A function that has settings of its own, of ours too, gives them back.
	s.exec(`CREATE FUNCTION forgets() RETURNS void LANGUAGE sql SET fencedb.entered = '' AS $$ SELECT $$`)
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

// A row whose resource was entered costs no call, whichever was written before it.
func TestRowsAreJudgedAtAGlance(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE lines (id int PRIMARY KEY, sku int NOT NULL); SELECT fencedb.protect('lines', 'sku:{sku}'); SET track_functions = 'all'`)
	judged := func(entered, write string) string {
		s.exec(`BEGIN; ` + entered + `; ` + write)
		defer s.exec(`COMMIT; SELECT pg_stat_force_next_flush()`)
		return s.one(`SELECT string_agg(funcname || ' ' || calls, ', ' ORDER BY funcname) FROM pg_stat_xact_user_functions WHERE funcname IN ('check_row', 'check_statement', 'token_of', 'refuse')`)
	}
	const twenty = `SELECT fencedb.enter_all(array_agg('sku:' || i), array_agg(41 + 0 * i), array_agg('6ba7b810-9dad-11d1-80b4-00c04fd430c8'::uuid)) FROM generate_series(1, 20) i`

	for _, write := range []string{`INSERT INTO lines SELECT i, 0 FROM generate_series(1, 1000) i`, `UPDATE lines SET id = -id; UPDATE lines SET id = -id WHERE id > -9`, `DELETE FROM lines`} {
		require.Empty(t, judged(enter(41, "sku:0"), write), write)
	}
	require.Empty(t, judged(twenty, `INSERT INTO lines SELECT i, i % 20 + 1 FROM generate_series(1, 2000) i`))
	require.Equal(t, "check_row 1", judged(twenty, `UPDATE lines SET sku = 2 WHERE id = 20; UPDATE lines SET sku = 2 WHERE id = 1`), "a row that moved to 2, and then a row of 2")
}

// Whoever protects a table has its guard written in the name of the owner of the schema. It must be
// the guard of that table, and nobody else's.
func TestNobodyChangesTheGuardOfAnothersTable(t *testing.T) {
	t.Parallel()
	const plant = `CREATE TABLE own.bait (id int NOT NULL, room text NOT NULL); CREATE TRIGGER "~fencedb_%s" BEFORE INSERT ON own.bait FOR EACH %s EXECUTE FUNCTION fencedb.guard_seats(); `
	for _, bait := range []string{fmt.Sprintf(plant, "row", "ROW"), fmt.Sprintf(plant, "statement", "STATEMENT"), fmt.Sprintf(plant, "truncate", "STATEMENT")} {
		for _, call := range []string{`observe('own.bait')`, `protect('own.bait', 'id:{id}', mode => 'observe')`, `protect('own.bait', 'room:{room}')`, `unprotect('own.bait')`,
			`write_guard('own.bait')`, `order_guard('own.bait', '{"resource": ["id:{id}"], "observes": true}'), fencedb.write_guard('own.bait')`, `write_guard('public.seats')`, `drop_guard('fencedb.guard_seats()')`} {
			s := newSeats(t)
			eve := s.withRole("writer")
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
	eve := s.withRole("writer")
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

// A cascade runs with the rights of the owner of its table. So where a superuser acts as a role,
// that one is asked: the owner may be somebody who may enter, or the superuser.
func TestACascadeOfARoleThatMayNotEnterOpensNothing(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE orders (id int PRIMARY KEY); CREATE TABLE lines (order_id int REFERENCES orders ON DELETE CASCADE ON UPDATE CASCADE, room text NOT NULL); SELECT fencedb.protect('lines', 'room:{room}')`)
	s.exec(`INSERT INTO orders VALUES (1); ` + s.fenced(41, "room:red", `INSERT INTO lines VALUES (1, 'red')`))
	writer := s.withWriter("orders")
	for _, owner := range []string{"CURRENT_USER", s.withRole("writer")} {
		s.exec(`ALTER TABLE lines OWNER TO ` + owner)
		for _, write := range []string{`DELETE FROM orders`, `UPDATE orders SET id = 2`} {
			for _, acts := range []string{`SET SESSION AUTHORIZATION `, `SET ROLE `} {
				s.refused("FN002", acts+writer+`; BEGIN; SELECT set_config('fencedb.entered', `+forged("room:red", "41")+`, true); `+write)
				s.exec(`ROLLBACK; RESET ROLE; RESET SESSION AUTHORIZATION`)
			}
			s.exec(`BEGIN; ` + enter(41, "room:red") + `; ` + write + `; ROLLBACK`)
		}
	}
	s.exec(`ALTER TABLE lines OWNER TO CURRENT_USER`)
}

// Postgres does not set the timer of transaction_timeout back with a savepoint, so only the first
// entry of a transaction lowers it.
func TestAShorterEntryBehindASavepointGoesBack(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	s.exec(`BEGIN; ` + strings.TrimSuffix(enter(41, "room:red"), ")") + `, 60000); SAVEPOINT a; ` + strings.TrimSuffix(enter(41, "room:blue"), ")") + `, 500)`)
	require.Equal(t, "true", s.one(`fencedb.left_ms() <= 500`))
	s.exec(`ROLLBACK TO a; SELECT pg_sleep(0.6); UPDATE seats SET guest = 'ann' WHERE room = 'red'; COMMIT`)

	// A limit of the session stays as short as the entry that went back, until the next one.
	s.exec(`SELECT set_config('transaction_timeout', '1h', false) WHERE current_setting('transaction_timeout', true) IS NOT NULL`)
	s.exec(`BEGIN; SAVEPOINT a; ` + strings.TrimSuffix(enter(41, "room:red"), ")") + `, 500); ROLLBACK TO a; ` + strings.TrimSuffix(enter(41, "room:red"), ")") + `, 60000)`)
	s.exec(`SELECT pg_sleep(0.6); UPDATE seats SET guest = 'ben' WHERE room = 'red'; COMMIT`)
}
