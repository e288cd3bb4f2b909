package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/docs"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/lease/once"
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
		var found explanation
		c.json("explain", &found, "explain", line)
		require.Equal(t, section, found.Section, line)
		require.Contains(t, found.Text, "**Means.**", line)
		require.Contains(t, found.Text, "**Safe.**", line)
		require.Contains(t, found.Text, "**Do.**", line)
	}
	require.Contains(t, c.ok("explain", "OOM ErrRefused"), "raise `maxmemory`")

	got := c.run("explain", "the weather is fine")
	require.Equal(t, exitFailed, got.code)
	require.Contains(t, got.errOut, "the runbook has nothing for this line")
}

// sentinels are all errors of the tables.
var sentinels = map[string]error{
	"fencedb.ErrStale": fencedb.ErrStale, "fencedb.ErrNoToken": fencedb.ErrNoToken,
	"fencedb.ErrWrongResource": fencedb.ErrWrongResource, "fencedb.ErrInvalidGrant": fencedb.ErrInvalidGrant,
	"fencedb.ErrLeaseOver": fencedb.ErrLeaseOver, "fencedb.ErrTooLong": fencedb.ErrTooLong,
	"fencedb.ErrUnsealed": fencedb.ErrUnsealed, "fencedb.ErrKeyReused": fencedb.ErrKeyReused,
	"fencedb.ErrAlreadyWritten": fencedb.ErrAlreadyWritten, "fencedb.ErrBusy": fencedb.ErrBusy,
	"fencedb.ErrTxEnded": fencedb.ErrTxEnded, "fencedb.ErrCommitUnknown": fencedb.ErrCommitUnknown,
	"fencedb.ErrCommitted": fencedb.ErrCommitted,
	"lease.ErrHeld":        lease.ErrHeld, "lease.ErrUnreachable": lease.ErrUnreachable,
	"lease.ErrRefused": lease.ErrRefused, "lease.ErrUnfit": lease.ErrUnfit, "lease.ErrCorrupt": lease.ErrCorrupt,
	"lease.ErrExhausted": lease.ErrExhausted, "lease.ErrProtocol": lease.ErrProtocol,
	"lease.ErrExpired": lease.ErrExpired, "lease.ErrLost": lease.ErrLost, "lease.ErrWorkDone": lease.ErrWorkDone,
	"lease.ErrStale": lease.ErrStale, "lease.ErrRevoked": lease.ErrRevoked, "lease.ErrReleased": lease.ErrReleased,
	"lease.ErrClosed": lease.ErrClosed, "lease.ErrInvalid": lease.ErrInvalid,
	"once.ErrInFlight": once.ErrInFlight, "once.ErrKeyReused": once.ErrKeyReused, "once.ErrNotRecorded": once.ErrNotRecorded,
}

// Of two errors in one line, that one is explained which says more: an unknown outcome, then a
// mistake, work that was done, an outage, and a loss, which an outage may have caused.
func TestTheErrorThatSaysMoreIsExplained(t *testing.T) {
	t.Parallel()
	order := []guard.Outcome{guard.Unknown, guard.Refused, guard.Done, guard.Unavailable, guard.Busy}
	rank := func(err error) int { return slices.Index(order, guard.Answer(err)) }
	for name, err := range sentinels {
		page := explain(name).Page
		require.Equal(t, page, explain(err.Error()).Page, name)
		for other, second := range sentinels {
			if rank(err) < rank(second) {
				require.Equal(t, page, explain(fmt.Sprintf("%v; %v", err, second)).Page, "%s, %s", name, other)
				require.Equal(t, page, explain(fmt.Sprintf("%v: %v", second, err)).Page, "%s in %s", name, other)
				require.Equal(t, page, explain(other+" "+name).Page, "%s beside %s", name, other)
			}
		}
	}
	rows := 0
	for _, row := range rowOfTable.FindAllStringSubmatch(readPage(docs.Runbook, "runbook.md"), -1) {
		if name := regexp.MustCompile("^`(\\w+\\.Err\\w+)`").FindStringSubmatch(row[1]); name != nil {
			require.Contains(t, sentinels, name[1])
			rows++
		}
	}
	require.Len(t, sentinels, rows)
}

// Each term of the tables leads to a section that is there.
func TestEachTermOfTheRunbookIsExplained(t *testing.T) {
	t.Parallel()
	for _, row := range rowOfTable.FindAllStringSubmatch(readPage(docs.Runbook, "runbook.md"), -1) {
		cells := strings.Split(row[1], " | ")
		to := link.FindStringSubmatch(cells[len(cells)-1])
		if to == nil {
			continue
		}
		line := regexp.MustCompile("[`\"]").ReplaceAllString(strings.Join(cells[:len(cells)-1], " "), "")
		require.Equal(t, to[2]+"#"+to[3], explain(line).Page, line)
	}
}
