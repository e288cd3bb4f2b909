package main

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// offered are the words that may come next, and what is said of them.
func (c *console) offered(typed ...string) (words []string, said string) {
	c.Helper()
	said = c.ok(append(typed, "--generate-shell-completion")...)
	for line := range strings.Lines(said) {
		word, _, _ := strings.Cut(line, "\t")
		words = append(words, word)
	}
	return words, said
}

func TestResourcesAreCompleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	all := []string{"seat:1", "seat:2", "table:12"}
	for _, resource := range append(all, `it's "one"`, "a\nline") { // which could not be typed like that
		require.NoError(t, w.acquire(resource).Release(t.Context()))
	}
	for _, takes := range []string{"inspect", "revoke", "reset", "leases", "watch", "with"} {
		words, _ := w.offered(takes)
		require.Equal(t, all, words, takes)
		words, _ = w.offered(takes, "seat:1")
		require.Equal(t, takes == "with", slices.Equal(all, words), takes)
	}
	for _, none := range [][]string{{"--namespace", "other", "inspect"}, {"migrate", "up"}, {"doctor"},
		{"--redis", "redis://127.0.0.1:1", "inspect"}, {"--redis", "nonsense", "inspect"}, {"--postgres", "nonsense", "adopt"}} {
		words, _ := w.offered(none...)
		require.Empty(t, words, none)
	}
}

func TestTypesTablesKindsAndToolsAreCompleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, resource := range []string{"seat:1", "seat:2", "table:12"} {
		w.acquire(resource)
	}
	for _, test := range []struct{ typed, want []string }{
		{[]string{"ttl"}, []string{"seat", "table"}},
		{[]string{"adopt"}, []string{"seats"}},
		{[]string{"watch", "--kind"}, strings.Split(words(kinds), ", ")},
		{[]string{"migrate", "export", "--for"}, slices.Sorted(maps.Keys(layouts))},
		{[]string{"watch", "--ki"}, []string{"--kind"}},
	} {
		words, _ := w.offered(test.typed...)
		require.Equal(t, test.want, words, test.typed)
	}
}

func TestCommandsAndFlagsAreCompletedWithWhatTheyAre(t *testing.T) {
	t.Parallel()
	c := newConsole(t)
	words, said := c.offered()
	for _, command := range (&app{}).root().Commands {
		require.Contains(t, words, command.Name)
		require.Contains(t, said, command.Name+"\t"+command.Usage+"\n")
	}
	words, said = c.offered("revoke", "seat:1", "--")
	require.Subset(t, words, []string{"--reason", "--yes", "--postgres", "--timeout", "--help"})
	require.Contains(t, said, "--reason\tWHY, for the audit; required\n")
}

func TestEveryShellGetsACompletionScript(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"bash", "zsh", "fish"} {
		require.Contains(t, newConsole(t).ok("completion", shell), "fencedb completion "+shell)
	}
}
