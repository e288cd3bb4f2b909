package main

import (
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/urfave/cli/v3"
)

// Somebody types at night what the runbook says.
func TestTheRunbookNamesCommandsAndFlagsThatExist(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/runbook.md")
	require.NoError(t, err)
	root := (&app{}).root()
	calls := regexp.MustCompile("(?m)(?:^    |`)fencedb ([a-z]+)([^`#\n]*)").FindAllStringSubmatch(string(text), -1)
	require.NotEmpty(t, calls)
	for _, call := range calls {
		command := root.Command(call[1])
		require.NotNil(t, command, call[0])
		flags := slices.Concat(root.Flags, command.Flags)
		for _, flag := range regexp.MustCompile(`--([a-z-]+)`).FindAllStringSubmatch(call[2], -1) {
			require.True(t, slices.ContainsFunc(flags, func(f cli.Flag) bool { return slices.Contains(f.Names(), flag[1]) }), call[0])
		}
	}
}
