package migrations_test

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

// Whatever text is passed as a resource expression: it is refused, or it protects the table. It
// never does anything else.
func FuzzResourceExpression(f *testing.F) {
	for _, seed := range []string{
		`'seat:' || id`, `room`, `ARRAY[room, 'id:' || id]`, `room::varchar`, `coalesce(room, 'none')`, `lower(room) || E'\n'`, // good
		``, `id`, `nothing`, `'open`, `room)`, `(room`, `room, room`, `$1`, `?`, `:x`, // bad
		`room; DROP TABLE witness`, `room); DROP TABLE witness; SELECT (room`, `room) IS NOT NULL); DROP TABLE witness; --`,
		`room)); DROP TABLE witness; --`, `(SELECT room FROM witness LIMIT 1)`, `(DELETE FROM witness RETURNING room)`,
		`room /* open`, `room -- comment`, `room $$`, `$body$ room $body$`, `%1$s`, `%2$I`, `%L`, `OLD.room`, `NEW.room`, `TG_OP`, `"~before"`,
		`pg_sleep(0)::text`, `current_setting('x')`, `nextval('q')::text`, `query_to_xml('DROP TABLE witness', true, true, '')::text`,
		"room\x00", "r\xffoom", `U&"\0072oom"`, `seats.room`, `seats::text`, `seats.*::text`, `tableoid::text`, `max(room)`, `row(room)::text`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, expression string) {
		s := newSession(t)
		s.exec(`CREATE TABLE witness (room text); INSERT INTO witness VALUES ('x'); CREATE SEQUENCE q`)
		s.exec(`CREATE TABLE seats (id int, room text)`)
		objects := s.one(`SELECT count(*) FROM pg_class`)

		err := s.inTransaction(func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `SELECT fencedb.protect('seats', $1)`, expression)
			return err
		})

		require.Equal(t, "1", s.one(`SELECT count(*) FROM witness`))
		if err != nil {
			require.Equal(t, objects, s.one(`SELECT count(*) FROM pg_class`))
			s.exec(`INSERT INTO seats VALUES (1, 'red')`)
			return
		}
		s.refused("FN002", `INSERT INTO seats VALUES (1, 'red')`)
		s.judged(s.fenced(1, "nobody", `INSERT INTO seats (id, room) VALUES (1, 'red')`))
		s.exec(`SELECT fencedb.unprotect('seats'); INSERT INTO seats VALUES (1, 'red')`)
	})
}

// Whatever tables and columns are called: they can be protected, and are.
func FuzzIdentifiers(f *testing.F) {
	for _, seed := range []string{"a", "A b", `"`, `""`, "'", `\`, "$$", "%I", "%1$s", ";", "--", "/*", "select", "user", "old", "new",
		"ünï🎉", "~before", "last_lease_id", "a\nb", "a.b", strings.Repeat("x", 63), strings.Repeat("é", 31), " "} {
		f.Add(seed, seed)
	}
	f.Fuzz(func(t *testing.T, table, column string) {
		for _, name := range []string{table, column} {
			if name == "" || len(name) > 63 || !utf8.ValidString(name) || strings.ContainsRune(name, 0) || name == "last_fencing_token" {
				return // not a name in Postgres, or one that is taken
			}
		}
		s := newSession(t)
		quoted, col := pgx.Identifier{table}.Sanitize(), pgx.Identifier{column}.Sanitize()
		if _, err := s.conn.Exec(t.Context(), `CREATE TABLE public.`+quoted+` (`+col+` text)`); err != nil {
			return // a system column, or a name of the test's own
		}

		_, err := s.conn.Exec(t.Context(), `SELECT fencedb.protect(to_regclass($1), $2)`, `public.`+quoted, col)
		require.NoError(t, err)

		s.refused("FN002", `INSERT INTO public.`+quoted+` VALUES ('red')`)
		s.refused("FN003", s.fenced(1, "blue", `INSERT INTO public.`+quoted+` VALUES ('red')`))
		s.exec(s.fenced(1, "red", `INSERT INTO public.`+quoted+` VALUES ('red')`))
	})
}

func (s *session) inTransaction(fn func(pgx.Tx) error) error {
	return pgx.BeginFunc(s.Context(), s.conn, fn)
}

// judged runs sql and accepts that it passes, or that the server refuses it, by whatever error.
func (s *session) judged(sql string) {
	s.Helper()
	_, err := s.conn.PgConn().Exec(s.Context(), sql).ReadAll()
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		_, err = s.conn.PgConn().Exec(s.Context(), "ROLLBACK").ReadAll()
	}
	require.NoError(s, err)
}
