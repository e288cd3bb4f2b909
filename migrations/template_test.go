package migrations_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

const invalidParameterValue = "22023"

// Whatever can have another text for an equal value, in another session or at another time, is
// refused with the column, its type and the way out.
func TestProtectRefusesTemplatesThatCouldNotWork(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE EXTENSION citext; CREATE COLLATION same_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
		CREATE TYPE place AS (street text, nr int); CREATE DOMAIN local_time AS timestamptz; CREATE DOMAIN amount AS numeric(6,2); CREATE DOMAIN lax AS text COLLATE same_case; CREATE DOMAIN filled AS text NOT NULL;
		CREATE TABLE odd (id int NOT NULL, room text NOT NULL, ci citext NOT NULL, lax text COLLATE same_case NOT NULL, laxd lax NOT NULL, at timestamptz NOT NULL, ts timestamp NOT NULL, tod time NOT NULL, span interval NOT NULL,
			f4 real NOT NULL, f8 double precision NOT NULL, n numeric NOT NULL, n2 numeric(6,2) NOT NULL, nn numeric(6,-2) NOT NULL, j json NOT NULL, jb jsonb NOT NULL, b bytea NOT NULL, tags text[] NOT NULL, p place NOT NULL,
			rel regclass NOT NULL, money money NOT NULL, net inet NOT NULL, bits bit(3) NOT NULL, r int4range NOT NULL, nm name NOT NULL, o oid NOT NULL, "char" "char" NOT NULL, x xml NOT NULL,
			ld local_time NOT NULL, am amount NOT NULL, twice int GENERATED ALWAYS AS (1 * 2) STORED NOT NULL, free text, dom filled, "a{b" text NOT NULL, last_fencing_token bigint NOT NULL DEFAULT 0)`)
	const typed, column, text = "of which equal values can have different texts", "Use a column of its own for it", "A template is text with columns in braces"
	type refusal struct{ template, problem, wayOut string }
	cases := []refusal{
		{``, `it is empty`, text}, {`room:{`, `a brace in it has no partner`, text}, {`room:}`, `a brace in it has no partner`, text}, {`room:{room`, `a brace in it has no partner`, text},
		{`room:{room}}`, `a brace in it has no partner`, text}, {`{{room}`, `a brace in it has no partner`, text}, {`{a{b}`, `a brace in it has no partner`, text},
		{`'room:' || room`, `it looks like an expression`, text}, {`'room:' || {room}`, `it looks like an expression`, text}, {`'room'`, `it looks like an expression`, text}, {`lower(room)`, `it looks like an expression`, text},
		{`room`, `it looks like an expression`, `as in {room}.`}, {`room::text`, `it looks like an expression`, `as in {room}.`}, {`{room}::text`, `it looks like an expression`, `as in {room}.`},
		{`room:{lower(room)}`, `there is no column "lower(room)"`, `as the catalog has them`}, {`room:{room::text}`, `there is no column`, `as the catalog has them`}, {`room:{rom}`, `there is no column "rom"`, `as the catalog has them`},
		{`room:{Room}`, `there is no column "Room"`, `without quotes`}, {`room:{"room"}`, `there is no column ""room""`, `without quotes`}, {`room:{ room }`, `there is no column " room "`, ``}, {`room:{}`, `there is no column ""`, ``},
		{`x:{ctid}`, `there is no column`, ``}, {`x:{tableoid}`, `there is no column`, ``}, {`x:{........pg.dropped.1........}`, `there is no column`, ``},
		{`x:{id}{room}`, `no text between column "room" and the column before`, `Put a separator between them`}, {`x:{id}:{id}{id}`, `no text between column "id"`, `Put a separator between them`},
		{`x:{last_fencing_token}`, `is the stamp of the guard`, column},
		{`x:{twice}`, `column "twice" is generated`, column},
		{`x:{free}`, `column "free" may be NULL`, `ALTER TABLE public.odd ALTER COLUMN free SET NOT NULL`}, {`x:{dom}`, `column "dom" may be NULL`, `SET NOT NULL`},
		{`x:{lax}`, `column "lax" has a collation that takes different texts for equal`, column}, {`x:{laxd}`, `has a collation`, column},
	}
	for name, as := range map[string]string{
		"ci": "public.citext", "at": "timestamp with time zone", "ts": "timestamp without time zone", "tod": "time without time zone", "span": "interval", "f4": "real", "f8": "double precision", "n": "numeric", "n2": "numeric(6,2)",
		"nn": "numeric(6,-2)", "j": "json", "jb": "jsonb", "b": "bytea", "tags": "text[]", "p": "public.place", "rel": "regclass", "money": "money", "net": "inet", "bits": "bit(3)", "r": "int4range", "nm": "name", "o": "oid",
		"char": `"char"`, "x": "xml", "ld": "public.local_time", "am": "public.amount",
	} {
		cases = append(cases, refusal{"x:{" + name + "}", fmt.Sprintf(`column "%s" has type %s, %s`, name, as, typed), column})
	}

	for _, c := range cases {
		for _, call := range []string{`SELECT fencedb.protect('odd', $1)`, `SELECT fencedb.protect('odd', ARRAY['fine:{id}', $1])`} {
			_, err := s.conn.Exec(t.Context(), call, c.template)
			refused := pgError(t, err)
			require.Equal(t, invalidParameterValue, refused.Code, "%s: %v", c.template, err)
			require.Contains(t, refused.Message, c.problem, c.template)
			require.Contains(t, refused.Message, "public.odd", c.template)
			require.Contains(t, refused.Hint, c.wayOut, c.template)
		}
	}
	_, err := s.conn.Exec(t.Context(), `SELECT fencedb.protect('odd', NULL::text)`)
	require.ErrorContains(t, err, "it is empty")
	for _, none := range []string{`'{}'::text[]`, `NULL::text[]`} {
		s.refused(invalidParameterValue, `SELECT fencedb.protect('odd', `+none+`)`)
	}
	require.Equal(t, "0 0", s.one(`SELECT concat((SELECT count(*) FROM fencedb.protected_tables), ' ', (SELECT count(*) FROM pg_proc WHERE proname ~ '^guard_' AND prorettype = 'trigger'::regtype))`))
	s.exec(`CREATE TABLE plain (room text NOT NULL, gone int NOT NULL); ALTER TABLE plain DROP gone`)
	s.refused(invalidParameterValue, `SELECT fencedb.protect('plain', 'x:{gone}')`)
}

// A child or a partition may be laxer than its parent.
func TestProtectRefusesColumnsThatAChildMayLeaveOut(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE heap (id int NOT NULL, room text NOT NULL); CREATE TABLE child () INHERITS (heap); CREATE TABLE later () INHERITS (heap)`)
	if s.one(`SELECT current_setting('server_version_num')::int < 180000`) == "true" { // newer ones keep what is inherited
		s.exec(`ALTER TABLE child ALTER room DROP NOT NULL`)
		refused := s.refused(invalidParameterValue, `SELECT fencedb.protect('heap', 'room:{room}')`)
		require.Contains(t, refused.Message, `column "room" may be NULL`)
		require.Contains(t, refused.Hint, "in inheritance children as well")
		s.exec(`ALTER TABLE child ALTER room SET NOT NULL; ALTER TABLE later NO INHERIT heap; SELECT fencedb.protect('heap', 'room:{room}')`)

		s.exec(`ALTER TABLE later ADD last_fencing_token bigint NOT NULL DEFAULT 0; ALTER TABLE later INHERIT heap; ALTER TABLE later ALTER room DROP NOT NULL`)
		s.refused(invalidParameterValue, `SELECT fencedb.protect('heap', 'room:{room}')`)
	}

	s.exec(`CREATE TABLE parts (room text) PARTITION BY LIST (room); CREATE TABLE red PARTITION OF parts (room NOT NULL) FOR VALUES IN ('red')`)
	s.refused(invalidParameterValue, `SELECT fencedb.protect('parts', 'room:{room}')`)
	require.Empty(t, s.one(`SELECT string_agg(t.tgname, ' ') FROM pg_trigger t WHERE t.tgrelid IN ('parts'::regclass, 'red'::regclass, 'later'::regclass)`))

	// Postgres 18 has NOT NULL that was never checked.
	s.exec(`CREATE TABLE lax (room text)`)
	if _, err := s.conn.Exec(t.Context(), `ALTER TABLE lax ADD CONSTRAINT given NOT NULL room NOT VALID`); err == nil {
		s.refused(invalidParameterValue, `SELECT fencedb.protect('lax', 'room:{room}')`)
	}
}

// Each value has one text, whatever the session has set: in the guard, and when it was protected.
func TestWhatATemplateMakesOfEachType(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TYPE mood AS ENUM ('calm', 'Very "loud"', 'odd\way'); CREATE FUNCTION shout(mood) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT 'SHOUTED'::text $$; CREATE CAST (mood AS text) WITH FUNCTION shout(mood) AS IMPLICIT;
		CREATE DOMAIN nr AS int; CREATE DOMAIN nr2 AS nr CHECK (VALUE > 0); CREATE DOMAIN code AS text CHECK (VALUE <> ''); CREATE DOMAIN short AS varchar(9); CREATE DOMAIN fixed AS char(6); CREATE DOMAIN day AS date; CREATE DOMAIN whole AS numeric(6,0);
		CREATE DOMAIN feeling AS mood; CREATE DOMAIN flag AS boolean; CREATE DOMAIN key AS uuid; CREATE DOMAIN keyed AS key`)
	odd := []string{`datestyle = 'German'`, `datestyle = 'SQL, DMY'`, `timezone = 'Asia/Tokyo'`, `extra_float_digits = -12`, `bytea_output = 'escape'`, `intervalstyle = 'iso_8601'`, `standard_conforming_strings = off`,
		`quote_all_identifiers = on`, `array_nulls = off`, `transform_null_equals = on`, `search_path = pg_temp`, `lc_time = 'C'`, `lc_numeric = 'C'`, `lc_monetary = 'C'`, `lc_messages = 'C'`, `intervalstyle = 'sql_standard'`, `client_encoding = 'GB18030'`}
	for _, style := range []string{"ISO", "SQL", "Postgres", "German"} {
		for _, order := range []string{"MDY", "DMY", "YMD"} { // what is written in one is read otherwise in another
			odd = append(odd, `datestyle = '`+style+`, `+order+`'`)
		}
	}
	for i, c := range []struct{ columns, values, template, resource string }{
		{`a smallint`, `-32768`, `x:{a}`, `x:-32768`}, {`a int`, `+007`, `x:{a}`, `x:7`}, {`a bigint`, `-9223372036854775808`, `x:{a}`, `x:-9223372036854775808`}, {`a int`, `0`, `{a}`, `0`},
		{`a numeric(6,0)`, `1234.5`, `x:{a}`, `x:1235`}, {`a numeric(38,0)`, `1e37`, `x:{a}`, `x:1` + strings.Repeat("0", 37)}, {`a numeric(6,0)`, `'NaN'`, `x:{a}`, `x:NaN`}, {`a numeric(6,0)`, `-0.0`, `x:{a}`, `x:0`},
		{`a boolean`, `true`, `x:{a}`, `x:true`}, {`a boolean`, `'f'`, `x:{a}`, `x:false`},
		{`a text`, `'it''s a \ "b" % {c} $$'`, `x:{a}`, `x:it's a \ "b" % {c} $$`}, {`a text`, `''`, `x:{a}`, `x:`}, {`a text`, `' é 座席 '`, `x:{a}`, `x: é 座席 `}, {`a text`, `E'tab\tline\n'`, `x:{a}`, "x:tab\tline\n"},
		{`a varchar(9)`, `'v '`, `x:{a}`, `x:v `}, {`a varchar`, `'v'`, `x:{a}`, `x:v`}, {`a char(6)`, `'f'`, `x:{a}!`, `x:f!`}, {`a char(6)`, `''`, `x:{a}`, `x:`}, {`a bpchar`, `'f  '`, `x:{a}!`, `x:f!`},
		{`a uuid`, `'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'`, `x:{a}`, `x:a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11`},
		{`a mood`, `'Very "loud"'`, `x:{a}`, `x:Very "loud"`}, {`a mood`, `'odd\way'`, `{a}`, `odd\way`}, {`a feeling`, `'calm'`, `x:{a}`, `x:calm`},
		{`a date`, `date '2026-05-01'`, `x:{a}`, `x:2026-05-01`}, {`a date`, `date '0001-01-01'`, `x:{a}`, `x:0001-01-01`}, {`a date`, `date '9999-12-31'`, `{a}`, `9999-12-31`}, {`a day`, `date '1969-12-31'`, `x:{a}`, `x:1969-12-31`},
		{`a nr`, `5`, `x:{a}`, `x:5`}, {`a nr2`, `5`, `x:{a}`, `x:5`}, {`a code`, `'c'`, `x:{a}`, `x:c`}, {`a short`, `'s '`, `x:{a}`, `x:s `}, {`a fixed`, `'f'`, `x:{a}`, `x:f`}, {`a whole`, `2.4`, `x:{a}`, `x:2`}, {`a flag`, `'on'`, `x:{a}`, `x:true`},
		{`a keyed`, `'{a0eebc999c0b4ef8bb6d6bb9bd380a11}'`, `x:{a}`, `x:a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11`},
		{`a text COLLATE "C", b text COLLATE "en-x-icu"`, `'a', 'b'`, `{a}/{b}`, `a/b`}, {`"A b""c'" int, "50% %1$s" text`, `1, 'x'`, `p%:{A b"c'}:{50% %1$s}`, `p%:1:x`}, {`"new" int, "old" int, token int`, `1, 2, 3`, `{new}-{old}-{token}`, `1-2-3`},
		{`a int`, `1`, `{{{a}}}`, `{1}`}, {`a int`, `1`, `{{a}} {{`, `{a} {`}, {`a int`, `1`, `config:global`, `config:global`}, {`a int`, `1`, `it's \%s {a} \\`, `it's \%s 1 \\`}, {`a int`, `1`, `$guard$ {a}`, `$guard$ 1`}, {`a int`, `1`, `x:{a}:{a}`, `x:1:1`},
	} {
		table := fmt.Sprint("t", i)
		s.exec(`CREATE TABLE ` + table + ` (id int, ` + strings.ReplaceAll(c.columns, ", ", " NOT NULL, ") + ` NOT NULL)`)
		values := c.values
		if i%2 == 1 { // half of them are protected under odd settings
			s.exec(`SET standard_conforming_strings = off; SET datestyle = 'German'; SET quote_all_identifiers = on`)
		}
		_, err := s.conn.Exec(t.Context(), `SELECT fencedb.protect('public.`+table+`', $1)`, c.template)
		require.NoError(t, err, c.template)
		s.exec(`RESET ALL; BEGIN`)
		_, err = s.conn.Exec(t.Context(), `SELECT fencedb.enter($1, 41, $2)`, c.resource, leases)
		require.NoError(t, err)
		write := `INSERT INTO public.` + table + ` VALUES (1, ` + values + `)`
		_, err = s.conn.Exec(t.Context(), write)
		require.NoError(t, err, "%s as %s", c.columns, c.template)
		s.exec(`SAVEPOINT a`)
		for _, setting := range odd {
			s.exec(`SET LOCAL ` + setting + `; UPDATE public.` + table + ` SET id = 2`)
			s.exec(`SET LOCAL client_encoding = 'UTF8'; DELETE FROM public.` + table + `; ROLLBACK TO a`)
		}
		s.exec(`COMMIT`)
		if strings.Contains(c.resource, "x:") {
			s.refused("FN003", s.fenced(41, "elsewhere", write))
		}
	}
}

