package migrations_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What a resource expression may consist of: the same row must give the same resource in every
// session, at any time, to any user, and after we have stamped it.

func newShelves(t *testing.T) *session {
	s := newSession(t)
	s.exec(`CREATE TYPE mood AS ENUM ('calm', 'loud'); CREATE TYPE place AS (street text, nr int); CREATE DOMAIN code AS text CHECK (VALUE <> '');
		CREATE FUNCTION clean(text) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT lower($1) $$;
		CREATE FUNCTION stable(text) RETURNS text LANGUAGE sql STABLE AS $$ SELECT lower($1) $$;
		CREATE FUNCTION differ(int, int) RETURNS boolean LANGUAGE sql VOLATILE AS $$ SELECT random() > 0.5 $$; CREATE OPERATOR <~> (LEFTARG = int, RIGHTARG = int, FUNCTION = differ);
		CREATE TABLE shelves (id int NOT NULL, room text NOT NULL, d date NOT NULL DEFAULT now(), at timestamptz NOT NULL DEFAULT now(), ts timestamp NOT NULL DEFAULT now(), m mood NOT NULL DEFAULT 'calm',
			rel regclass NOT NULL DEFAULT 'pg_class', p place NOT NULL DEFAULT ('a', 1), c code NOT NULL DEFAULT 'x', tags text[] NOT NULL DEFAULT '{t}', j jsonb NOT NULL DEFAULT '{"a": 1}', b bytea NOT NULL DEFAULT '\x00', price money NOT NULL DEFAULT 1,
			u uuid NOT NULL DEFAULT gen_random_uuid(), v varchar(9) NOT NULL DEFAULT 'v', fix char(4) NOT NULL DEFAULT 'f', r int4range NOT NULL DEFAULT '[1,2)', days daterange NOT NULL DEFAULT '[2026-01-01,2026-01-02)', n numeric NOT NULL DEFAULT 1.5, f float8 NOT NULL DEFAULT 0.1);
		INSERT INTO shelves (id, room) VALUES (1, 'red')`)
	return s
}

func TestProtectNamesThePartThatDependsOnMoreThanTheRow(t *testing.T) {
	t.Parallel()
	s := newShelves(t)
	for expression, part := range map[string]string{
		`age(at)::text`: `function age(timestamp with time zone)`,
		`age(ts)::text`: `function age(timestamp without time zone)`,
		`has_table_privilege(room, 'select')::text`: `function has_table_privilege(text,text)`,
		`(at::date)::text`:                          `function date(timestamp with time zone)`,
		`(room::date)::text`:                        `cast to date`,
		`(room::timestamptz)::text`:                 `cast to timestamp with time zone`,
		`room::regclass::oid::text`:                 `function regclass(text)`,
		`rel::text`:                                 `type regclass`,
		`'x' || rel`:                                `type regclass`,
		`concat('x', rel)`:                          `type regclass`,
		`ARRAY[rel]::text`:                          `type regclass`,
		`p::text`:                                   `type public.place`,
		`concat(p)`:                                 `type public.place`,
		`ROW(id, room)::text`:                       `a row`,
		`(ROW(id, 1) < ROW(2, 3))::text`:            `rowcompareexpr`,
		`room::code::text`:                          `coercetodomain`,
		`xmlelement(name a, room)::text`:            `xmlexpr`,
		`to_char(at, 'YYYY')`:                       `function to_char(timestamp with time zone,text)`,
		`date_trunc('day', at)::text`:               `function date_trunc(text,timestamp with time zone)`,
		`random()::text`:                            `function random()`,
		`room || nextval('s')`:                      `function nextval(regclass)`,
		`(id <~> 3)::text`:                          `function public.differ(integer,integer)`,
		`CASE WHEN id <~> 3 THEN 'a' END`:           `function public.differ(integer,integer)`,
		`(id <~> ANY ('{1,2}'))::text`:              `function public.differ(integer,integer)`,
		`NULLIF(room, stable(room))`:                `function public.stable(text)`,
		`tags[random()::int]`:                       `function random()`,
		`coalesce(room, current_user)`:              `the time or the user`,
		`localtimestamp::text`:                      `the time or the user`,
		`to_jsonb(j)::text`:                         `function to_jsonb(anyelement)`,
		`pg_temp.mine(room)`:                        `mine(text)`,
	} {
		s.exec(`CREATE SEQUENCE IF NOT EXISTS s; CREATE OR REPLACE FUNCTION pg_temp.mine(text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT $1'`)
		for _, setting := range []string{`RESET standard_conforming_strings`, `SET standard_conforming_strings = off`} {
			s.exec(setting)
			for _, protect := range []string{`protect`, `protect_row`} {
				_, err := s.conn.Exec(t.Context(), `SELECT fencedb.`+protect+`('shelves', $1)`, expression)
				require.ErrorContains(t, err, "it depends on more than the row (", expression)
				require.ErrorContains(t, err, part, expression)
			}
		}
	}
	for expression, part := range map[string]string{
		`shelves::text`:                    `statistics creation on system columns`,
		`md5(shelves::text)`:               `statistics creation on system columns`,
		`ctid::text`:                       `statistics creation on system columns`,
		`'x' || tableoid`:                  `statistics creation on system columns`,
		`(SELECT room)`:                    `subquery`,
		`'x' || last_fencing_token`:        `after the guard has checked the row (last_fencing_token)`,
		`shelves.last_fencing_token || ''`: `after the guard has checked the row (last_fencing_token)`,
	} {
		s.exec(`ALTER TABLE shelves ADD COLUMN IF NOT EXISTS last_fencing_token bigint NOT NULL DEFAULT 0`)
		_, err := s.conn.Exec(t.Context(), `SELECT fencedb.protect('shelves', $1)`, expression)
		require.ErrorContains(t, err, part, expression)
	}
	require.Equal(t, "0", s.one(`SELECT (SELECT count(*) FROM fencedb.protected_tables) + (SELECT count(*) FROM pg_statistic_ext)`))
}

