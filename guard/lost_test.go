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
	err  error
	says string
}{
	"lease.ErrHeld":     {lease.ErrHeld, lost},
	"lease.ErrReleased": {lease.ErrReleased, lost},
	"lease.ErrExpired":  {lease.ErrExpired, lost},
	"lease.ErrLost":     {lease.ErrLost, lost},
	"lease.ErrRevoked":  {lease.ErrRevoked, lost},
	"lease.ErrStale":    {lease.ErrStale, lost},
	"lease.ErrWorkDone": {lease.ErrWorkDone, settled},

	"lease.ErrInvalid":     {lease.ErrInvalid, neither},
	"lease.ErrCorrupt":     {lease.ErrCorrupt, neither},
	"lease.ErrExhausted":   {lease.ErrExhausted, neither},
	"lease.ErrRefused":     {&lease.RefusedError{Code: "BUSY"}, neither}, // that is Redis, not the resource
	"lease.ErrClosed":      {lease.ErrClosed, neither},
	"lease.ErrUnfit":       {lease.ErrUnfit, neither},
	"lease.ErrProtocol":    {lease.ErrProtocol, neither},
	"lease.ErrUnreachable": {lease.ErrUnreachable, neither}, // an outage; TestDo has it as the end of a lease

	"once.ErrInFlight":    {once.ErrInFlight, lost},
	"once.ErrNotRecorded": {once.ErrNotRecorded, settled},
	"once.ErrKeyReused":   {once.ErrKeyReused, neither},

	"fencedb.ErrStale":          {fencedb.ErrStale, lost},
	"fencedb.ErrLeaseOver":      {fencedb.ErrLeaseOver, lost},
	"fencedb.ErrBusy":           {fencedb.ErrBusy, lost},
	"fencedb.ErrCommitUnknown":  {fencedb.ErrCommitUnknown, settled},
	"fencedb.ErrTxEnded":        {fencedb.ErrTxEnded, settled},
	"fencedb.ErrCommitted":      {fencedb.ErrCommitted, settled},
	"fencedb.ErrNoToken":        {fencedb.ErrNoToken, neither},
	"fencedb.ErrWrongResource":  {fencedb.ErrWrongResource, neither},
	"fencedb.ErrTooLong":        {fencedb.ErrTooLong, neither}, // its own lease still stands
	"fencedb.ErrUnsealed":       {fencedb.ErrUnsealed, neither},
	"fencedb.ErrAlreadyWritten": {fencedb.ErrAlreadyWritten, settled}, // by this very holder, most likely
	"fencedb.ErrInvalidGrant":   {fencedb.ErrInvalidGrant, settled},   // a mistake, which stays one
	"fencedb.ErrKeyReused":      {fencedb.ErrKeyReused, neither},

	"*lease.HeldError":            {&lease.HeldError{}, lost},
	"*lease.WorkDoneError":        {&lease.WorkDoneError{Cause: lease.ErrExpired}, settled},
	"*once.InFlightError":         {&once.InFlightError{}, lost},
	"*fencedb.StaleError":         {&fencedb.StaleError{}, lost},
	"*fencedb.BusyError":          {&fencedb.BusyError{}, lost},
	"*fencedb.CommitUnknownError": {&fencedb.CommitUnknownError{}, settled},
	"*fencedb.TxEndedError":       {&fencedb.TxEndedError{}, settled},
	"*fencedb.WrongResourceError": {&fencedb.WrongResourceError{}, neither},
	"of somebody else's":          {errors.New("the kitchen is closed"), neither},
	"none":                        {nil, neither},
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
	for _, pattern := range []string{"../fencedb/*.go", "../lease/*.go", "../grant/*.go", "../migrations/sql/*.sql"} {
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