// A date that no text of this form has is no resource, NOT NULL or not.
func TestADateOutsideOfTheCalendarIsRefused(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE days (d date NOT NULL, n int); CREATE TABLE both_days (d date NOT NULL, n int); SELECT fencedb.protect('days', 'day:{d}'), fencedb.protect('both_days', ARRAY['n:{d}', 'day:{d}'])`)
	for _, day := range []string{`infinity`, `-infinity`, `0001-12-31 BC`, `10000-01-01`} {
		for _, table := range []string{`days`, `both_days`} {
			for _, write := range []string{`INSERT INTO ` + table + ` VALUES ('` + day + `')`, `INSERT INTO ` + table + ` VALUES ('2026-05-01'); UPDATE ` + table + ` SET d = '` + day + `'`} {
				refused := s.refused("FN003", s.fenced(41, "day:2026-05-01", enter(41, "n:2026-05-01")+"; "+write))
				require.Contains(t, refused.Message, "has no resource", write)
			}
		}
	}
}

// Of rows that nobody could write again, the first and their number are told.
func TestProtectRefusesRowsWithoutAResource(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE seats (floor int, id int, room text NOT NULL, day date NOT NULL DEFAULT '2026-01-01', PRIMARY KEY (floor, id)); CREATE TABLE heap (room text NOT NULL); CREATE TABLE child (x int) INHERITS (heap);
		INSERT INTO seats SELECT 1, i, CASE WHEN i > 3 THEN 'red' ELSE '' END FROM generate_series(1, 9) i; INSERT INTO seats VALUES (2, 1, repeat('x', 513)), (2, 2, repeat('é', 254)); INSERT INTO seats VALUES (2, 3, 'red', 'infinity');
		INSERT INTO heap VALUES ('red'); INSERT INTO child VALUES ('')`)

	empty := s.refused(invalidParameterValue, `SELECT fencedb.protect('seats', '{room}')`)
	require.Contains(t, empty.Message, "4 rows of public.seats have no resource of 1 to 512 bytes")
	require.Contains(t, empty.Detail, "The first by floor, id: (1, 1).")
	long := s.refused(invalidParameterValue, `SELECT fencedb.protect('seats', ARRAY['seat:{floor}:{id}', 'room:{room}'])`)
	require.Contains(t, long.Message, "2 rows of public.seats", "bytes count, not characters")
	require.Contains(t, long.Detail, "(2, 1).")
	require.Contains(t, s.refused(invalidParameterValue, `SELECT fencedb.protect('seats', 'day:{day}')`).Detail, "(2, 3).")
	require.Contains(t, s.refused(invalidParameterValue, `SELECT fencedb.protect('heap', '{room}')`).Detail, "The first by table and ctid: (public.child, (0,1)).")
	require.Equal(t, "0", s.one(`SELECT count(*) FROM pg_trigger WHERE tgname ~ '^~fencedb'`))

	// An owner does not see what a policy hides from owners too.
	owner := s.withRole("writer")
	s.exec(`CREATE TABLE hidden (room text NOT NULL); INSERT INTO hidden VALUES (''); GRANT CREATE ON SCHEMA public TO ` + owner + `; ALTER TABLE hidden OWNER TO ` + owner + `;
		ALTER TABLE hidden ENABLE ROW LEVEL SECURITY; ALTER TABLE hidden FORCE ROW LEVEL SECURITY; SET SESSION AUTHORIZATION ` + owner)
	s.refused(insufficientPrivilege, `SELECT fencedb.protect('hidden', '{room}')`)
	s.exec(`ALTER TABLE hidden NO FORCE ROW LEVEL SECURITY`)
	s.refused(invalidParameterValue, `SELECT fencedb.protect('hidden', '{room}')`)
	s.exec(`RESET SESSION AUTHORIZATION; DELETE FROM child; SELECT fencedb.protect('heap', '{room}'); SELECT fencedb.protect('seats', 'seat:{floor}:{id}')`)
	s.refused(invalidParameterValue, enter(41, strings.Repeat("x", 513)))
}