// Whatever is accepted gives the same resource whatever the session has set, in the guard as well
// as when it was protected.
func TestWhatProtectAcceptsDependsOnTheRowAlone(t *testing.T) {
	t.Parallel()
	s := newShelves(t)
	odd := []string{`datestyle = 'German'`, `timezone = 'Asia/Tokyo'`, `extra_float_digits = -12`, `bytea_output = 'escape'`, `intervalstyle = 'iso_8601'`,
		`standard_conforming_strings = off`, `quote_all_identifiers = on`, `array_nulls = off`, `transform_null_equals = on`, `search_path = pg_temp`}
	for expression, resource := range map[string]string{
		`'room:' || room || ':' || id`: `room:red:1`,
		`room`:                         `red`,
		`v || fix`:                     `vf`,
		`c || ':' || u || n`:           `x:00000000-0000-0000-0000-0000000000011.5`,
		`concat_ws('|', d, at, ts, m, b, price, f, r, days)`:  `2026-05-01|2026-05-01 12:00:00+00|2026-05-01 12:00:00|calm|\x00ff|$1,234.50|0.30000000000000004|[1,2)|[2026-01-01,2026-01-02)`,
		`format('%s-%I', room, 'plain')`:                      `red-plain`,
		`quote_ident(room)`:                                   `red`,
		`to_char(ts, 'YYYY-MM TMMonth') || to_char(n, '9D9')`: `2026-05 May 1.5`,
		`(at AT TIME ZONE 'Europe/Berlin')::date::text`:       `2026-05-01`,
		`clean(upper(room))`:                                  `red`,
		`CASE WHEN id = ANY ('{1,2}') AND NOT room IS NULL THEN coalesce(NULLIF(room, ''), 'none') ELSE greatest(v, room) END`: `red`,
		`tags[1] || (j ->> 'a') || array_to_string(tags, ',')`:                                                                 `t1t`,
		`replace(room || '\', '\', '/') || E'\t'`:                                                                              "red/\t",
		`room || '02.01.2026'::text || ('2026-01-02'::date)::text`:                                                             `red02.01.20262026-01-02`,
		`array_to_string('{a,NULL}'::text[], '-', 'none')`:                                                                     `a-none`,
		`ARRAY[room, 'z'] || tags`:                                                                                             ``,
	} {
		s.exec(`BEGIN`)
		_, err := s.conn.Exec(t.Context(), `SELECT fencedb.protect('shelves', $1)`, expression)
		require.NoError(t, err, expression)
		if resource != "" {
			const row = `INSERT INTO public.shelves VALUES (1, 'red', date '2026-05-01', timestamptz '2026-05-01 12:00:00Z', timestamp '2026-05-01 12:00:00', 'calm', 1259, NULL, 'x', '{t}', '{"a": 1}',
				decode('00ff', 'hex'), 1234.5::numeric::money, '00000000-0000-0000-0000-000000000001', 'v', 'f', int4range(1, 2), daterange(date '2026-01-01', date '2026-01-02'), 1.5, 0.1::float8 + 0.2::float8)`
			s.exec(`ALTER TABLE shelves ALTER p DROP NOT NULL; ` + enter(41, resource) + `; SAVEPOINT a; ` + row)
			for _, setting := range odd {
				s.exec(`SET LOCAL ` + setting + `; UPDATE public.shelves SET id = id WHERE last_fencing_token = 41; ROLLBACK TO a; ` + row)
			}
		}
		s.exec(`ROLLBACK`)
		for _, setting := range odd[:len(odd)-1] {
			s.exec(`BEGIN; SET LOCAL ` + setting)
			_, err := s.conn.Exec(t.Context(), `SELECT fencedb.protect('public.shelves', $1)`, expression)
			require.NoError(t, err, "%s with %s", expression, setting)
			s.exec(`ROLLBACK`)
		}
	}
}

