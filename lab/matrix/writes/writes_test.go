// Package writes holds every promise of the write layer against every entry point, isolation level,
// query mode and fault, and asks the database afterwards.
//
//	go test ./lab/matrix/writes -run 'TestWrites/Exec/.*/.*/.*/cut'    one slice, in the form that CI runs
//	make matrix                                                          all of it, on every version of Postgres
package writes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lab/matrix"
)

// sideBySide is how many cells are played at once.
const sideBySide = 20

func TestMain(m *testing.M) { testenv.Main(m) }

// written is whether the page is to show this run.
var written = matrix.Full || os.Getenv("FENCEDB_MATRIX") == "sample"

func TestWrites(t *testing.T) {
	leaks := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, leaks) })
	table, worlds := matrix.NewTable(sideBySide), newWorlds(t, sideBySide)
	var cells []matrix.Cell
	for i := range entries {
		for f := range faults {
			for _, s := range setups(&entries[i], i, f) {
				cells = append(cells, cell(table, worlds, s, &faults[f]))
			}
		}
	}
	table.Play(t, cells)
}

// cell is one setup under a fault, in one of the worlds.
func cell(table *matrix.Table, worlds chan *world, s setup, f *fault) matrix.Cell {
	return matrix.Cell{Name: s.name + "/" + s.path() + "/" + f.name, Play: func(t *testing.T) {
		w := <-worlds
		defer func() { worlds <- w }()
		w.try(t, table, s, f)
	}}
}

// TestThePageSaysWhatTheMatrixFound comes last, as its file does. It writes the page after a whole
// run that found nothing wrong, if asked to, and compares it with the tables of this package
// otherwise; FENCEDB_MATRIX=page shows the kept results anew.
func TestThePageSaysWhatTheMatrixFound(t *testing.T) {
	byVersion := map[string]results{}
	text, err := os.ReadFile(kept)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &byVersion))
	shown, err := os.ReadFile(page)
	require.NoError(t, err)
	if written && !tally.wrong && complete(tally.results) {
		byVersion[serverVersion(t)] = tally.results
		text, err := json.MarshalIndent(byVersion, "", "\t")
		require.NoError(t, err)
		text = regexp.MustCompile(`\{[^{}]*\}`).ReplaceAllFunc(text, func(cell []byte) []byte { return bytes.Join(bytes.Fields(cell), []byte(" ")) }) // a line
		require.NoError(t, os.WriteFile(kept, append(text, '\n'), 0o644))
		require.NoError(t, os.WriteFile(page, []byte(withTables(string(shown), byVersion)), 0o644))
		return
	}
	for version, found := range byVersion {
		require.True(t, complete(found), "the results for Postgres %s lack a fault or an entry point; run make matrix", version)
	}
	if os.Getenv("FENCEDB_MATRIX") == "page" {
		require.NoError(t, os.WriteFile(page, []byte(withTables(string(shown), byVersion)), 0o644))
		return
	}
	require.True(t, withTables(string(shown), byVersion) == string(shown), "FENCEDB_MATRIX=page go test ./lab/matrix/writes -run ThePage writes %s anew", page)
}

// setups are those in which an entry point meets a fault. Without any, all. Every byte is for the
// default level in every mode, and for every level in the default mode; CI takes it in the default
// setup, and of the rest a sample in which each fault meets each level, each mode and each handle,
// and each entry point each fault.
func setups(e *entry, nth, f int) (all []setup) {
	fault := &faults[f]
	for l, level := range levels {
		for m, mode := range modes {
			for again, warm := range []bool{false, true} {
				s := setup{e, level, mode, warm, pooled}
				byDefault := l == 0 && m == 0
				switch {
				case level.option != "" && !e.options, fault.unless != nil && fault.unless(s):
				case fault.name == "cut at a byte":
					if warm && (byDefault || matrix.Full && (l == 0 || m == 0)) {
						all = append(all, s)
					}
				case !matrix.Full && fault.unasked && !(byDefault && (warm || fault.runtime != nil)):
				case matrix.Full, fault.name == "none" && (nth+l+m)%2 == again, byDefault && (fault.unasked || !warm), (nth+f+l)%5 == 0 && (nth+2*f+m)%5 == 0 && (nth+f)%2 == again:
					all = append(all, s)
				}
			}
		}
	}
	for i, handle := range []handle{connection, single} {
		s := setup{e, levels[0], modes[0], (nth+f)%4 < 2, handle}
		if e.name != "EnterSQL" && (fault.unless == nil || !fault.unless(s)) && (matrix.Full || (nth+f)%2 == i) && fault.name != "cut at a byte" {
			all = append(all, s)
		}
	}
	return all
}

