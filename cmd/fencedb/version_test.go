package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Who shows the help to somebody else does not show passwords.
func TestHelpShowsNothingOfTheEnvironment(t *testing.T) {
	t.Setenv("FENCEDB_POSTGRES_URL", "postgres://ann:hunter2@db/app")
	t.Setenv("FENCEDB_REDIS_URL", "redis://ann:hunter2@cache")
	c := newConsole(t)
	for _, args := range [][]string{{"--help"}, {"inspect", "--help"}, {"help", "inspect"}, {"migrate", "up", "--help"}} {
		require.NotContains(t, c.ok(args...), "hunter2", args)
	}
}

func TestVersionSaysWhatItIsOf(t *testing.T) {
	t.Parallel()
	c := newConsole(t)
	var o origin
	c.json("version", &o, "version")
	require.Equal(t, builtFrom(), &o)
	require.Regexp(t, `^0000\d_\w+$`, o.Schema)
	text := c.ok("version")
	for _, fact := range []string{o.Version, o.Go, o.Platform, o.Schema} {
		require.Contains(t, text, fact)
	}
	require.Contains(t, onScreen(screen{}, (&origin{Revision: "abc", Modified: true}).print), "abc, with changes")
	require.Contains(t, onScreen(screen{}, (&origin{}).print), "not known")
}