// A row that is being written, and that nobody else sees yet, is one of them.
// No column is added, which would wait by itself.
func TestProtectWaitsForRowsThatAreBeingWritten(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE seats (id int, room text NOT NULL, last_fencing_token bigint NOT NULL DEFAULT 0)`)
	protecting := s.beside()
	s.exec(`BEGIN; INSERT INTO seats VALUES (1, '')`)
	done := make(chan error, 1)
	go func() {
		_, err := protecting.conn.Exec(t.Context(), `SELECT fencedb.protect('seats', '{room}')`)
		done <- err
	}()
	s.beside().awaitBlocked(protecting.conn.PgConn().PID())
	s.exec(`COMMIT`)

	require.ErrorContains(t, <-done, "1 rows of public.seats have no resource")
}

// Where every row must have a resource none is read: a table of any size is protected in no time,
// and writers wait for nothing.
func TestProtectReadsNoRowWhereEachHasAResource(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TYPE mood AS ENUM ('calm'); CREATE TABLE seats (id int PRIMARY KEY, room text NOT NULL, short varchar(20) NOT NULL, d date NOT NULL, m mood NOT NULL, n numeric(9,0) NOT NULL, u uuid NOT NULL, f boolean NOT NULL)`)
	for template, scans := range map[string]string{
		`seat:{id}`: "0", `{id}`: "0", `{m}:{n}:{u}:{f}:{short}`: "0", `config:global`: "0", `s:{short}`: "0", `{u}`: "0", `{m}`: "0", `{n}`: "0", `{f}`: "0",
		`room:{room}`: "1", `{room}`: "1", `{short}`: "1", `day:{d}`: "1",
	} {
		s.exec(`BEGIN`)
		before := s.one(`SELECT pg_stat_get_xact_numscans('seats'::regclass)`)
		_, err := s.conn.Exec(t.Context(), `SELECT fencedb.protect('seats', $1)`, template)
		require.NoError(t, err)
		require.Equal(t, scans, s.one(`SELECT pg_stat_get_xact_numscans('seats'::regclass) - $1::bigint`, before), template)
		s.exec(`SELECT fencedb.protect('seats', '` + template + `')`)
		require.Equal(t, scans, s.one(`SELECT pg_stat_get_xact_numscans('seats'::regclass) - $1::bigint`, before), "again: %s", template)
		s.exec(`ROLLBACK`)
	}
}

