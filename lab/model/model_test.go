package model

import (
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

// guarding is the guard of a table with some rules changed.
func guarding(change func(*Guard)) Guard {
	g := RightGuard()
	change(&g)
	return g
}

// guards are what it is tried in.
var guards = []struct {
	name  string
	rules Guard
}{
	{"a login that may not enter writes the list by hand", RightGuard()},
	{"one after the other, a list is kept for the session", guarding(func(g *Guard) { g.Turns = [sessions]uint8{1, 2, 0} })},
	{"two sessions of one lease", guarding(func(g *Guard) {
		g.Leases, g.Tokens = [sessions]uint8{1, 2, 2}, [sessions][resources]uint8{{0, 1}, {2, 2}, {2, 2}}
		g.May[2] = true
	})},
	{"two leases of one token", guarding(func(g *Guard) { // of an issuer that has lost its data
		g.Tokens, g.Before = [sessions][resources]uint8{{0, 2}, {2, 2}, {0, 2}}, false
		g.May[2] = true
	})},
}

// brokenGuards are the guard without one rule, and the promise that this breaks.
var brokenGuards = []struct {
	name, broken string
	rules        Guard
}{
	{"the list is written before the fence is locked", "S2", guarding(func(g *Guard) { g.Locks = false })},
	{"the list is not local", "S4", guarding(func(g *Guard) { g.Local = false })},
	{"the list of an earlier transaction is believed", "S4", guarding(func(g *Guard) { g.Turns, g.Transaction = [sessions]uint8{1, 2, 0}, false })},
	{"the resource is not compared", "S4", guarding(func(g *Guard) { g.Resource = false })},
	{"nobody asks whether the login may enter", "S4", guarding(func(g *Guard) { g.Right = false })},
	{"limit: whoever may enter writes the list by hand", "S4", guarding(func(g *Guard) { g.Lies = true })},
}

func TestTheGuardKeepsItsPromisesInEveryState(t *testing.T) {
	t.Parallel()
	for _, s := range guards {
		keepsItsPromises(t, s.name, s.rules)
	}
}

func TestTheProtocolKeepsItsPromisesInEveryState(t *testing.T) {
	t.Parallel()
	for _, s := range settings {
		keepsItsPromises(t, s.name, s.rules)
	}
}

func keepsItsPromises[S comparable](t *testing.T, name string, rules machine[S]) {
	t.Helper()
	found := Search(rules)
	if found.Broken != "" {
		t.Errorf("%s: %s\n%s", name, found.Broken, Text(found.Trace))
	} else if found.Steps < 0 {
		t.Errorf("%s: work never ends\n%s", name, Text(found.Stuck))
	}
	t.Logf("%8d states, done within %d steps: %s", found.States, found.Steps, name)
}

// refutation is the shortest way in which a mutant breaks its promise.
func refutation[S comparable](t *testing.T, name, broken string, rules machine[S]) string {
	t.Helper()
	found := Search(rules, broken)
	heading := "## " + strings.ToUpper(name[:1]) + name[1:] + "\n\n"
	var trace string
	if broken == "progress" {
		require.Negative(t, found.Steps, "not refuted: %s", name)
		trace = Text(found.Stuck) + "    progress: whatever happens from here on, somebody waits for ever\n"
	} else {
		require.NotEmpty(t, found.Broken, "not refuted: %s", name)
		trace = Text(found.Trace)
	}
	return heading + regexp.MustCompile(`(?m)^`).ReplaceAllString(strings.TrimSuffix(trace, "\n"), "    ") + "\n\n"
}

// The page has what the search finds. FENCEDB_MODEL=write writes it there.
func TestEveryMutantIsRefutedAsThePageShows(t *testing.T) {
	t.Parallel()
	var traces strings.Builder
	for _, m := range mutants {
		traces.WriteString(refutation(t, m.name, m.broken, m.rules))
	}
	for _, m := range brokenGuards {
		traces.WriteString(refutation(t, "guards: "+m.name, m.broken, m.rules))
	}
	const page = "traces.md"
	shown, err := os.ReadFile(page)
	require.NoError(t, err)
	head, _, found := strings.Cut(string(shown), "## ")
	require.True(t, found)
	want := head + strings.TrimSuffix(traces.String(), "\n")
	if os.Getenv("FENCEDB_MODEL") == "write" {
		require.NoError(t, os.WriteFile(page, []byte(want), 0o600))
		return
	}
	require.Equal(t, want, string(shown), "FENCEDB_MODEL=write go test ./lab/model writes the page")
}

// Each move names the lines that it stands for.
func TestEveryMoveNamesTheCodeItStandsFor(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("README.md")
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
		with(func(r *Rules) { r.ReadsOutside, r.Seals, r.Acquisitions = true, true, 1 }),
		with(func(r *Rules) { r.Cuts, r.AsksOutcome, r.EntersFirst, r.NewIDs = 1, false, false, false }),
	} {
		names(r, happened)
	}
	names(guarding(func(g *Guard) { g.Turns = [sessions]uint8{1, 2, 0} }), happened)
	for name := range happened {
		require.True(t, named[name], "the table lacks the move %q", name)
	}
	for name := range named {
		require.True(t, happened[name] || name == "move", "the move %q of the table never happens", name)
	}
}

// names notes the moves that happen.
func names[S comparable](m machine[S], happened map[string]bool) {
	w, _ := visit(m, "all states")
	for _, s := range w.all {
		w.moves(s, func(m Move[S]) { happened[m.Name] = true })
	}
}
