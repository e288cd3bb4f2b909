package migrations_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/migrations"
)

// Whoever may create functions in a schema of a search_path must not get one of theirs run by our
// functions. There are two ways to stand in front of a function of Postgres: the same arguments in
// a schema that comes earlier, and arguments that fit better than "any" or a coerced type, in a
// schema that comes later.

// plantImpostors fills the schema evil. It takes every function and operator of Postgres whose name
// is somewhere in our SQL, and plants one with the same arguments, and others with combinations of
// types that our SQL could call it with; catalogs too. All raise.
const plantImpostors = `
CREATE SCHEMA evil;
CREATE FUNCTION evil.strike() RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''impostor of a catalog''; END';
DO $plant$
DECLARE
    sql  text := current_setting('impostors.sql');
    body text := 'LANGUAGE plpgsql AS ''BEGIN RAISE EXCEPTION USING MESSAGE = $m$impostor %s$m$; END''';
    f    record;
    mix  regtype[] := '{text,name,oid,regclass,int,bigint,jsonb}';
BEGIN
    FOR f IN SELECT DISTINCT p.proname, pg_get_function_identity_arguments(p.oid) AS args, pg_get_function_result(p.oid) AS result, p.oid::regprocedure AS twin
             FROM pg_proc p
             WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f' AND p.proname IN (SELECT m[1] FROM regexp_matches(sql, '([a-z_0-9]+)[(]', 'g') m)
               AND NOT p.prorettype = ANY ('{internal,cstring,trigger,event_trigger}'::regtype[])
               AND NOT 'internal'::regtype = ANY (p.proargtypes) AND NOT 'cstring'::regtype = ANY (p.proargtypes) AND NOT '"any"'::regtype = ANY (p.proargtypes)
    LOOP
        EXECUTE format('CREATE FUNCTION evil.%I(%s) RETURNS %s ' || body, f.proname, f.args, f.result, f.twin);
    END LOOP;
    FOR f IN SELECT DISTINCT p.proname, a.args, pg_get_function_result(p.oid) AS result
             FROM pg_proc p, (SELECT m1::text AS args FROM unnest(mix) m1 UNION ALL SELECT m1 || ',' || m2 FROM unnest(mix) m1, unnest(mix) m2
                              UNION ALL SELECT 'text,' || m1 || ',' || m2 FROM unnest(mix) m1, unnest(mix) m2
                              UNION ALL SELECT 'text,text,text,' || m1 FROM unnest(mix) m1 UNION ALL SELECT 'text,text,text,text,text') a
             WHERE p.pronamespace = 'pg_catalog'::regnamespace AND '"any"'::regtype = ANY (p.proargtypes) AND p.prokind = 'f'
               AND p.proname IN (SELECT m[1] FROM regexp_matches(sql, '([a-z_0-9]+)[(]', 'g') m)
    LOOP
        EXECUTE format('CREATE OR REPLACE FUNCTION evil.%I(%s) RETURNS %s ' || body, f.proname, f.args, f.result, f.proname);
    END LOOP;
    FOR f IN SELECT DISTINCT ON (o.oprname, pair.l, pair.r) o.oprname, pair.l, pair.r, format_type(o.oprresult, NULL) AS result
             FROM pg_operator o, LATERAL (SELECT l, r FROM unnest(mix) l, unnest(mix) r UNION SELECT o.oprleft, o.oprright) pair
             WHERE o.oprkind = 'b' AND strpos(sql, o.oprname) > 0 AND o.oprnamespace = 'pg_catalog'::regnamespace
               AND NOT EXISTS (SELECT FROM pg_type t WHERE t.oid IN (o.oprresult, pair.l, pair.r) AND t.typtype = 'p')
             ORDER BY o.oprname, pair.l, pair.r, (o.oprleft = pair.l) DESC, (o.oprright = pair.r) DESC
    LOOP
        EXECUTE format('CREATE FUNCTION evil.%I(%s, %s) RETURNS %s ' || body, 'op ' || f.oprname, f.l, f.r, f.result, 'operator ' || f.oprname);
        EXECUTE format('CREATE OPERATOR evil.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = evil.%I)', f.oprname, f.l, f.r, 'op ' || f.oprname);
    END LOOP;
    FOR f IN SELECT c.relname, (SELECT string_agg(a.attname, ', ') FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND a.atttypid <> 'anyarray'::regtype) AS columns
             FROM pg_class c WHERE c.relnamespace = 'pg_catalog'::regnamespace AND c.relkind IN ('r', 'v') AND sql ~ ('\m' || c.relname || '\M') LOOP
        EXECUTE format('CREATE VIEW evil.%I AS SELECT %s FROM pg_catalog.%I WHERE evil.strike()', f.relname, f.columns, f.relname);
    END LOOP;
END
$plant$;`

