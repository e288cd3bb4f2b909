package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/look"
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
	var o look.Origin
	c.json("version", &o, "version")
	require.Equal(t, look.BuiltFrom(), &o)
	require.Regexp(t, `^0000\d_\w+$`, o.Schema)
	text := c.ok("version")
	for _, fact := range []string{o.Version, o.Go, o.Platform, o.Schema} {
		require.Contains(t, text, fact)
	}
}