func TestProtectRefusesRowsWithoutAResource(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE seats (floor int, id int, room text, also text[], PRIMARY KEY (floor, id)); CREATE TABLE heap (room text); CREATE TABLE child (x int) INHERITS (heap);
		CREATE TABLE parts (id int, room text UNIQUE NULLS NOT DISTINCT);
		INSERT INTO seats SELECT 1, i, CASE WHEN i > 3 THEN 'red' END FROM generate_series(1, 9) i; UPDATE seats SET also = '{a,NULL}' WHERE id = 9;
		INSERT INTO heap VALUES ('red'); INSERT INTO child VALUES (NULL); INSERT INTO parts VALUES (1, NULL), (3, 'red')`)
	const nullValue = "22004"

	err := s.refused(nullValue, `SELECT fencedb.protect('seats', $$ 'room:' || room $$)`)
	require.Contains(t, err.Message, "3 rows of public.seats")
	require.Contains(t, err.Detail, "by floor, id: (1, 1), (1, 2), (1, 3).")
	require.Contains(t, s.refused(nullValue, `SELECT fencedb.protect('seats', 'also')`).Message, "9 rows", "no list, or one with NULL in it")
	require.Contains(t, s.refused(nullValue, `SELECT fencedb.protect('seats', $$ nullif(id, 7)::text $$)`).Detail, "(1, 7).")
	require.Contains(t, s.refused(nullValue, `SELECT fencedb.protect('heap', 'room')`).Detail, "(public.child, (0,1)).")
	require.Contains(t, s.refused(nullValue, `SELECT fencedb.protect_row('parts', 'room')`).Message, "1 rows of public.parts")

	s.exec(`CREATE DOMAIN names AS text[]; CREATE TABLE lists (id int PRIMARY KEY, rooms text[] NOT NULL, v varchar(3)[] NOT NULL, n names NOT NULL, r int4range NOT NULL);
		INSERT INTO lists SELECT i, x, x, x, '(,1)' FROM (VALUES (1, '{}'::text[]), (2, '{a,NULL}'), (3, '{a}')) v(i, x)`)
	for _, list := range []string{`rooms`, `v`, `n`, `n::text[]`} {
		require.Contains(t, s.refused(nullValue, `SELECT fencedb.protect('lists', '`+list+`')`).Detail, "(1), (2).", list)
	}
	require.Contains(t, s.refused(nullValue, `SELECT fencedb.protect('lists', $$ 'r' || lower(r) $$)`).Message, "3 rows")

	// An owner does not see what a policy hides from owners too.
	owner := s.withRole("allow")
	s.exec(`CREATE TABLE hidden (room text); INSERT INTO hidden VALUES (NULL); GRANT CREATE ON SCHEMA public TO ` + owner + `; ALTER TABLE hidden OWNER TO ` + owner + `;
		ALTER TABLE hidden ENABLE ROW LEVEL SECURITY; ALTER TABLE hidden FORCE ROW LEVEL SECURITY; SET SESSION AUTHORIZATION ` + owner)
	s.refused(insufficientPrivilege, `SELECT fencedb.protect('hidden', 'room')`)
	s.exec(`ALTER TABLE hidden NO FORCE ROW LEVEL SECURITY`)
	s.refused(nullValue, `SELECT fencedb.protect('hidden', 'room')`)
	s.exec(`RESET SESSION AUTHORIZATION`)

	s.exec(`SELECT fencedb.protect('seats', $$ 'room:' || coalesce(room, '') $$)`)
	s.exec(`DELETE FROM child; SELECT fencedb.protect('heap', 'room')`)
}

// A row that is being written, and that nobody else sees yet, is one of them.
func TestProtectWaitsForRowsThatAreBeingWritten(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE seats (id int, room text)`)
	protecting := s.beside()
	s.exec(`BEGIN; INSERT INTO seats VALUES (1, NULL)`)
	done := make(chan error, 1)
	go func() {
		_, err := protecting.conn.Exec(t.Context(), `SELECT fencedb.protect('seats', $$ 'room:' || room $$)`)
		done <- err
	}()
	s.beside().awaitBlocked(protecting.conn.PgConn().PID())
	s.exec(`COMMIT`)

	require.ErrorContains(t, <-done, "the resource of 1 rows of public.seats is NULL")
}

