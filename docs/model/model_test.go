package model

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// with is the protocol with some rules changed.
func with(change func(*Rules)) Rules {
	r := Right()
	change(&r)
	return r
}

// settings are what the protocol is tried in.
var settings = []struct {
	name  string
	rules Rules
}{
	{"Redis loses its data or returns to a snapshot, twice", with(func(r *Rules) { r.Losses, r.Acquisitions = 2, 1 })},
	{"the same once, each process has two leases", with(func(r *Rules) { r.Losses = 1 })},
	{"three holders, Redis loses its data or returns to a snapshot", with(func(r *Rules) { r.Holders, r.Acquisitions, r.Losses = 3, 1, 1 })},
	{"Redis's clock goes back as well", with(func(r *Rules) { r.Acquisitions, r.Losses, r.ClockBack = 1, 2, 1 })},
	{"the same, holders are sealed", with(func(r *Rules) { r.Acquisitions, r.Losses, r.ClockBack, r.Seals = 1, 2, 1, true })},
	{"the same, what is written was read before the transaction", with(func(r *Rules) {
		r.Acquisitions, r.Losses, r.ClockBack, r.Seals, r.ReadsOutside = 1, 1, 1, true, true
	})},
	{"both isolation levels, two transactions under each lease", with(func(r *Rules) { r.Levels, r.Transactions, r.Acquisitions, r.Losses = true, 2, 1, 1 })},
	{"both isolation levels, three holders", with(func(r *Rules) { r.Levels, r.Holders, r.Acquisitions = true, 3, 1 })},
	{"replies and COMMITs are lost, Postgres crashes, a process dies", with(func(r *Rules) {
		r.Acquisitions, r.Cuts, r.Crashes, r.Deaths, r.Levels = 1, 2, 1, 1, true
	})},
	{"replies are lost, and lease ids are used again", with(func(r *Rules) { r.Cuts, r.NewIDs = 1, false })},
	{"somebody writes without a token", with(func(r *Rules) { r.Acquisitions, r.Forgeries = 1, 1 })},
}

// mutants are the protocol without one rule, and the promise that this breaks. A limit is the right
// protocol, judged for what it does not promise.
var mutants = []struct {
	name, broken string
	rules        Rules
}{
	{"no fence", "S3", with(func(r *Rules) { r.Acquisitions, r.Fence = 1, false })},
	{"the fence is taken at the write instead of first", "S3", with(func(r *Rules) { r.Acquisitions, r.EntersFirst = 1, false })},
	{"`>=` without the lease id", "S1", with(func(r *Rules) { r.Acquisitions, r.Losses, r.ClockBack, r.ComparesID = 1, 1, 1, false })},
	{"a plain counter, Redis loses its data, no sealing", "order", with(func(r *Rules) { r.Losses, r.Floor = 1, false })},
	{"a release without the token, lease ids used again", "L4", with(func(r *Rules) { r.NewIDs, r.TokenInEnd = false, false })},
	{"REPEATABLE READ without asking how old the snapshot is", "S3", with(func(r *Rules) {
		r.Acquisitions, r.Transactions, r.Levels, r.SealsRR = 1, 2, true, false
	})},
	{"SafeToRetry is believed", "S6", with(func(r *Rules) { r.Acquisitions, r.Cuts, r.AsksOutcome = 1, 1, false })},
	{"the outcome is asked without the epoch", "S6", with(func(r *Rules) { r.Acquisitions, r.Cuts, r.Crashes, r.KnowsEpoch = 1, 1, 1, false })},
	{"no guard on the table", "S4", with(func(r *Rules) { r.Acquisitions, r.Forgeries, r.Guards = 1, 1, false })},
	{"reads before the transaction, no sealing", "S8", with(func(r *Rules) { r.Acquisitions, r.ReadsOutside = 1, true })},
	{"no time limits in Postgres", "progress", with(func(r *Rules) { r.Acquisitions, r.Deaths, r.EndsLate = 1, 1, false })},
	{"limit: Redis's clock goes back with its data lost, no sealing", "order", with(func(r *Rules) {
		r.Acquisitions, r.Losses, r.ClockBack, r.Strict = 1, 1, 1, true
	})},
	{"limit: a lease id is used again, its reply is lost, and Redis returns to a snapshot, no sealing", "order", with(func(r *Rules) {
		r.Losses, r.Cuts, r.NewIDs, r.Strict = 1, 1, false, true
	})},
}

