package migrations_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

// Whatever text is passed as a template: it is refused, or it protects the table. It never does
// anything else.
func FuzzTemplate(f *testing.F) {
	for _, seed := range []string{
		`seat:{id}`, `{room}`, `{room}/{id}`, `config:global`, `{{{room}}}`, `{{room}}`, `{"odd name"}`, `{odd name}`, `{o'dd}`, `{%1$s}`, `%1$s{room}%L`, `$guard${room}`, // good
		``, `{}`, `{`, `}`, `{room`, `room}`, `{{room}`, `{room}{id}`, `{nothing}`, `{{{{}`, `{{}}{room}{{}}{id}{id}`, // bad
		`{maybe}`, `{at}`, `{last_fencing_token}`, `{ctid}`, `{tableoid}`, `{Room}`, `{"room"}`, `{room }`, `{r.room}`, `{room}; DROP TABLE witness`,
		`'); DROP TABLE witness; --`, `{room}' || (SELECT room FROM witness) || '`, `{room) || (id}`, `\{room\}`, `E'\n{room}`, `{room} -- comment`, `{room} /*`,
		"{room}\x00", "r\xff{room}", strings.Repeat("x", 512), strings.Repeat("é", 257) + "{room}", "ünï🎉{room}",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, template string) {
		s := newSession(t)
		s.exec(`CREATE TABLE witness (room text); INSERT INTO witness VALUES ('x')`)
		s.exec(`CREATE TABLE seats (id int NOT NULL, room text NOT NULL, "odd name" text NOT NULL DEFAULT 'o', "o'dd" text NOT NULL DEFAULT 'o', "%1$s" text NOT NULL DEFAULT 'o', maybe text, at timestamptz NOT NULL DEFAULT now())`)
		objects := s.one(`SELECT count(*) FROM pg_class`)

		err := s.inTransaction(func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `SELECT fencedb.protect('seats', resource => $1::text)`, template)
			return err
		})

		require.Equal(t, "1", s.one(`SELECT count(*) FROM witness`))
		require.Equal(t, objects, s.one(`SELECT count(*) FROM pg_class`))
		const insert = `INSERT INTO seats (id, room) VALUES (1, 'red')`
		if err != nil {
			require.Contains(t, []string{"22023", "22021"}, sqlstate(err), "%v", err) // 22021: it is not UTF-8
			s.exec(insert)
			return
		}
		s.refused("FN002", insert)
		var pgErr *pgconn.PgError
		_, err = s.conn.PgConn().Exec(t.Context(), s.fenced(1, "nobody", insert)).ReadAll()
		if template == "nobody" {
			require.NoError(t, err)
			return
		}
		require.ErrorAs(t, err, &pgErr)
		require.Equal(t, "FN003", pgErr.Code)
		s.exec(`ROLLBACK`)
		var refused struct{ Resource string }
		require.NoError(t, json.Unmarshal([]byte(pgErr.Detail), &refused))
		if want := strings.NewReplacer("{{", "{", "}}", "}", "{room}", "red", "{id}", "1", "{odd name}", "o", "{o'dd}", "o", "{%1$s}", "o").Replace(template); len(want) <= 512 {
			require.Equal(t, want, refused.Resource)
			require.NoError(t, s.inTransaction(func(tx pgx.Tx) error {
				_, err := tx.Exec(t.Context(), `SELECT fencedb.enter($1, 1, gen_random_uuid())`, refused.Resource)
				if err == nil {
					_, err = tx.Exec(t.Context(), insert)
				}
				return err
			}))
		}
		s.exec(`SELECT fencedb.unprotect('seats'); ` + insert)
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
		if _, err := s.conn.Exec(t.Context(), `CREATE TABLE public.`+quoted+` (`+col+` text NOT NULL)`); err != nil {
			return // a system column, or a name of the test's own
		}

		_, err := s.conn.Exec(t.Context(), `SELECT fencedb.protect(to_regclass($1), resource => $2::text)`, `public.`+quoted, "{"+column+"}")
		if strings.ContainsAny(column, "{}") {
			require.Equal(t, "22023", sqlstate(err), "a template cannot name it")
			return
		}
		require.NoError(t, err)

		s.refused("FN002", `INSERT INTO public.`+quoted+` VALUES ('red')`)
		s.refused("FN003", s.fenced(1, "blue", `INSERT INTO public.`+quoted+` VALUES ('red')`))
		s.exec(s.fenced(1, "red", `INSERT INTO public.`+quoted+` VALUES ('red')`))
	})
}

func (s *session) inTransaction(fn func(pgx.Tx) error) error {
	return pgx.BeginFunc(s.Context(), s.conn, fn)
}