func (s *session) plantImpostors() {
	s.Helper()
	var ours strings.Builder
	for _, script := range migrations.Scripts() {
		ours.WriteString(script.Up)
	}
	_, err := s.conn.Exec(s.Context(), `SELECT set_config('impostors.sql', $1, false)`, ours.String())
	require.NoError(s, err)
	_, err = s.conn.PgConn().Exec(s.Context(), plantImpostors).ReadAll()
	require.NoError(s, err)
	require.Greater(s, s.one(`SELECT count(*) FROM pg_operator WHERE oprnamespace = 'evil'::regnamespace`), "1000")
}

var hostilePaths = map[string]string{
	"before pg_catalog":  `evil, pg_catalog, public`,
	"after pg_catalog":   `public, evil`,
	"named after it too": `pg_catalog, evil, public`,
}

func TestNoImpostorIsCalledByOurFunctions(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.plantImpostors()
	// They would be called, if anything called them.
	for path, calls := range map[string][]string{
		"before pg_catalog": {`format('%s', 'a'::text)`, `octet_length('a'::text)`, `cardinality('{a}'::text[])`, `1 = 1`, `'a'::text || 'b'::text`, `'a'::text ~ 'b'::text`, `current_setting('role')`, `count(*) FROM pg_trigger`},
		"after pg_catalog":  {`format('%s'::text, 'a'::text, 'b'::text)`, `1::oid = 1`, `jsonb_build_object('a'::text, 1::bigint)`},
	} {
		for _, call := range calls {
			err := s.refused("P0001", `BEGIN; SET LOCAL search_path = `+hostilePaths[path]+`; SELECT `+call)
			require.Contains(t, err.Message, "impostor", call)
		}
	}

	for name, path := range hostilePaths {
		t.Run(name, func(t *testing.T) {
			s := &session{t, s.conn}
			role := s.withRole("writer")
			s.exec(`DROP TABLE IF EXISTS public.seats, public.jobs, public.plain, public.parts, public.part_1;
				CREATE TABLE public.seats (id int PRIMARY KEY, room text NOT NULL); DROP TYPE IF EXISTS public.kind; CREATE TYPE public.kind AS ENUM ('new', 'done');
				CREATE TABLE public.jobs (name text PRIMARY KEY, day date NOT NULL, kind public.kind NOT NULL, note text); CREATE TABLE public.plain (a text NOT NULL);
				CREATE TABLE public.parts (a text NOT NULL, b text) PARTITION BY LIST (a); CREATE TABLE public.part_1 PARTITION OF public.parts FOR VALUES IN ('1');
				INSERT INTO public.parts VALUES ('1', NULL); TRUNCATE fencedb.fences`)
			defer s.exec(`RESET search_path`)
			everyCall := s.callsWithNULL()
			s.exec(`SET search_path = ` + path)

			for _, sql := range append([]string{
				// It may fail, but not through an impostor.
				`SELECT fencedb.protect('public.seats', resource => '{room}'), fencedb.protect('public.seats', resource => '{room}')`,
				`SELECT fencedb.protect('public.seats', resource => '{id}')`,
				`SELECT fencedb.protect('public.jobs', resource => ARRAY['job:{name}', 'on:{day}', '{kind}'])`,
				`SELECT fencedb.protect('public.jobs', resource => '{note}')`,
				`SELECT fencedb.protect('public.parts', resource => '{a}'); ALTER TABLE public.parts DETACH PARTITION public.part_1; DELETE FROM public.part_1`,
				`SELECT fencedb.protect('public.parts', resource => '{b}')`,
				`SELECT fencedb.protect('public.plain', resource => '{ctid}')`,
				`SELECT fencedb.protect('public.plain', resource => '{a')`,
				`SELECT fencedb.protect('public.plain', resource => '')`,
				`SELECT fencedb.protect('public.plain', resource => '{a}'), fencedb.protect('public.plain', resource => 'a')`,
				`SELECT fencedb.protect('fencedb.fences', resource => '{resource}')`,
				`INSERT INTO public.seats VALUES (1, 'red')`,
				`BEGIN; ` + enter(41, "red") + `; INSERT INTO public.seats VALUES (1, 'red'), (2, 'red'); UPDATE public.seats SET id = DEFAULT; COMMIT`,
				`BEGIN; ` + enter(41, "red") + `; INSERT INTO public.seats VALUES (1, 'red'); UPDATE public.seats SET room = 'red'; DELETE FROM public.seats; COMMIT`,
				`BEGIN; ` + enter(41, "red") + `; INSERT INTO public.seats VALUES (1, 'blue')`,
				`BEGIN; ` + enter(41, "red") + `; INSERT INTO public.seats VALUES (1, NULL)`,
				enter(40, "red"),
				`BEGIN; ` + enter(43, "red") + `; ` + enter(44, "red"),
				`SELECT fencedb.enter('red', 0, NULL)`,
				`BEGIN; SELECT fencedb.enter('red', 50, '6ba7b810-9dad-11d1-80b4-00c04fd430c8', 60000); INSERT INTO public.seats VALUES (3, 'red')`,
				`BEGIN; ` + enter(41, "job:x") + `; ` + enter(41, "on:2026-11-26") + `; ` + enter(41, "new") + `; INSERT INTO public.jobs VALUES ('x', '2026-11-26', 'new', ''); UPDATE public.jobs SET note = 'a'; DELETE FROM public.jobs; COMMIT`,
				`BEGIN; ` + enter(41, "job:x") + `; INSERT INTO public.jobs VALUES ('x', '2026-11-26', 'new', '')`,
				`TRUNCATE public.seats`,
				`SELECT fencedb.prune('once', '1 day', 'ann@host', 'monthly', 'now'), fencedb.prune('history', '0', 'ann@host', 'monthly', 'now'), fencedb.prune('observed', '0', 'ann@host', 'monthly', 'now')`,
				`SELECT fencedb.record('revoke', 'seat:1', 'ann@host', 'it hangs')`,
				`SELECT fencedb.record('protect', 'seat:1', 'ann@host', 'it hangs')`,
				`DELETE FROM fencedb.audit`,
				`SELECT fencedb.prune('fences', '2 days', 'ann@host', 'monthly', 'now', '{red}'), fencedb.prune('fences', '2 days', 'ann@host', 'monthly', NULL, '{red}')`,
				`SELECT fencedb.last_token('red')`,
				`SELECT * FROM fencedb.enter_all('{red,blue}', '{60,60}', ARRAY['6ba7b810-9dad-11d1-80b4-00c04fd430c8', '6ba7b810-9dad-11d1-80b4-00c04fd430c8']::uuid[], 60000, 60000)`,
				`BEGIN; ` + reenter(60, "red", "5000"),
				`SELECT fencedb.outcome('800', 1)`,
				`INSERT INTO fencedb.foreign_issuers VALUES ('zxid')`,
				`SELECT fencedb.reset_fence('red', 45, 'ann@host', 'a mistake')`,
				`SELECT fencedb.prune('audit', '365 days', 'ann@host', 'yearly', 'now')`, `TABLE fencedb.history`,
				`SELECT * FROM fencedb.blockers('{red}')`,
				`SELECT fencedb.allow('` + role + `'), fencedb.allow('` + role + `', operator => true)`,
				`SELECT * FROM fencedb.protected_tables`,
				`SELECT fencedb.enforce('public.seats', observing => true); INSERT INTO public.seats VALUES (7, 'red'); UPDATE public.seats SET room = 'red'; UPDATE public.seats SET room = 'red'; SET application_name = 'other'; UPDATE public.seats SET room = 'red'; TABLE fencedb.unfenced_writes`,
				`SELECT fencedb.enforce('public.seats')`,
				`SELECT fencedb.take_over_as('public.seats', session_user::regrole, 'tomorrow'), fencedb.take_over_as('public.jobs', session_user::regrole, 'tomorrow')`,
				`INSERT INTO public.seats VALUES (8, 'red'), (9, 'new'); UPDATE public.seats SET room = 'blue'; INSERT INTO public.jobs VALUES ('z', '2026-11-26', 'new', ''); UPDATE public.jobs SET note = 'a'`,
				`SELECT fencedb.take_over_as('public.seats', NULL, NULL), fencedb.take_over_as('public.jobs', NULL, NULL)`,
				`SELECT fencedb.unprotect('public.part_1')`,
				`SELECT fencedb.unprotect('public.seats'), fencedb.unprotect('public.jobs'), fencedb.unprotect('public.jobs')`,
			}, everyCall...) {
				_, err := s.conn.PgConn().Exec(t.Context(), sql).ReadAll()
				if err != nil {
					require.NotContains(t, err.Error(), "impostor", sql)
				}
				s.exec(`ROLLBACK`)
			}
			s.exec(`RESET search_path`)
			require.Equal(t, "observe take_over_as", s.one(`SELECT string_agg(event, ' ' ORDER BY id)
				FROM (SELECT event, min(id) AS id FROM fencedb.audit WHERE details ->> 'oid' = 'public.seats'::regclass::oid::text AND event ~ '^(observe|take)' GROUP BY event) seen`), "they did what they are for")
		})
	}
}