func TestTheProtocolKeepsItsPromisesInEveryState(t *testing.T) {
	t.Parallel()
	for _, s := range settings {
		found := s.rules.Search()
		if found.Broken != "" {
			t.Errorf("%s: %s\n%s", s.name, found.Broken, Text(found.Trace))
		} else if found.Steps < 0 {
			t.Errorf("%s: work never ends\n%s", s.name, Text(found.Stuck))
		}
		t.Logf("%8d states, done within %d steps: %s", found.States, found.Steps, s.name)
	}
}

// refutation is the shortest way in which a mutant breaks its promise.
func refutation(t *testing.T, broken string, r Rules) string {
	t.Helper()
	found := r.Search(broken)
	if broken == "progress" {
		require.Negative(t, found.Steps)
		return Text(found.Stuck) + "    progress: whatever happens from here on, somebody waits for ever\n"
	}
	require.NotEmpty(t, found.Broken, "not refuted: %s, %+v", broken, r)
	return Text(found.Trace)
}

const readme = "README.md"

// The page has what the search finds. FENCEDB_MODEL=write writes it there.
func TestEveryMutantIsRefutedAsThePageShows(t *testing.T) {
	t.Parallel()
	var traces strings.Builder
	for _, m := range mutants {
		fmt.Fprintf(&traces, "### %s\n\n", strings.ToUpper(m.name[:1])+m.name[1:])
		for line := range strings.Lines(refutation(t, m.broken, m.rules)) {
			traces.WriteString("    " + line)
		}
		traces.WriteString("\n")
	}
	page, err := os.ReadFile(readme)
	require.NoError(t, err)
	const begin, end = "<!-- traces: written by the test -->\n\n", "<!-- end of the traces -->"
	head, rest, found := strings.Cut(string(page), begin)
	require.True(t, found)
	shown, tail, found := strings.Cut(rest, end)
	require.True(t, found)
	if os.Getenv("FENCEDB_MODEL") == "write" {
		require.NoError(t, os.WriteFile(readme, []byte(head+begin+traces.String()+end+tail), 0o600))
		return
	}
	require.Equal(t, traces.String(), shown, "FENCEDB_MODEL=write go test ./docs/model writes the page")
}

// Each move names the lines that it stands for.
func TestEveryMoveNamesTheCodeItStandsFor(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(readme)
	require.NoError(t, err)
	named := map[string]bool{}
	for _, row := range regexp.MustCompile(`(?m)^\| ([a-z ,]+) \| .* \| (.*) \|$`).FindAllStringSubmatch(string(page), -1) {
		for name := range strings.SplitSeq(row[1], ", ") {
			named[name] = true
		}
		for _, code := range regexp.MustCompile("\\]\\(([^)]+)\\) `([^`]+)`").FindAllStringSubmatch(row[2], -1) {
			text, err := os.ReadFile(filepath.FromSlash(code[1]))
			require.NoError(t, err, row[0])
			require.Contains(t, string(text), code[2], "%s: %s", row[1], code[1])
		}
	}
	happened := map[string]bool{}
	for _, r := range []Rules{
		with(func(r *Rules) { r.Losses, r.ClockBack, r.Levels, r.Acquisitions, r.Forgeries = 1, 1, true, 1, 1 }),
		with(func(r *Rules) { r.Cuts, r.Crashes, r.Deaths, r.Acquisitions = 1, 1, 1, 1 }),
	} {
		r.names(happened)
	}
	for name := range happened {
		require.True(t, named[name], "the table lacks the move %q", name)
	}
	require.Greater(t, len(happened), 20)
}

// names notes the moves that happen.
func (r Rules) names(happened map[string]bool) {
	seen, queue := map[State]bool{r.start(): true}, []State{r.start()}
	for len(queue) > 0 {
		s := queue[0]
		queue = queue[1:]
		r.moves(s, func(m Move) {
			happened[m.Name] = true
			if !seen[m.Next] {
				seen[m.Next] = true
				queue = append(queue, m.Next)
			}
		})
	}
}