// try plays one setup at every point of a fault.
func (w *world) try(t *testing.T, table *matrix.Table, s setup, f *fault) {
	t.Helper()
	var rehearsal []sent
	if !table.Try(t, func(a *matrix.Attempt) { rehearsal = w.rehearse(a, s, f) }) {
		return
	}
	for _, p := range sample(s, f, f.points(rehearsal)) {
		var o outcome
		right := table.Try(t, func(a *matrix.Attempt) {
			var err error
			o, err = w.run(context.WithoutCancel(t.Context()), s, f, p)
			if o.answer == unknown && !f.mayBeUnknown(s, p, o.sent, rehearsal) {
				o.late = errors.Join(o.late, errCouldKnow) // it asks for the outcome for a limited time
			}
			if err != nil || o.late != nil {
				a.Late()
			}
			require.NoError(a, err, p.name)
			if wrong := check(s, f, p, o); wrong != nil {
				a.Errorf("%v", wrong)
			}
		})
		record(s, f, o, !right)
	}
}

// rehearse records the conversation without a fault, which must succeed.
func (w *world) rehearse(t *matrix.Attempt, s setup, f *fault) []sent {
	t.Helper()
	if f.verdict == faulty.Pass && f.do == nil {
		return nil // it happens beside the conversation
	}
	o, err := w.run(t.Context(), s, &faults[0], once(nil)[0])
	require.NoError(t, errors.Join(err, o.wrong))
	require.Equal(t, committed, o.answer, "without any fault: %v", o.err)
	return o.sent
}

// sample is all points in full and in the default setup, but of the bytes there only in full: each
// entry point has others of them, and messages are cut at each of their ends as well. Elsewhere,
// and for the one-shot forms of guard, which are those of fencedb under a lease, CI has the time
// for one of those that take long, and for some of those that are many.
func sample(s setup, f *fault, points []point) (some []point) {
	every := 1
	byDefault := s.level == levels[0] && s.mode == modes[0] && s.handle == pooled && !(s.oneShot && strings.HasPrefix(s.name, "guard."))
	switch {
	case matrix.Full:
	case byDefault && f.name == "cut at a byte":
		every = 3
	case byDefault:
	case f.slow:
		every = len(points)
	case len(points) > 10:
		every = 5
	}
	for i := len(s.name+s.path()+f.name) % every; i < len(points); i += every { // not always the first
		some = append(some, points[i])
	}
	return some
}

// check returns what should not be.
func check(s setup, f *fault, p point, o outcome) error {
	wrong := errors.Join(o.wrong, o.late)
	if !slices.Contains(f.allowed(s), o.answer) {
		wrong = errors.Join(wrong, fmt.Errorf("answers %s", o.answer))
	}
	if f.outcome != nil && !errors.Is(o.err, f.outcome) {
		wrong = errors.Join(wrong, fmt.Errorf("is not %w", f.outcome))
	}
	if wrong == nil {
		return nil
	}
	return fmt.Errorf("%s/%s, %s, %s: %w\n\tanswer %s after %v: %w", s.name, s.path(), f.name, p.name, wrong, o.answer, o.took.Round(time.Millisecond), orNil(o.err))
}