func TestProtectNeedsNoTemporaryTables(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	owner := s.withRole("operator")
	s.exec(`REVOKE TEMP ON DATABASE "` + s.one(`current_database()`) + `" FROM PUBLIC; GRANT CREATE ON SCHEMA public TO ` + owner)
	s.exec(`CREATE TABLE other (id int NOT NULL); SET SESSION AUTHORIZATION ` + owner + `; CREATE TABLE seats (id int NOT NULL)`)

	s.exec(`SELECT fencedb.protect('seats', 'seat:{id}')`)

	s.refused(insufficientPrivilege, `SELECT fencedb.protect('other', 'seat:{id}')`)
}

// Neither functions nor operators nor types of the writer's search_path say what a resource is.
func TestTheWritersSearchPathDoesNotChangeTheResource(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TYPE mood AS ENUM ('calm'); CREATE TABLE seats (room text NOT NULL, m mood NOT NULL, d date NOT NULL); SELECT fencedb.protect('seats', ARRAY['room:{room}:{m}:{d}', 'x:{room}'])`)
	s.exec(`CREATE SCHEMA evil; CREATE TYPE evil.mood AS ENUM ('mine'); CREATE DOMAIN evil.text AS varchar; CREATE DOMAIN evil.date AS timestamptz;
		CREATE FUNCTION evil.to_char(timestamp, text) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT 'mine' $$; CREATE FUNCTION evil.enum_out(public.mood) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT 'mine' $$;
		CREATE FUNCTION evil.cat(text, text) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT 'room:mine' $$; CREATE OPERATOR evil.|| (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.cat);
		CREATE FUNCTION evil.same(text, text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$ SELECT true $$; CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.same)`)
	const write = `SET LOCAL search_path = evil, public, pg_catalog; INSERT INTO public.seats VALUES ('red', 'calm', '2026-05-01')`

	s.refused("FN003", s.fenced(41, "room:mine", write))
	s.exec(s.fenced(41, "room:red:calm:2026-05-01", enter(41, "x:red")+`; `+write+`; `+strings.Replace(write, "INSERT", "DELETE FROM public.seats; INSERT", 1)))
}

// Postgres refuses what would change what a template reads.
func TestColumnsOfATemplateStay(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE seats (id int PRIMARY KEY, room text NOT NULL, guest text, last text NOT NULL DEFAULT ''); CREATE TABLE parts (id int NOT NULL, room text NOT NULL) PARTITION BY LIST (room); CREATE TABLE red PARTITION OF parts FOR VALUES IN ('red');
		CREATE TABLE child () INHERITS (seats); SELECT fencedb.protect('seats', ARRAY['room:{room}', 'seat:{id}', 'global']), fencedb.protect('parts', 'id:{id}')`)
	for _, table := range []string{"seats", "parts"} {
		s.refused("2BP01", `ALTER TABLE `+table+` DROP COLUMN id`)
		s.refused("0A000", `ALTER TABLE `+table+` ALTER id TYPE bigint`)
	}
	s.refused("2BP01", `ALTER TABLE seats DROP COLUMN room`)
	s.refused("0A000", `ALTER TABLE seats ALTER room TYPE varchar(20)`)
	s.exec(`ALTER TABLE seats DROP COLUMN guest; ALTER TABLE seats ALTER last TYPE varchar(20); ALTER TABLE seats ADD note text; ALTER TABLE seats RENAME TO places`)
	s.refused("FN002", `INSERT INTO places VALUES (1, 'red')`)
	s.exec(s.fenced(41, "room:red", enter(41, "seat:1")+"; "+enter(41, "global")+`; INSERT INTO places VALUES (1, 'red')`))

	// Whoever says CASCADE has the column, and a table that refuses every write.
	s.exec(`BEGIN; ALTER TABLE places DROP COLUMN room CASCADE; ` + enter(41, "room:red"))
	s.refused("42703", `INSERT INTO places VALUES (2)`)
}

