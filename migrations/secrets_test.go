package migrations_test

import (
	"errors"
	"fmt"
	"strings"
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

// claim and end are the statements of an idempotency key, as docs/protocol.md has them.
const (
	claim = `INSERT INTO fencedb.once AS o (key, fingerprint) VALUES ('%s', %s) ON CONFLICT (key) DO UPDATE SET fingerprint = excluded.fingerprint, claimed_at = excluded.claimed_at
		WHERE NOT o.done AND o.role = current_user`
	end = `UPDATE fencedb.once SET result = '%s', done = true WHERE key = '%s' AND role = current_user AND NOT done`
)

// A result is for the role that stored it: a key alone can be guessed. Nobody else sees it, claims
// it, answers for it or forgets it, done or not, whoever reads and writes all data included.
func TestAKeyIsForTheRoleThatClaimedIt(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	owner, stranger := s.withRole("writer"), s.withRole("operator") // both are let in
	both := strings.Replace(owner, "writer", "both", 1)
	s.exec(`CREATE ROLE ` + both + `; SELECT fencedb.allow('` + both + `'); GRANT pg_read_all_data, pg_write_all_data TO ` + both)
	defer s.exec(`DROP OWNED BY ` + both + `; DROP ROLE ` + both)
	require.Empty(t, s.as(owner, fmt.Sprintf(claim+`; `+end+`; `+claim, "done", `'a'`, "first", "done", "undone", `NULL`)))
	for _, role := range []string{stranger, both} {
		for _, key := range []string{"done", "undone"} {
			require.Empty(t, s.as(role, fmt.Sprintf(`DO $$ DECLARE n int; BEGIN `+claim+`; GET DIAGNOSTICS n = ROW_COUNT; ASSERT n = 0; ASSERT NOT EXISTS (SELECT FROM fencedb.once);
				`+end+`; GET DIAGNOSTICS n = ROW_COUNT; ASSERT n = 0; UPDATE fencedb.once SET done = false, result = NULL; GET DIAGNOSTICS n = ROW_COUNT; ASSERT n = 0; END $$`, key, `'a'`, "forged", key)), key)
			require.Empty(t, s.as(role, `DO $$ BEGIN DELETE FROM fencedb.once; EXCEPTION WHEN insufficient_privilege THEN END $$`))
			require.Equal(t, insufficientPrivilege, s.as(role, fmt.Sprintf(`INSERT INTO fencedb.once (key, role) VALUES ('%s', '%s')`, role, strings.Trim(owner, `"`))))
			require.Equal(t, insufficientPrivilege, s.as(role, `INSERT INTO fencedb.once (key) VALUES ('done') ON CONFLICT (key) DO UPDATE SET done = true`))
		}
	}
	require.Empty(t, s.as(owner, fmt.Sprintf(`DO $$ DECLARE n int; BEGIN `+claim+`; GET DIAGNOSTICS n = ROW_COUNT; ASSERT n = 0; ASSERT (SELECT result = 'first' AND fingerprint = 'a' FROM fencedb.once WHERE key = 'done');
		`+claim+`; GET DIAGNOSTICS n = ROW_COUNT; ASSERT n = 1; END $$`, "done", `'a'`, "undone", `NULL`)))
	require.Equal(t, insufficientPrivilege, s.as(owner, `DELETE FROM fencedb.once`))
	s.exec(`ANALYZE fencedb.once`)
	require.Equal(t, "0", s.one(`SELECT count(*) FROM pg_statistic t JOIN pg_attribute a ON a.attrelid = t.starelid AND a.attnum = t.staattnum WHERE t.starelid = 'fencedb.once'::regclass AND a.attname IN ('result', 'fingerprint')`))
}

// A login that changes, as rotated passwords make it, is the same caller behind SET ROLE.
func TestAKeyBelongsToTheRoleThatWasSet(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	group, login := s.withRole("writer"), s.withRole("operator")
	s.exec(`GRANT ` + group + ` TO ` + login)
	require.Empty(t, s.as(group, fmt.Sprintf(claim+`; `+end, "order:1", `NULL`, "first", "order:1")))

	const sees = `DO $$ BEGIN ASSERT %s (SELECT FROM fencedb.once); END $$`
	require.Empty(t, s.as(login, fmt.Sprintf(sees, "NOT EXISTS")))
	require.Empty(t, s.as(login, `SET ROLE `+group+`; `+fmt.Sprintf(sees, "EXISTS")))
}
