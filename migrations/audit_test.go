package migrations_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

const insufficientPrivilege = "42501"

// withRole makes a role and drops it at the end; admit is the function of the schema fencedb that lets it in.
func (s *session) withRole(admit string) (role string) {
	s.Helper()
	role = `"` + admit + `_` + s.one(`current_database()`) + `"`
	s.exec(`CREATE ROLE ` + role + `; SELECT fencedb.` + admit + `('` + role + `')`)
	s.Cleanup(func() {
		_, err := s.conn.PgConn().Exec(context.Background(), `RESET SESSION AUTHORIZATION; DROP OWNED BY `+role+`; DROP ROLE `+role).ReadAll()
		require.NoError(s, err)
	})
	return role
}

func TestWhatWasRecordedStays(t *testing.T) {
	t.Parallel()
	s := newSession(t)

	s.exec(`SELECT fencedb.record('revoke', 'seat:1', 'ann@host', 'it hangs')`)

	for _, change := range []string{`UPDATE fencedb.audit SET reason = 'x'`, `DELETE FROM fencedb.audit`, `TRUNCATE fencedb.audit`} {
		s.refused(insufficientPrivilege, change)
	}
	require.Equal(t, "it hangs", s.one(`SELECT reason FROM fencedb.audit`))
}

func TestAnOperatorRecordsUnderTheNameItLoggedInWith(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`SET SESSION AUTHORIZATION ` + s.withRole("allow_operator"))

	s.exec(`SELECT fencedb.record('revoke', 'seat:1', 'ann@host', 'it hangs'); ` + enter(41, "seat:1"))

	require.Contains(t, s.one(`session_user`), "allow_operator")
	require.Equal(t, s.one(`session_user`), s.one(`SELECT role FROM fencedb.audit`))
	require.Equal(t, "41", s.one(`SELECT last_fencing_token FROM fencedb.fences`))
	for _, past := range []string{
		`INSERT INTO fencedb.audit (operator, event, reason, role) VALUES ('ann', 'revoke', 'none', 'bob')`,
		`DELETE FROM fencedb.audit`,
		`DELETE FROM fencedb.fences`,
		`ALTER TABLE fencedb.audit DISABLE TRIGGER keep`,
	} {
		s.refused(insufficientPrivilege, past)
	}
}

func TestAnApplicationDoesNotReachTheAudit(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`SET SESSION AUTHORIZATION ` + s.withRole("allow"))

	for _, past := range []string{
		`SELECT * FROM fencedb.audit`,
		`SELECT fencedb.record('revoke', 'seat:1', 'ann@host', 'it hangs')`,
		`SELECT fencedb.forget_fences('{seat:1}', interval '30 days')`,
		`DELETE FROM fencedb.audit`,
	} {
		s.refused(insufficientPrivilege, past)
	}
}

func TestAReasonIsNeeded(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	const checkViolation, notNullViolation = "23514", "23502"

	s.refused(checkViolation, `SELECT fencedb.record('revoke', 'seat:1', 'ann@host', '')`)
	s.refused(notNullViolation, `SELECT fencedb.record('revoke', 'seat:1', 'ann@host', NULL)`)
	s.refused(checkViolation, `SELECT fencedb.record('revoke', 'seat:1', '', 'it hangs')`)
}

func TestOnlyOldFencesThatNobodyHoldsAreForgotten(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	for _, resource := range []string{"old", "held", "young", "unnamed"} {
		s.exec(enter(41, resource))
	}
	s.exec(`UPDATE fencedb.fences SET advanced_at = advanced_at - interval '31 days' WHERE resource <> 'young'`)
	holder := s.beside()
	holder.exec("BEGIN; " + enter(41, "held"))

	s.exec(`SET lock_timeout = '5s'`)
	require.Equal(t, "1", s.one(`SELECT fencedb.forget_fences('{old,held,young}', interval '30 days')`))

	require.Equal(t, "held,unnamed,young", s.one(`SELECT string_agg(resource, ',' ORDER BY resource) FROM fencedb.fences`))
	holder.exec("COMMIT")
	const invalidParameter = "22023"
	s.refused(invalidParameter, `SELECT fencedb.forget_fences('{held}', interval '23 hours')`)
	s.refused(invalidParameter, `SELECT fencedb.forget_fences('{held}', NULL)`)
}
