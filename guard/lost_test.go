package guard_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/lease/once"
)

// What an error says about the resource and the work.
const (
	lost    = "lost"    // somebody else has the resource, or may have it; the work came to nothing
	settled = "settled" // the work was done, or may have been
	neither = "neither"
)

// verdicts has every sentinel of the packages whose errors a handler can meet.
var verdicts = map[string]struct {
	err    error
	says   string
	answer guard.Outcome
}{
	"lease.ErrHeld":     {lease.ErrHeld, lost, guard.Busy},
	"lease.ErrReleased": {lease.ErrReleased, lost, guard.Busy},
	"lease.ErrExpired":  {lease.ErrExpired, lost, guard.Busy},
	"lease.ErrLost":     {lease.ErrLost, lost, guard.Busy},
	"lease.ErrRevoked":  {lease.ErrRevoked, lost, guard.Busy},
	"lease.ErrStale":    {lease.ErrStale, lost, guard.Busy},
	"lease.ErrWorkDone": {lease.ErrWorkDone, settled, guard.Done},

	"lease.ErrInvalid":     {lease.ErrInvalid, neither, guard.Refused},
	"lease.ErrCorrupt":     {lease.ErrCorrupt, neither, guard.Refused},
	"lease.ErrExhausted":   {lease.ErrExhausted, neither, guard.Refused},
	"lease.ErrRefused":     {&lease.RefusedError{Code: "BUSY"}, neither, guard.Unavailable}, // that is Redis, not the resource
	"lease.ErrClosed":      {lease.ErrClosed, neither, guard.Unavailable},
	"lease.ErrUnfit":       {lease.ErrUnfit, neither, guard.Refused},
	"lease.ErrProtocol":    {lease.ErrProtocol, neither, guard.Refused},
	"lease.ErrUnreachable": {lease.ErrUnreachable, neither, guard.Unavailable}, // an outage; TestDo has it as the end of a lease

	"once.ErrInFlight":    {once.ErrInFlight, lost, guard.Busy},
	"once.ErrNotRecorded": {once.ErrNotRecorded, settled, guard.Done},
	"once.ErrKeyReused":   {once.ErrKeyReused, neither, guard.Refused},

	"fencedb.ErrStale":          {fencedb.ErrStale, lost, guard.Busy},
	"fencedb.ErrLeaseOver":      {fencedb.ErrLeaseOver, lost, guard.Busy},
	"fencedb.ErrBusy":           {fencedb.ErrBusy, lost, guard.Busy},
	"fencedb.ErrCommitUnknown":  {fencedb.ErrCommitUnknown, settled, guard.Unknown},
	"fencedb.ErrTxEnded":        {fencedb.ErrTxEnded, settled, guard.Unknown},
	"fencedb.ErrCommitted":      {fencedb.ErrCommitted, settled, guard.Done},
	"fencedb.ErrNoToken":        {fencedb.ErrNoToken, neither, guard.Refused},
	"fencedb.ErrWrongResource":  {fencedb.ErrWrongResource, neither, guard.Refused},
	"fencedb.ErrTooLong":        {fencedb.ErrTooLong, neither, guard.Refused}, // its own lease still stands
	"fencedb.ErrUnsealed":       {fencedb.ErrUnsealed, neither, guard.Refused},
	"fencedb.ErrAlreadyWritten": {fencedb.ErrAlreadyWritten, settled, guard.Refused}, // by this very holder, most likely
	"fencedb.ErrInvalidGrant":   {fencedb.ErrInvalidGrant, settled, guard.Refused},   // a mistake, which stays one
	"fencedb.ErrKeyReused":      {fencedb.ErrKeyReused, neither, guard.Refused},

	"*lease.HeldError":            {&lease.HeldError{}, lost, guard.Busy},
	"*lease.WorkDoneError":        {&lease.WorkDoneError{Cause: lease.ErrExpired}, settled, guard.Done},
	"*once.InFlightError":         {&once.InFlightError{}, lost, guard.Busy},
	"*fencedb.StaleError":         {&fencedb.StaleError{}, lost, guard.Busy},
	"*fencedb.BusyError":          {&fencedb.BusyError{}, lost, guard.Busy},
	"*fencedb.CommitUnknownError": {&fencedb.CommitUnknownError{}, settled, guard.Unknown},
	"*fencedb.TxEndedError":       {&fencedb.TxEndedError{}, settled, guard.Unknown},
	"*fencedb.WrongResourceError": {&fencedb.WrongResourceError{}, neither, guard.Refused},
	"of somebody else's":          {errors.New("the kitchen is closed"), neither, guard.Refused},
	"none":                        {nil, neither, guard.Done},
}

// Every error in every company: a loss is one beside a neutral error, and none beside work that was
// done or may have been.
func TestIsLost(t *testing.T) {
	t.Parallel()
	for name, v := range verdicts {
		require.Equal(t, v.says == lost, lease.IsLost(v.err), name)
		for other, w := range verdicts {
			if v.err == nil || w.err == nil {
				continue
			}
			want := (v.says == lost || w.says == lost) && v.says != settled && w.says != settled
			for _, both := range []error{errors.Join(v.err, w.err), fmt.Errorf("pay: %w", fmt.Errorf("%w: %w", v.err, w.err))} {
				require.Equal(t, want, lease.IsLost(both), "%s with %s", name, other)
			}
		}
	}
}

func TestTheVerdictsNameEverySentinel(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{".", "../fencedb", "../lease", "../lease/once", "../lease/admission"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		require.NoError(t, err)
		for _, name := range files {
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
			require.NoError(t, err)
			ast.Inspect(file, func(n ast.Node) bool {
				v, ok := n.(*ast.ValueSpec)
				if ok && strings.HasPrefix(v.Names[0].Name, "Err") {
					require.Contains(t, slices.Collect(maps.Keys(verdicts)), file.Name.Name+"."+v.Names[0].Name)
				}
				return true
			})
		}
	}
}

// A line of a log leads to its section: the runbook has a part of the text of each error.
func TestTheTextOfEachErrorIsInTheRunbook(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/runbook.md")
	require.NoError(t, err)
	texts := map[string][]string{} // of each, one or the other
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+\\.Err\\w+)` \\|[^|]*\\| `([^|]+)` \\|").FindAllStringSubmatch(string(page), -1) {
		texts[row[1]] = strings.Split(row[2], "`, `")
	}
	for name, v := range verdicts {
		if strings.Contains(name, ".Err") {
			require.Contains(t, texts, name)
		}
		for sentinel, either := range texts {
			if errors.Is(v.err, verdicts[sentinel].err) {
				there := slices.ContainsFunc(either, func(text string) bool { return strings.Contains(v.err.Error(), text) })
				require.True(t, there, "%s is a %s, so %q must have one of %q", name, sentinel, v.err, either)
			}
		}
	}

	others := regexp.MustCompile(`(?m)^\| "([^"]+)" \|`).FindAllStringSubmatch(string(page), -1)
	require.NotEmpty(t, others)
	var sources strings.Builder
	for _, pattern := range []string{"../fencedb/*.go", "../lease/*.go", "../grant/*.go", "../internal/protocol/*.go", "../migrations/sql/*.sql"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, name := range files {
			source, err := os.ReadFile(name)
			require.NoError(t, err)
			sources.Write(source)
		}
	}
	for _, text := range others {
		require.True(t, strings.Contains(sources.String(), text[1]), text[1])
	}
}
