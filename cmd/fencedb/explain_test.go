package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/look"
)

func TestALineLeadsToItsCure(t *testing.T) {
	t.Parallel()
	c := newConsole(t)
	for line, section := range map[string]string{
		`fencedb: the database has no fences yet; run migrations.Up: ERROR: relation does not exist (SQLSTATE 42P01)`: "Postgres fails over",
		`fencedb: entering a fence writes: connect to the primary, or, where`:                                         "Postgres fails over",
		`lease: seal "table:12": failed to connect to user=app: connection refused`:                                   "A lease could not be sealed",
		`lease: seal "table:12": 8 of 8 connections of the pool are in use`:                                           "A lease could not be sealed",
		`ERROR: table:12 is stale: token 41, and 42 has entered (SQLSTATE FN001)`:                                     "Late writes are refused",
		`level=WARN msg="lease not acquired" cause=refused code=NOPERM see=redis-answers-and-refuses`:                 "Redis answers and refuses",
		`{"level":"WARN","msg":"lease lost","cause":"expired","see":"leases-are-lost"}`:                               "Leases are lost",
		`table:12 is held by booking@host-7:4711, try again in 3s`:                                                    "A holder is stuck",
		`ErrCommitUnknown`: "A commit has an unknown outcome",
		`lease.ErrStale`:   "Redis went backwards",
		`fencedb.ErrStale`: "Late writes are refused",
		`lease: seal "seat:1": fencedb: stale fencing token: resource "seat:1": carried 1796059807078575, stored 9007199254740991; lease: acquire "seat:1": lease: tokens exhausted`: "A fence is too high",
		`fencedb: unknown whether the transaction committed: FATAL: terminating connection due to idle-in-transaction timeout (SQLSTATE 25P03)`:                                      "A commit has an unknown outcome",
		`Post "http://seats": grant: the receiver may have written, and its answer was lost: EOF`:                                                                                    "A commit has an unknown outcome",
		`LeaseHolderStuck`: "A holder is stuck",
		`FN003`:            "A write had no grant for its row",
		`permission denied for function enter (SQLSTATE 42501)`:             "Rights are missing",
		`lease: redis refuses: NOPERM this user has no permissions to XADD`: "Redis answers and refuses",
	} {
		var found look.Explanation
		c.json("explain", &found, "explain", line)
		require.Equal(t, section, found.Section, line)
		require.Contains(t, found.Text, "**Means.**", line)
		require.Contains(t, found.Text, "**Safe.**", line)
		require.Contains(t, found.Text, "**Do.**", line)
	}
	require.Contains(t, c.ok("explain", "OOM ErrRefused"), "raise `maxmemory`")

	got := c.run("explain", "the weather is fine")
	require.Equal(t, app.ExitFailed, got.code)
	require.Contains(t, got.errOut, "the runbook has nothing for this line")
}
