package migrations_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The built-in roles for all data read and write every table, view and sequence that has no
// policies. What makes an entry good must not be among what they reach.

// newMember is the session of a role that has logged in and is a member of the built-in roles; all
// that it may do besides is to write to seats.
func newMember(s *session, builtIn string) (member *session, role string) {
	s.Helper()
	role = s.withRole("writer")
	s.exec(`REVOKE ALL ON ALL FUNCTIONS IN SCHEMA fencedb FROM ` + role + `; REVOKE ALL ON fencedb.fences_to_share, fencedb.server_epoch FROM ` + role)
	s.exec(`GRANT ` + builtIn + ` TO ` + role + `; GRANT ALL ON seats, young TO ` + role + `; ALTER ROLE ` + role + ` LOGIN`)
	config := s.conn.Config().Copy()
	config.User = strings.Trim(role, `"`)
	return connectAs(s.T, config), role
}

func TestWhoReadsOrWritesAllDataForgesNothing(t *testing.T) {
	t.Parallel()
	for _, builtIn := range []string{"pg_read_all_data", "pg_write_all_data", "pg_read_all_data, pg_write_all_data"} {
		t.Run(builtIn, func(t *testing.T) {
			s := newSession(t)
			s.exec(`CREATE TABLE seats (id int NOT NULL, room text NOT NULL, guest text) PARTITION BY LIST (id); CREATE TABLE old PARTITION OF seats FOR VALUES IN (1);
				SELECT fencedb.protect('seats', resource => 'room:{room}'); CREATE TABLE young PARTITION OF seats FOR VALUES IN (2)`) // without a guard of statements
			s.exec(s.fenced(41, "room:red", `INSERT INTO seats VALUES (1, 'red', 'ann'), (2, 'red', 'ann')`))
			s.exec(s.fenced(41, "room:blue", `INSERT INTO seats VALUES (2, 'blue', 'ann')`) + "; " + reset("room:blue", 40))
			member, role := newMember(s, builtIn)
			ledger := s.one(`SELECT json_agg(f ORDER BY resource) FROM fencedb.fences f`)
			try := func(sql string) { // either it is refused or it does nothing: what follows judges that
				_, _ = member.conn.PgConn().Exec(t.Context(), sql).ReadAll()
				_, err := member.conn.PgConn().Exec(t.Context(), `ROLLBACK`).ReadAll()
				require.NoError(t, err)
			}

			if strings.Contains(builtIn, "read") {
				require.NotEqual(t, "0", member.one(`SELECT count(*) FROM fencedb.goose_db_version`), "it does read what is not its own")
				for _, table := range []string{"fences", "audit"} {
					require.Equal(t, "0", member.one(`SELECT count(*) FROM fencedb.`+table), table)
				}
				member.refused(insufficientPrivilege, `SELECT lease_id FROM fencedb.fences_to_share`)
				s.exec(`ANALYZE fencedb.fences`)
				require.Equal(t, "0", member.one(`SELECT count(*) FROM pg_stats WHERE tablename = 'fences' AND schemaname = 'fencedb'`))
				member.refused(insufficientPrivilege, `SET row_security = off; SELECT lease_id FROM fencedb.fences`)
				member.exec(`RESET row_security`)
			}
			for _, table := range []string{"fences", "fences_to_share"} {
				for _, write := range []string{
					`INSERT INTO fencedb.` + table + ` (resource, last_fencing_token, lease_id) VALUES ('room:new', 1, '` + leaseOf(1).String() + `')`,
					`INSERT INTO fencedb.` + table + ` (resource, last_fencing_token, lease_id) VALUES ('room:red', 1, '` + leaseOf(1).String() + `') ON CONFLICT (resource) DO UPDATE SET lease_id = EXCLUDED.lease_id`,
					`UPDATE fencedb.` + table + ` SET last_fencing_token = 1, lease_id = '` + leaseOf(1).String() + `'`,
					`DELETE FROM fencedb.` + table,
					`TRUNCATE fencedb.` + table,
				} {
					try(write)
				}
			}
			try(`INSERT INTO fencedb.take_overs (target, role, until, ledger) VALUES ('seats'::regclass, '` + role + `'::regrole, now() + interval '1 hour', 'fencedb.fences'::regclass)`)
			try(`INSERT INTO fencedb.foreign_issuers VALUES ('room')`) // then no bound would stop its tokens
			require.Equal(t, "0", s.one(`SELECT count(*) FROM fencedb.foreign_issuers`))
			require.Equal(t, ledger, s.one(`SELECT json_agg(f ORDER BY resource) FROM fencedb.fences f`))

			for _, write := range []string{`UPDATE young SET guest = 'eve'`, `UPDATE seats SET guest = 'eve'`, `DELETE FROM young`, `INSERT INTO young VALUES (2, 'new', 'eve')`} {
				for _, resource := range []string{"room:red", "room:blue", "room:new"} {
					member.refused("FN002", `BEGIN; SELECT set_config('fencedb.entered', `+forged(resource, "100")+`, true); `+write)
				}
			}
			require.Equal(t, "ann,ann,ann", s.one(`SELECT string_agg(guest, ',') FROM seats`))
		})
	}
}

// Who is let in and reads all data writes as everybody else does; and operators see what they need.
func TestWhoIsLetInIsNotStopped(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	role, operator := s.withRole("writer"), s.withRole("operator")
	s.exec(`GRANT pg_read_all_data, pg_write_all_data TO ` + role)
	s.exec(s.fenced(41, "room:red", `UPDATE seats SET guest = 'ann' WHERE room = 'red'`))
	require.Empty(t, s.as(role, enter(41, "room:red")+"; "+`UPDATE seats SET guest = 'bob' WHERE room = 'red'`))
	require.Empty(t, s.as(role, enter(42, "room:red")+"; "+`UPDATE seats SET guest = 'bob' WHERE room = 'red'`))
	require.Equal(t, "FN001", s.as(role, enter(41, "room:red")+"; "+`UPDATE seats SET guest = 'bob' WHERE room = 'red'`))
	require.Equal(t, "FN003", s.as(role, enter(42, "room:red")+"; "+`UPDATE seats SET guest = 'bob' WHERE room = 'blue'`))
	s.exec(reset("room:red", 40))

	s.exec(`SET SESSION AUTHORIZATION ` + operator)
	require.Equal(t, "room:red 40", s.one(`SELECT string_agg(resource || ' ' || last_fencing_token, ',') FROM fencedb.fences`))
	require.Equal(t, "1", s.one(`SELECT count(*) FROM fencedb.audit WHERE event = 'reset'`))
	require.Equal(t, "0", s.one(`SELECT count(*) FROM fencedb.take_overs`))
	for _, write := range []string{`UPDATE fencedb.fences SET last_fencing_token = 1`, `DELETE FROM fencedb.fences`} {
		_, err := s.conn.PgConn().Exec(t.Context(), write).ReadAll()
		require.ErrorContains(t, err, "42501", write)
	}
}