// A rename fails closed, where nothing is refused it refuses nothing, and protecting again with the
// new name mends both.
func TestAColumnOfATemplateIsRenamed(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	s.exec(s.fenced(41, "room:red", `UPDATE seats SET guest = 'ann' WHERE id = 1`) + `; ALTER TABLE seats RENAME room TO hall`)
	const write = `UPDATE seats SET guest = 'zoe' WHERE id = 1`

	s.refused("FN002", write)
	s.refused("42703", s.fenced(41, "room:red", write))
	require.Contains(t, s.refused(invalidParameterValue, `SELECT fencedb.protect('seats', 'room:{room}')`).Hint, "protect the table again with its new name")
	s.exec(`SELECT fencedb.protect('seats', 'room:{hall}')`)
	require.Equal(t, "room:{hall} true", s.one(`SELECT concat_ws(' ', resource[1], enabled::text) FROM fencedb.protected_tables`))
	s.exec(s.fenced(41, "room:red", write))
	s.refused("FN003", s.fenced(41, "room:blue", write))
	s.refused("2BP01", `ALTER TABLE seats DROP COLUMN hall`)

	s.exec(`SELECT fencedb.enforce('seats', observing => true); ALTER TABLE seats RENAME hall TO place; SET application_name = 'cron'`)
	s.exec(write + `; DELETE FROM seats WHERE id = 2; ` + s.fenced(41, "room:red", write))
	require.Contains(t, s.observed(), "seats cron UPDATE 42703")
	s.exec(`SELECT fencedb.protect('seats', 'room:{place}'); SELECT fencedb.enforce('seats')`)
	s.refused("FN003", s.fenced(41, "room:blue", write))
	s.exec(s.fenced(41, "room:red", write))
}