// callsWithNULL calls each function that another role can be let call, so that none is forgotten
// above.
func (s *session) callsWithNULL() (calls []string) {
	s.Helper()
	rows, _ := s.conn.Query(s.Context(), `
		SELECT format('SELECT %s(%s)', p.oid::regproc, (SELECT string_agg('NULL::' || a::regtype, ', ') FROM unnest(p.proargtypes) a))
		FROM pg_proc p WHERE p.pronamespace = 'fencedb'::regnamespace AND p.prorettype <> 'trigger'::regtype AND p.oid NOT IN (`+innerFunctions+`)`)
	for rows.Next() {
		var call string
		require.NoError(s, rows.Scan(&call))
		calls = append(calls, call)
	}
	require.NoError(s, rows.Err())
	return calls
}

// innerFunctions fix no search_path of their own: they are called in every fenced transaction or
// for every row, and SET costs microseconds each time. They have the path of the doors that call
// them, and are for their owner alone.
const innerFunctions = `SELECT p.oid FROM pg_proc p WHERE p.pronamespace = 'fencedb'::regnamespace
	AND p.proname IN ('epoch', 'await', 'take', 'check_grant')`

func TestEveryFunctionHasAFixedSearchPath(t *testing.T) {
	t.Parallel()
	s := newSession(t)

	require.Empty(t, s.one(`SELECT string_agg(p.oid::regprocedure::text, ', ') FROM pg_proc p
		WHERE p.pronamespace = 'fencedb'::regnamespace AND p.oid NOT IN (`+innerFunctions+`)
		AND p.proname <> 'enter' -- it names the schema of all that it uses, as guards do
		AND p.prosqlbody IS NULL AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (p.proconfig), false)`),
		"give it SET search_path = pg_catalog, pg_temp, or a body with RETURN")
	require.Empty(t, s.one(`SELECT string_agg(p.oid::regprocedure::text, ', ') FROM pg_proc p
		WHERE p.oid IN (`+innerFunctions+`) AND (p.prosecdef OR p.prorettype = 'trigger'::regtype
			OR EXISTS (SELECT FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a WHERE a.grantee <> p.proowner))`),
		"others can call an inner function in a search_path of theirs: REVOKE ALL ... FROM PUBLIC")
	require.Empty(t, s.one(`SELECT string_agg(c.oid::regprocedure::text, ', ') FROM pg_proc p, pg_proc c
		WHERE p.oid IN (`+innerFunctions+`) AND c.pronamespace = 'fencedb'::regnamespace AND c.prosqlbody IS NOT NULL
		AND pg_get_functiondef(c.oid) ~ ('fencedb\.' || p.proname || '\(')`),
		"it calls an inner function in the search_path of its own caller")
}

