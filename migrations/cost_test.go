package migrations_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Counts that do not depend on the machine, so that nobody makes a fenced write dearer by accident.
func TestWhatAFencedWriteCosts(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	const calls = `SELECT string_agg(funcname || ' ' || calls, ', ' ORDER BY funcname)
		FROM pg_stat_xact_user_functions WHERE funcname IN ('fencedb_guard_seats', 'guard_statement', 'require')`

	s.exec(`SET track_functions = 'all'; BEGIN; ` + enter(41, "room:red") +
		`; INSERT INTO seats SELECT i, 'red' FROM generate_series(10, 109) i; UPDATE seats SET guest = 'zoe' WHERE id > 9`)
	require.Equal(t, "fencedb_guard_seats 200, guard_statement 2, require 1", s.one(calls),
		"the first row is judged by fencedb.require, and the others are compared with its note")
	s.exec(`COMMIT`)
}
