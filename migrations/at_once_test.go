package migrations_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Two sessions change guards at once: the transaction of the first is open when the second comes.

// Tables have guards of their own names, so nobody waits for the migration of another table.
func TestTablesWithOneNameAreProtectedAtOnce(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 58)
	for name, tables := range map[string][2]string{
		"in two schemas":           {"a.seats", "public.seats"},
		"in neither public":        {"a.seats", "b.seats"},
		"the same in 57 bytes":     {long + "_1", long + "_2"},
		"one with a number before": {`seats`, `"1_seats"`},
	} {
		s := newSession(t)
		s.exec(`CREATE SCHEMA a; CREATE SCHEMA b`)
		for _, table := range tables {
			s.exec(`CREATE TABLE ` + table + ` (id int NOT NULL)`)
		}
		first, second := s.beside(), s.beside()
		second.exec(`SET lock_timeout = '1min'`) // a hang
		protect := func(table string) string {
			return `SELECT fencedb.protect('` + table + `', 'seat:{id}', history => true)`
		}
		first.exec(`BEGIN; ` + protect(tables[0]))
		second.exec(`BEGIN; ` + protect(tables[1]))
		first.exec(`COMMIT`)
		second.exec(`COMMIT`)
		require.Equal(t, "2", s.one(`SELECT count(DISTINCT guard) FROM fencedb.protected_tables WHERE enabled`), name)
		for _, table := range tables {
			s.refused("FN002", `DELETE FROM `+table)
		}
	}
}

// A table that was renamed keeps the guard with its old name. The table that has the name now gets
// another.
func TestATableWithTheNameOfAnotherHasAGuardOfItsOwn(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	for _, later := range []string{"seats_1", "seats_2", "seats_3"} {
		s.exec(`CREATE TABLE seats (id int NOT NULL); SELECT fencedb.protect('seats', 'seat:{id}'); ALTER TABLE seats RENAME TO ` + later)
	}
	require.Equal(t, "3", s.one(`SELECT count(DISTINCT guard) FROM fencedb.protected_tables WHERE enabled`))
}

// Of one table, the second waits for the first, and then goes by what that has left.
func TestGuardsOfOneTableAreChangedInTurn(t *testing.T) {
	t.Parallel()
	const protect, unprotect = `SELECT fencedb.protect('seats', 'room:{room}')`, `SELECT fencedb.unprotect('seats')`
	takeOver := func(role string) string {
		return `SELECT fencedb.take_over_as('seats', '` + role + `', now() + interval '1 hour')`
	}
	for name, c := range map[string]struct {
		before, first, second string
		code                  string // of the refusal of second
		then, state, want     string
	}{
		"protect twice":             {first: protect, second: protect, state: `SELECT count(*) FROM fencedb.audit`, want: "1"},
		"protect, then enforce":     {first: `SELECT fencedb.protect('seats', 'room:{room}', mode => 'observe')`, second: `SELECT fencedb.enforce('seats')`, state: `SELECT observed FROM fencedb.protected_tables`, want: "false"},
		"protect, then unprotect":   {first: protect, second: unprotect, state: `SELECT count(*) FROM fencedb.protected_tables`, want: "0"},
		"unprotect twice":           {before: protect, first: unprotect, second: unprotect, state: `SELECT count(*) FROM fencedb.audit`, want: "2"},
		"unprotect, then enforce":   {before: protect, first: unprotect, second: `SELECT fencedb.enforce('seats')`, code: "55000", state: `SELECT count(*) FROM fencedb.protected_tables`, want: "0"},
		"unprotect, then protect":   {before: protect, first: unprotect, second: protect, state: `SELECT count(*) FROM fencedb.protected_tables WHERE enabled`, want: "1"},
		"unprotect, then take over": {before: protect, first: unprotect, second: takeOver("pg_monitor"), code: "55000", state: `SELECT count(*) FROM fencedb.take_overs`, want: "0"},
		"observe twice":             {before: protect, first: `SELECT fencedb.enforce('seats', true)`, second: `SELECT fencedb.enforce('seats', true)`, state: `SELECT count(*) FROM fencedb.audit`, want: "2"},
		// What ends one take-over reads in the order of the owner who else takes over.
		"two roles take over": {before: protect, first: takeOver("pg_monitor"), second: takeOver("pg_signal_backend"),
			then: `SELECT fencedb.take_over_as('seats', 'pg_signal_backend', NULL)`, state: `SELECT string_agg(role::regrole::text, ' ') FROM fencedb.take_overs`, want: "pg_monitor"},
		"one ends, one begins": {before: protect + `; ` + takeOver("pg_monitor"), first: `SELECT fencedb.take_over_as('seats', 'pg_monitor', NULL)`, second: takeOver("pg_signal_backend"),
			state: `SELECT string_agg(role::regrole::text, ' ') FROM fencedb.take_overs`, want: "pg_signal_backend"},
		"one begins, one ends": {before: protect + `; ` + takeOver("pg_monitor"), first: takeOver("pg_signal_backend"), second: `SELECT fencedb.take_over_as('seats', 'pg_monitor', NULL)`,
			state: `SELECT string_agg(role::regrole::text, ' ') FROM fencedb.take_overs`, want: "pg_signal_backend"},
		"a part of another": {before: `CREATE TABLE rooms (room text NOT NULL) PARTITION BY LIST (room); CREATE TABLE red PARTITION OF rooms DEFAULT`,
			first: `SELECT fencedb.protect('rooms', 'room:{room}')`, second: `SELECT fencedb.protect('red', 'room:{room}')`, code: "55006", state: `SELECT count(DISTINCT guard) FROM fencedb.protected_tables`, want: "1"},
		"rights and history": {first: `SELECT fencedb.allow('pg_monitor', operator => true)`, second: `SELECT fencedb.keep_history('30 days')`, state: `SELECT count(*) FROM fencedb.history_kept`, want: "1"},
		"history and rights": {first: `SELECT fencedb.keep_history('30 days')`, second: `SELECT fencedb.allow('pg_monitor', operator => true)`, state: `SELECT count(*) FROM fencedb.history_kept`, want: "1"},
		"rights twice":       {first: `SELECT fencedb.allow('pg_monitor')`, second: `SELECT fencedb.allow('pg_signal_backend')`, state: `SELECT has_function_privilege('pg_signal_backend', 'fencedb.last_token(text)', 'EXECUTE')`, want: "true"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSession(t, `CREATE TABLE seats (id int, room text NOT NULL)`)
			s.exec(c.before)
			first, second := s.beside(), s.beside()
			first.exec(`BEGIN; ` + c.first)
			done := make(chan string)
			go func() {
				_, err := second.conn.PgConn().Exec(t.Context(), c.second).ReadAll()
				done <- sqlstate(err)
			}()
			s.awaitBlocked(second.conn.PgConn().PID())
			first.exec(`COMMIT`)
			require.Equal(t, c.code, <-done)
			s.exec(c.then)
			require.Equal(t, c.want, s.one(c.state))
		})
	}
}