// Found is what a search has found.
type Found struct {
	States int
	Broken string // "" if no promise is broken
	Trace  []Move // to where it is broken, the shortest
	Steps  int    // how many moves without a fault it takes at most until all processes are done; -1: some never are
	Stuck  []Move // then: how to get there
}

// Search visits every state, nearest first. It stops at the first broken promise whose text begins
// with one of the words; with none, at any.
func (r Rules) Search(promises ...string) Found {
	seen := map[State]int32{}
	var all []State
	var from []int32
	var back [][2]int32 // moves that are no faults, from the later state
	visit := func(s State, parent int32) int32 {
		if at, ok := seen[s]; ok {
			return at
		}
		at := int32(len(all))
		seen[s] = at
		all, from = append(all, s), append(from, parent)
		return at
	}
	visit(r.start(), -1)
	for at := int32(0); int(at) < len(all); at++ {
		var broken *Move
		r.moves(all[at], func(m Move) {
			if m.Broken != "" && broken == nil && matches(m.Broken, promises) {
				broken = &m
			}
			next := visit(m.Next, at)
			if !m.Fault {
				back = append(back, [2]int32{next, at})
			}
		})
		if broken != nil {
			return Found{States: len(all), Broken: broken.Broken, Trace: append(r.trace(all, from, at), *broken)}
		}
	}
	f := Found{States: len(all)}
	f.Steps, f.Stuck = r.progress(all, from, back)
	return f
}

func matches(broken string, promises []string) bool {
	for _, p := range promises {
		if strings.HasPrefix(broken, p) {
			return true
		}
	}
	return len(promises) == 0
}

// trace is the way to a state, from the beginning.
func (r Rules) trace(all []State, from []int32, at int32) (moves []Move) {
	for ; from[at] >= 0; at = from[at] {
		var step *Move
		r.moves(all[from[at]], func(m Move) {
			if m.Next == all[at] && step == nil {
				step = &m
			}
		})
		moves = append([]Move{*step}, moves...)
	}
	return moves
}

// progress goes backwards from the states in which every process is done, by moves that are no
// faults. A state that it does not reach is one from which work never ends, even if nothing goes
// wrong any more.
func (r Rules) progress(all []State, from []int32, back [][2]int32) (steps int, stuck []Move) {
	first := make([]int32, len(all)+1) // where the moves into a state begin in before
	for _, b := range back {
		first[b[0]+1]++
	}
	for i := range all {
		first[i+1] += first[i]
	}
	before, next := make([]int32, len(back)), append([]int32(nil), first...)
	for _, b := range back {
		before[next[b[0]]] = b[1]
		next[b[0]]++
	}
	distance := make([]int32, len(all))
	var queue []int32
	for i, s := range all {
		distance[i] = -1
		if s.done() {
			distance[i] = 0
			queue = append(queue, int32(i))
		}
	}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		steps = max(steps, int(distance[at]))
		for _, b := range before[first[at]:first[at+1]] {
			if distance[b] < 0 {
				distance[b] = distance[at] + 1
				queue = append(queue, b)
			}
		}
	}
	for i := range all {
		if distance[i] < 0 {
			return -1, r.trace(all, from, int32(i))
		}
	}
	return steps, nil
}

// done says that no process has anything to do any more.
func (s State) done() bool {
	for _, p := range s.p {
		if p.at != dead && (p.at != idle || p.left > 0) {
			return false
		}
	}
	return true
}

// Text is a trace for people.
func Text(moves []Move) string {
	var out strings.Builder
	for n, m := range moves {
		text := m.Text
		if m.Who >= 0 {
			who := string(rune('A' + m.Who))
			if rest, its := strings.CutPrefix(text, "its "); its {
				text = who + "'s " + rest
			} else {
				text = who + " " + text
			}
		}
		fmt.Fprintf(&out, "%2d. %s\n", n+1, text)
	}
	if last := moves[len(moves)-1].Broken; last != "" {
		fmt.Fprintf(&out, "    %s\n", last)
	}
	return out.String()
}