// Where no row can be NULL none is read: a table of any size is protected in no time, and writers
// wait for nothing.
func TestProtectReadsNoRowWhereNoneCanBeNULL(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE seats (id int PRIMARY KEY, room text NOT NULL, note text, d date NOT NULL, tags text[] NOT NULL)`)
	scans := func(expression string) string {
		s.exec(`BEGIN`)
		defer s.exec(`ROLLBACK`)
		before := s.one(`SELECT pg_stat_get_xact_numscans('seats'::regclass)`)
		_, err := s.conn.Exec(t.Context(), `SELECT fencedb.protect('seats', $1)`, expression)
		require.NoError(t, err)
		return s.one(`SELECT pg_stat_get_xact_numscans('seats'::regclass) - $1::bigint`, before)
	}
	for _, simple := range []string{`'room:' || room || '/' || id`, `ARRAY['seat:' || id, lower(room)]`, `id::text`, `d || room`} {
		require.Equal(t, "0", scans(simple), simple)
	}
	for _, read := range []string{`'note:' || note`, `nullif(room, '')`, `ARRAY[room, NULL]`, `tags`} {
		require.Equal(t, "1", scans(read), read)
	}
}

func TestProtectNeedsNoTemporaryTables(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	owner := s.withRole("allow_operator")
	s.exec(`REVOKE TEMP ON DATABASE "` + s.one(`current_database()`) + `" FROM PUBLIC; GRANT CREATE ON SCHEMA public TO ` + owner)
	s.exec(`CREATE TABLE other (id int); SET SESSION AUTHORIZATION ` + owner + `; CREATE TABLE seats (id int)`)

	s.exec(`SELECT fencedb.protect('seats', $$ 'seat:' || id $$)`)

	require.NotContains(t, s.refused(insufficientPrivilege, `SELECT fencedb.protect('other', $$ 'seat:' || id $$)`).Message, "expression")
}

// A column can get another type later. What its text depends on is pinned already.
func TestASettingDoesNotChangeTheResourceOfAColumnThatIsRetyped(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE slots (day text NOT NULL); SELECT fencedb.protect('slots', $$ 'day:' || day $$); ALTER TABLE slots ALTER day TYPE date USING day::date`)

	s.exec(`SET datestyle = 'German'; ` + s.fenced(41, "day:2026-05-01", `INSERT INTO slots VALUES ('1.5.2026')`))
}