// A guard fixes no search_path, nor does what keeps its table's history, which would cost more than
// they do: all names in them have their schema.
func TestEveryGuardMeansTheSameInEverySearchPath(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(keepHistory + `CREATE TYPE kind AS ENUM ('new', 'done');
		CREATE TABLE seats (id int PRIMARY KEY, room text NOT NULL, nr varchar(9) NOT NULL, u uuid DEFAULT gen_random_uuid());
		CREATE TABLE jobs (name char(9) NOT NULL, kind kind NOT NULL, day date NOT NULL, big numeric(20) NOT NULL, u uuid NOT NULL DEFAULT '6ba7b810-9dad-11d1-80b4-00c04fd430c8', yes boolean NOT NULL DEFAULT true);
		CREATE TABLE notes (room text NOT NULL); CREATE TABLE logs (room text NOT NULL);
		SELECT fencedb.protect('seats', resource => 'room:{room}/{nr}:{id}', history => true), fencedb.protect('jobs', resource => ARRAY['{name}', '{kind}-{day}-{big}', '{u}-{yes}'], history => true),
			fencedb.protect('notes', resource => '{room}', mode => 'observe', history => true), fencedb.protect('logs', resource => '{room}', history => true)`)
	s.plantImpostors()
	// A type of the same name in an earlier schema is found first.
	s.exec(`CREATE DOMAIN evil.text AS pg_catalog.text CHECK (evil.strike()); CREATE DOMAIN evil.int8 AS pg_catalog.int8 CHECK (evil.strike()); CREATE DOMAIN evil.float8 AS pg_catalog.float8 CHECK (evil.strike())`)
	names := []string{"room:red/7:1", "job", "new-2026-11-26-12", "6ba7b810-9dad-11d1-80b4-00c04fd430c8-true", "red"}
	begin := "BEGIN"
	for _, name := range names {
		begin += "; " + enter(41, name)
	}

	for _, path := range hostilePaths {
		s.exec(`SET search_path = ` + path)
		s.exec(begin + `; INSERT INTO public.seats VALUES (1, 'red', '7'); UPDATE public.seats SET u = NULL; UPDATE public.seats SET u = NULL; DELETE FROM public.seats;
			INSERT INTO public.jobs VALUES ('job', 'new', '2026-11-26', 12); UPDATE public.jobs SET name = name; DELETE FROM public.jobs;
			INSERT INTO public.notes VALUES ('red'), ('blue'); INSERT INTO public.logs VALUES ('red'); UPDATE public.logs SET room = room; COMMIT`)
		s.exec(`INSERT INTO public.notes VALUES ('red'), ('blue'); UPDATE public.notes SET room = 'red'; DELETE FROM public.notes`)
		for table, row := range map[string]string{"seats": `(2, 'red', '7')`, "jobs": `('job', 'done', '2026-11-26', 12)`, "logs": `('blue')`} {
			s.refused("FN003", begin+`; INSERT INTO public.`+table+` VALUES `+row)
			s.refused("FN002", `INSERT INTO public.`+table+` VALUES `+row)
		}
		s.exec(`RESET search_path`)
	}
}

func TestNothingOfOursIsReadInTheSearchPathOfWhoeverMigrates(t *testing.T) {
	t.Parallel()
	_, s := empty(t)
	s.plantImpostors()
	for name, path := range hostilePaths {
		for _, script := range migrations.Scripts() {
			_, err := s.conn.PgConn().Exec(t.Context(), `BEGIN; SET LOCAL search_path = `+path+`; `+script.Up+`; COMMIT`).ReadAll()
			require.NoError(t, err, name)
		}

		require.Empty(t, s.one(`SELECT string_agg(DISTINCT pg_describe_object(d.classid, d.objid, d.objsubid), ', ') FROM pg_depend d
			WHERE pg_describe_object(d.refclassid, d.refobjid, 0) ~ '\mevil\.' AND pg_describe_object(d.classid, d.objid, 0) !~ '\mevil\.'`), name)
		s.exec(`CREATE TABLE public.seats (room text NOT NULL); SELECT fencedb.protect('public.seats', resource => '{room}')`)
		s.exec(s.fenced(41, "red", `INSERT INTO public.seats VALUES ('red')`))
		s.exec(`DROP TABLE public.seats; DROP SCHEMA fencedb CASCADE`)
	}
}
