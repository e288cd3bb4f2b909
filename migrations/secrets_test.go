package migrations_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

// as runs sql as a role that has logged in, in one transaction, and returns the SQLSTATE, empty for
// success.
func (s *session) as(role, sql string) string {
	s.Helper()
	s.exec(`RESET SESSION AUTHORIZATION; SET SESSION AUTHORIZATION ` + role)
	_, err := s.conn.PgConn().Exec(s.Context(), sql).ReadAll()
	refused := new(pgconn.PgError)
	if err != nil {
		require.True(s, errors.As(err, &refused), err)
	}
	s.exec(`RESET SESSION AUTHORIZATION`)
	return refused.Code
}

// A result is replayed to whoever knows the request, and where none was told, to the role that
// stored it.
func TestAResultIsNotReplayedToAStranger(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	owner, stranger := s.withRole("allow"), s.withRole("allow_operator") // both are let in
	s.exec(`SELECT fencedb.allow('` + stranger + `')`)
	for name, c := range map[string]struct{ stored, asked, stranger, same string }{
		"no request stored, none asked with":  {`NULL`, `NULL`, "FN005", ""},
		"no request stored, some asked with":  {`NULL`, `'a'`, "FN005", "FN005"},
		"request stored, none asked with":     {`'a'`, `NULL`, "FN005", "FN005"},
		"request stored, another asked with":  {`'a'`, `'b'`, "FN005", "FN005"},
		"request stored, the same asked with": {`'a'`, `'a'`, "", ""},
	} {
		begin := fmt.Sprintf(`SELECT fencedb.once_begin('%s', %s)`, name, c.stored)
		require.Empty(t, s.as(owner, begin+`; SELECT fencedb.once_end('`+name+`', 'first')`), name)

		replay := fmt.Sprintf(`DO $$ DECLARE got record := fencedb.once_begin('%s', %s);
			BEGIN ASSERT NOT got.first AND got.result = 'first'; END $$`, name, c.asked)
		require.Equal(t, c.stranger, s.as(stranger, replay), name)
		require.Equal(t, c.same, s.as(owner, replay), name)
	}
}

// A login that changes, as rotated passwords make it, is the same caller behind SET ROLE.
func TestAKeyBelongsToTheRoleThatWasSet(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	group, login := s.withRole("allow"), s.withRole("allow_operator")
	s.exec(`GRANT ` + group + ` TO ` + login)
	require.Empty(t, s.as(group, `SELECT fencedb.once_begin('order:1', NULL), fencedb.once_end('order:1', 'first')`))
	s.exec(`SELECT fencedb.allow('` + login + `')`)

	require.Equal(t, "FN005", s.as(login, `SELECT fencedb.once_begin('order:1', NULL)`))
	require.Empty(t, s.as(login, `SET ROLE `+group+`; SELECT fencedb.once_begin('order:1', NULL)`))
}

// A claim that was committed without a result is free for whoever claims it anew, and for nobody
// else to answer.
func TestAStrangerDoesNotAnswerForAnother(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	owner, stranger := s.withRole("allow"), s.withRole("allow_operator")
	s.exec(`SELECT fencedb.allow('` + stranger + `')`)
	require.Empty(t, s.as(owner, `SELECT fencedb.once_begin('order:1', 'a')`))

	require.Equal(t, insufficientPrivilege, s.as(stranger, `SELECT fencedb.once_end('order:1', 'forged')`))

	require.Empty(t, s.as(owner, `SELECT fencedb.once_begin('order:1', 'a'), fencedb.once_end('order:1', 'first')`))
	require.Empty(t, s.as(stranger, `SELECT fencedb.once_end('order:1', 'forged')`))
	require.Equal(t, "first", s.one(`SELECT convert_from(result, 'UTF8') FROM fencedb.once`))
}
