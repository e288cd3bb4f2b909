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

// protections lists what the audit has about protection, oldest first, without the schema and the user of the test.
func (s *session) protections() string {
	s.Helper()
	return s.one(`SELECT string_agg(concat_ws(' ', event, details ->> 'table', details ->> 'mode', details ->> 'expression'), '; ' ORDER BY id)
		FROM fencedb.audit`)
}

func TestProtectingAndUnprotectingIsRecorded(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	const protect = `SELECT fencedb.protect('seats', $$ 'seat:' || id $$);`
	s.exec(`CREATE TABLE seats (id int); ` + protect + protect)
	require.Equal(t, "protect public.seats ledger  'seat:' || id ", s.protections(), "the second call changed nothing")

	s.exec(`ALTER TABLE seats ENABLE REPLICA TRIGGER "~fencedb_statement"; ` + protect)
	s.exec(`SELECT fencedb.unprotect('seats'); SELECT fencedb.unprotect('seats')`)
	s.exec(`CREATE TABLE jobs (id int PRIMARY KEY); SELECT fencedb.protect_row('jobs', $$ 'job:' || id $$)`)
	s.exec(`BEGIN; SELECT fencedb.unprotect('jobs'); ROLLBACK`)

	require.Equal(t, "protect public.seats ledger  'seat:' || id ; protect public.seats ledger  'seat:' || id ; "+
		"unprotect public.seats ledger  'seat:' || id ; protect public.jobs row  'job:' || id ", s.protections())
}

func TestTheOwnerOfATableIsRecordedUnderTheNameItLoggedInWith(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	owner, app := s.withRole("allow_operator"), s.withRole("allow")
	s.exec(`GRANT CREATE ON SCHEMA public TO ` + owner + `; GRANT ` + owner + ` TO ` + app + `; SET SESSION AUTHORIZATION ` + owner)
	s.exec(`CREATE TABLE seats (id int); SELECT fencedb.protect('seats', $$ 'seat:' || id $$)`)
	require.Equal(t, s.one(`session_user`), s.one(`SELECT role FROM fencedb.audit`))

	s.exec(`RESET SESSION AUTHORIZATION; SET SESSION AUTHORIZATION ` + app)
	login := s.one(`session_user`)
	s.exec(`SET ROLE ` + owner + `; SELECT fencedb.unprotect('seats')`)
	require.Equal(t, login, s.one(`SELECT role FROM fencedb.audit WHERE event = 'unprotect'`), "whatever SET ROLE said")
	require.Contains(t, s.one(`SELECT operator FROM fencedb.audit WHERE event = 'unprotect'`), login+"@")
}

func TestNobodyRecordsAProtectionThatIsNotTheirs(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE seats (id int); CREATE TABLE rooms (id int); SELECT fencedb.protect('seats', $$ 'seat:' || id $$)`)
	const noDataFound, invalidParameter = "P0002", "22023"
	s.refused(noDataFound, `SELECT fencedb.record_protection('protect', 'rooms')`)
	s.refused(invalidParameter, `SELECT fencedb.record_protection('revoke', 'seats')`)

	s.exec(`SET SESSION AUTHORIZATION ` + s.withRole("allow"))
	s.refused(insufficientPrivilege, `SELECT fencedb.record_protection('unprotect', 'seats')`)
	s.refused(insufficientPrivilege, `SELECT fencedb.unprotect('seats')`)
	s.exec(`RESET SESSION AUTHORIZATION`)
	require.Equal(t, "protect public.seats ledger  'seat:' || id ", s.protections())
}

// The audit says of protection what this server knows, not what somebody says.
func TestAnOperatorCannotRecordAProtection(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`SET SESSION AUTHORIZATION ` + s.withRole("allow_operator"))
	const invalidParameter = "22023"
	for _, event := range []string{"protect", "unprotect"} {
		s.refused(invalidParameter, `SELECT fencedb.record('`+event+`', NULL, 'bob@host', 'by fencedb.`+event+`', '{"table": "public.seats"}')`)
	}
	require.Equal(t, "0", s.one(`SELECT count(*) FROM fencedb.audit`))
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
