package docs

// Every guard of the list is removed, one at a time, and the test that keeps it has to go red.

import (
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var mutateFlag = flag.String("mutate", "", "remove the guards whose file and words match this pattern")

// in is where the test is declared, and its name.
func (g guard) in() (dir, name string) {
	dot := strings.LastIndexByte(g.test, '.')
	return g.test[:dot], g.test[dot+1:]
}

// mutated is the text of file without the guard.
func (g guard) mutated(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile("../" + file)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(text), g.text), "%s: %s: the code has changed, so lab/docs/guards_test.go has to", file, g.words)
	return strings.Replace(string(text), g.text, g.with, 1)
}

// simulated are the mutants in lease/simulation_test.go: words, file, text, and with what it is
// replaced.
func simulated(t *testing.T) (all [][]string) {
	t.Helper()
	source, err := parser.ParseFile(token.NewFileSet(), "../lease/simulation_test.go", nil, parser.SkipObjectResolution)
	require.NoError(t, err)
	ast.Inspect(source, func(n ast.Node) bool {
		list, is := n.(*ast.ValueSpec)
		if !is || list.Names[0].Name != "mutants" && list.Names[0].Name != "goMutants" {
			return true
		}
		for _, mutant := range list.Values[0].(*ast.CompositeLit).Elts {
			words := literals(t, mutant)
			require.Len(t, words, 4)
			words[1] = filepath.Join("lease", words[1])
			if list.Names[0].Name == "mutants" { // of scripts
				words[1] = "internal/protocol/" + filepath.Base(words[1]) + ".lua"
			}
			if text, _ := os.ReadFile("../" + words[1]); !strings.Contains(string(text), words[2]) {
				words[1] = "internal/protocol/common.lua" // which stands before each script
			}
			all = append(all, words)
		}
		return false
	})
	return all
}

// literals are the strings in an expression.
func literals(t *testing.T, of ast.Node) (all []string) {
	t.Helper()
	ast.Inspect(of, func(n ast.Node) bool {
		if literal, is := n.(*ast.BasicLit); is {
			text, err := strconv.Unquote(literal.Value)
			require.NoError(t, err)
			all = append(all, text)
		}
		return true
	})
	return all
}

// The page is what the lists say, and the list of guards is true of the code. No mutant is there
// twice. FENCEDB_MUTATIONS=write writes the page.
func TestMutationsAreOfGuardsThatAreThere(t *testing.T) {
	t.Parallel()
	var rows strings.Builder
	total, listed := 0, map[string]string{} // by file and mutated text
	add := func(words, file, mutated string) {
		require.Empty(t, listed[file+mutated], words)
		listed[file+mutated] = words
	}
	simulated := simulated(t)
	for _, m := range simulated {
		text, err := os.ReadFile("../" + m[1])
		require.NoError(t, err)
		require.Contains(t, string(text), m[2], m[0])
		add(m[0], m[1], strings.ReplaceAll(string(text), m[2], m[3]))
	}
	for _, f := range guards {
		total += len(f.of)
		fmt.Fprintf(&rows, "\n## %s\n\n| promise | guard | without it fails |\n| --- | --- | --- |\n", f.file)
		for _, g := range f.of {
			require.NotEqual(t, g.text, g.with, g.words)
			add(g.words, f.file, g.mutated(t, f.file))
			require.Regexp(t, `^(S[1-8]|L[1-8])$`, g.promise, g.words)
			dir, name := g.in()
			require.True(t, declares(t, dir, name), "%s: there is no %s", g.words, g.test)
			fmt.Fprintf(&rows, "| %s | %s | `%s` in %s |\n", g.promise, g.words, name, dir)
		}
	}
	rows.WriteString("\n## Found by the simulation\n\n| file | broken |\n| --- | --- |\n")
	for _, m := range simulated {
		fmt.Fprintf(&rows, "| %s | %s |\n", m[1], m[0])
	}
	page := fmt.Sprintf("# Guards, and the tests that keep them\n\n"+
		"A guard is a condition that keeps a [promise](../../docs/promises.md).\n"+
		"`make mutations` removes each of these %d, one at a time, and runs the\n"+
		"test beside it, which has to fail: a guard that no test misses could be lost in any change. The list\n"+
		"with the exact texts is `lab/docs/guards_test.go`; a test compares it with the code and with this page\n"+
		"(`TestMutationsAreOfGuardsThatAreThere`; `FENCEDB_MUTATIONS=write go test ./lab/docs -run Mutations`\n"+
		"writes it).\n\n"+
		"No one test misses the other mutants, and none is in two lists:\n\n"+
		"- [%d](#found-by-the-simulation) of the scripts and of the Go of the leases, which the simulation finds\n"+
		"  within two thousand seeds (`make simulate`);\n"+
		"- those of the protocol and of the guard of a table, which the [model](../model/traces.md) refutes;\n"+
		"- the [controls](../../docs/chaos.md#controls) of `fencedb chaos`.\n\n"+
		"S1 order, S2 no late write, S3 stable reads, S4 no way round, S5 deletes do not forget, S6 the\n"+
		"outcome is known, S7 a zombie cannot block, S8 sealed grants; L1 one live lease, L2 tokens rise, L4\n"+
		"a lost reply does no harm, L5 the trust window, L6 waiting, L7 healing, L8 a context bounds the\n"+
		"call.\n%s", total, len(simulated), &rows)
	if os.Getenv("FENCEDB_MUTATIONS") == "write" {
		require.NoError(t, os.WriteFile("../lab/docs/mutations.md", []byte(page), 0o600))
		return
	}
	shown, err := os.ReadFile("../lab/docs/mutations.md")
	require.NoError(t, err)
	require.Equal(t, page, string(shown), "FENCEDB_MUTATIONS=write go test ./lab/docs -run Mutations writes it anew")
}

