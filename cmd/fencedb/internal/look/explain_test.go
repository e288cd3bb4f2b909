package look

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