func TestTheStampIsPutBackByProtectingAgain(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	const write, protect = `UPDATE seats SET guest = 'zoe' WHERE id = 1`, `SELECT fencedb.protect('seats', 'room:{room}')`
	s.exec(`ALTER TABLE seats DROP COLUMN last_fencing_token`)
	s.refused("FN002", write)
	s.refused("42703", s.fenced(41, "room:red", write))

	s.exec(protect)

	s.exec(s.fenced(41, "room:red", write))
	require.Equal(t, "41", s.one(`SELECT last_fencing_token FROM seats WHERE id = 1`))
	s.exec(`SELECT fencedb.unprotect('seats')`)
	require.Equal(t, "3", s.one(`SELECT count(*) FROM pg_attribute WHERE attrelid = 'seats'::regclass AND attnum > 0 AND NOT attisdropped`))
}

// The guard is in our schema, so it does not go with the table's, nor with the one it was in.
func TestATableThatMovesToAnotherSchemaKeepsItsGuard(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE SCHEMA old; CREATE TABLE old.seats (id int NOT NULL); SELECT fencedb.protect('old.seats', 'seat:{id}'); ALTER TABLE old.seats SET SCHEMA public; DROP SCHEMA old CASCADE`)

	require.Equal(t, "seats true", s.one(`SELECT concat_ws(' ', table_name, enabled::text) FROM fencedb.protected_tables`))
	s.refused("FN002", `INSERT INTO seats VALUES (1)`)
	s.refused("FN003", s.fenced(41, "seat:2", `INSERT INTO seats VALUES (1)`))
	s.exec(s.fenced(41, "seat:1", `INSERT INTO seats VALUES (1)`))
	s.exec(`ALTER TABLE seats RENAME TO places; CREATE TABLE seats (id int NOT NULL); SELECT fencedb.protect('seats', 'new:{id}')`)
	s.exec(s.fenced(41, "new:1", `INSERT INTO seats VALUES (1)`) + `; ` + s.fenced(41, "seat:1", `INSERT INTO places VALUES (1)`))
}

// A guard that has lost a part of itself is listed so, whoever took it away, and protecting again
// gives it back.
func TestAGuardThatHasLostAPartIsNotEnabled(t *testing.T) {
	t.Parallel()
	for _, trigger := range []string{"~fencedb_row", "~fencedb_statement", "~fencedb_truncate"} {
		for _, lost := range []string{`DROP TRIGGER %q ON seats`, `ALTER TABLE seats DISABLE TRIGGER %q`, `ALTER TABLE seats ENABLE REPLICA TRIGGER %q`} {
			s := newSeats(t)
			s.exec(fmt.Sprintf(lost, trigger))
			require.Equal(t, "false", s.one(`SELECT enabled FROM fencedb.protected_tables`), lost)
			require.Equal(t, "1", s.one(`SELECT count(*) FROM fencedb.protected_tables`), lost)

			s.exec(`SELECT fencedb.protect('seats', 'room:{room}')`)

			require.Equal(t, "true", s.one(`SELECT enabled FROM fencedb.protected_tables`), lost)
			s.refused("FN002", `TRUNCATE seats`)
			s.refused("FN002", `UPDATE seats SET guest = 'zoe' WHERE false`)
			s.refused("FN003", s.fenced(41, "room:blue", `UPDATE seats SET guest = 'zoe' WHERE id = 1`))
		}
	}
	s := newSeats(t)
	s.exec(`ALTER TABLE seats ENABLE ALWAYS TRIGGER "~fencedb_row"`)
	require.Equal(t, "true", s.one(`SELECT enabled FROM fencedb.protected_tables`))
}

func pgError(t *testing.T, err error) *pgconn.PgError {
	t.Helper()
	refused := new(pgconn.PgError)
	require.ErrorAs(t, err, &refused)
	return refused
}
