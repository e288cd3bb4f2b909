// Package matrix holds every promise of the write layer against every entry point, isolation level,
// query mode and fault, and asks the database afterwards.
//
//	go test ./lab/matrix -run 'TestWrites/Exec/.*/.*/.*/cut'    one slice, in the form that CI runs
//	make matrix                                                   all of it, on every version of Postgres
package matrix

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/testenv"
)

// sideBySide is how many cases run at once, unless -parallel 1 asks for one. Most of their time
// they wait.
const sideBySide = 20

func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() != "1" {
		_ = f.Value.Set(strconv.Itoa(sideBySide))
	}
	testenv.Main(m)
}

// full is whether everything is run, or what CI has the time for; written is whether the page is to
// show this run.
var (
	full    = os.Getenv("FENCEDB_MATRIX") == "full"
	written = full || os.Getenv("FENCEDB_MATRIX") == "sample"
)

func TestWrites(t *testing.T) {
	leaks := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, leaks) })
	worlds, again := newWorlds(t, sideBySide), newRepeats(t)
	for i := range entries {
		t.Run(entries[i].name, func(t *testing.T) {
			t.Parallel()
			for f := range faults {
				for _, s := range setups(&entries[i], i, f) {
					t.Run(s.path()+"/"+faults[f].name, func(t *testing.T) {
						t.Parallel()
						w := <-worlds
						defer func() { worlds <- w }()
						w.try(t, s, &faults[f], again)
					})
				}
			}
		})
	}
}

// TestThePageSaysWhatTheMatrixFound comes last. It writes the page after a whole run that found
// nothing wrong, if asked to, and compares it with the tables of this package otherwise;
// FENCEDB_MATRIX=page shows the kept results anew.
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
	require.True(t, withTables(string(shown), byVersion) == string(shown), "FENCEDB_MATRIX=page go test ./lab/matrix -run ThePage writes %s anew", page)
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
					if warm && (byDefault || full && (l == 0 || m == 0)) {
						all = append(all, s)
					}
				case !full && fault.unasked && !(byDefault && (warm || fault.runtime != nil)):
				case full, fault.name == "none" && (nth+l+m)%2 == again, byDefault && (fault.unasked || !warm), (nth+f+l)%5 == 0 && (nth+2*f+m)%5 == 0 && (nth+f)%2 == again:
					all = append(all, s)
				}
			}
		}
	}
	for i, handle := range []handle{connection, single} {
		s := setup{e, levels[0], modes[0], (nth+f)%4 < 2, handle}
		if e.name != "EnterSQL" && (fault.unless == nil || !fault.unless(s)) && (full || (nth+f)%2 == i) && fault.name != "cut at a byte" {
			all = append(all, s)
		}
	}
	return all
}

// try runs one setup at every point of a fault.
func (w *world) try(t *testing.T, s setup, f *fault, again *repeats) {
	t.Helper()
	rehearsal := w.rehearse(t, s, f)
	for _, p := range sample(s, f, f.points(rehearsal)) {
		once := func(t *testing.T, last bool) (done bool) {
			o, err := w.run(context.WithoutCancel(t.Context()), s, f, p)
			if o.answer == unknown && !f.mayBeUnknown(s, p, o.sent, rehearsal) {
				o.late = errors.Join(o.late, errCouldKnow) // it asks for the outcome for a limited time
			}
			if (err != nil || o.late != nil) && !last {
				return false
			}
			require.NoError(t, err, p.name)
			check(t, s, f, p, o)
			return true
		}
		if !once(t, false) {
			again.add(once)
		}
	}
}

// repeats are the cases that took too long beside others, or could not be carried out. Each has the
// machine to itself at the end of its test.
type repeats struct {
	mu  sync.Mutex
	all []func(t *testing.T, last bool) (done bool)
}

func newRepeats(t *testing.T) *repeats {
	r := new(repeats)
	t.Cleanup(func() {
		t.Logf("%d cases run once more", len(r.all))
		neededAll := 0
		for _, once := range r.all {
			tries := 1
			for !once(t, tries == 5) {
				tries++
			}
			if tries == 5 {
				neededAll++
			}
			require.Less(t, neededAll, 20, "the rest is not tried")
		}
	})
	return r
}

func (r *repeats) add(once func(t *testing.T, last bool) (done bool)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, once)
}

// rehearse records the conversation without a fault, which must succeed.
func (w *world) rehearse(t *testing.T, s setup, f *fault) []sent {
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
	case full:
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

// check reports an outcome that should not be.
func check(t *testing.T, s setup, f *fault, p point, o outcome) {
	t.Helper()
	wrong := errors.Join(o.wrong, o.late)
	if !slices.Contains(f.allowed(s), o.answer) {
		wrong = errors.Join(wrong, fmt.Errorf("answers %s", o.answer))
	}
	if f.outcome != nil && !errors.Is(o.err, f.outcome) {
		wrong = errors.Join(wrong, fmt.Errorf("is not %w", f.outcome))
	}
	record(s, f, o, wrong != nil)
	if wrong != nil {
		t.Errorf("%s/%s, %s, %s: %v\n\tanswer %s after %v: %v", s.name, s.path(), f.name, p.name, wrong, o.answer, o.took.Round(time.Millisecond), o.err)
	}
}