func declares(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob("../" + dir + "/*_test.go")
	require.NoError(t, err)
	return slices.ContainsFunc(files, func(file string) bool {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		return strings.Contains(string(text), "\nfunc "+name+"(t *testing.T) {")
	})
}

// run runs tests of a directory, with an overlay or without, and returns what they wrote.
func run(t *testing.T, dir, overlay string, limit time.Duration, tests ...string) (passed bool, said string) {
	t.Helper()
	test := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-vet=off", fmt.Sprint("-timeout=", limit), "-overlay="+overlay, "-run", "^("+strings.Join(tests, "|")+")$", ".")
	test.Dir = "../" + dir
	out, err := test.CombinedOutput()
	return err == nil, string(out)
}

// overlay is the file for go test -overlay that replaces one file.
func overlay(t *testing.T, file, text string) string {
	t.Helper()
	dir := t.TempDir()
	original, err := filepath.Abs("../" + file)
	require.NoError(t, err)
	replaced := filepath.Join(dir, filepath.Base(file))
	list, err := json.Marshal(map[string]any{"Replace": map[string]string{original: replaced}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(replaced, []byte(text), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "overlay.json"), list, 0o600))
	return filepath.Join(dir, "overlay.json")
}

// invalid is what is said when a mutant does not run at all, which shows nothing.
var invalid = regexp.MustCompile(`\[(build|setup) failed\]|SQLSTATE 42601|compiling script`)

// Without -mutate this does nothing. A test counts when it passes with the guard and fails without.
func TestMutationsAreNoticed(t *testing.T) {
	if *mutateFlag == "" {
		return
	}
	wanted := regexp.MustCompile(*mutateFlag)
	tests := map[string][]string{}
	var removals []func()
	for _, f := range guards {
		for _, g := range f.of {
			name := f.file + ": " + g.words
			if !wanted.MatchString(name) {
				continue
			}
			dir, test := g.in()
			tests[dir] = append(tests[dir], test)
			removals = append(removals, func() {
				t.Run(name, func(t *testing.T) {
					passed, said := run(t, dir, overlay(t, f.file, g.mutated(t, f.file)), 2*time.Minute, test)
					require.NotRegexp(t, invalid, said, "the mutant does not run")
					require.False(t, passed, "SURVIVED: %s passes without the guard", g.test)
					require.Regexp(t, `(?m)^\s*--- FAIL|^panic: `, said, "the test did not run")
				})
			})
		}
	}
	for dir, all := range tests {
		passed, said := run(t, dir, "", time.Hour, all...)
		require.True(t, passed, "%s fails with all guards in place:\n%s", dir, said)
	}
	for _, remove := range removals {
		remove()
	}
}
