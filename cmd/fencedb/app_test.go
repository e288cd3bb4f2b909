package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
)

func TestAWrongCallSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	const nowhere = "postgres://nobody@127.0.0.1:1/none"
	for name, test := range map[string]struct {
		args []string
		says string
	}{
		"command":         {[]string{"mirgate"}, `"mirgate"`},
		"subcommand":      {[]string{"migrate", "sideways"}, `"sideways"`},
		"flag":            {[]string{"migrate", "up", "--fast"}, "-fast"},
		"no postgres":     {[]string{"migrate", "up"}, "FENCEDB_POSTGRES_URL"},
		"postgres":        {[]string{"--postgres", "postgres://u:hunter2@[", "migrate", "up"}, "--postgres"},
		"timeout":         {[]string{"--postgres", nowhere, "--timeout", "0s", "migrate", "up"}, "--timeout"},
		"timeout no time": {[]string{"--timeout", "soon", "migrate", "up"}, "soon"},
		"argument":        {[]string{"migrate", "up", "3"}, `"3"`},
		"no redis":        {[]string{"leases"}, "FENCEDB_REDIS_URL"},
		"redis":           {[]string{"--redis", "redis://u:hunter2@[", "leases"}, "--redis"},
		"two prefixes":    {[]string{"leases", "a", "b"}, `"b"`},
		"limit":           {[]string{"leases", "--limit", "0"}, "--limit"},
		"no resource":     {[]string{"inspect"}, "table:12"},
		"two resources":   {[]string{"inspect", "a", "b"}, `"b"`},
		"no reason":       {[]string{"revoke", "table:12"}, "--reason"},
		"revoke nothing":  {[]string{"revoke", "--reason", "it hangs"}, "table:12"},
		"prune too soon":  {[]string{"prune", "--older-than", "24h"}, "--max-hold"},
		"prune a day":     {[]string{"prune", "--older-than", "23h", "--retention", "1h"}, "24h"},
		"prune hold":      {[]string{"prune", "--max-hold", "-1h"}, "--max-hold"},
		"prune silently":  {[]string{"prune", "--apply"}, "--reason"},
		"prune one":       {[]string{"prune", "table:12"}, "table:12"},
		"shell":           {[]string{"completion", "tcsh"}, `"tcsh"`},
		"two types":       {[]string{"ttl", "a", "b"}, `"b"`},
		"no type":         {[]string{"ttl"}, "table"},
		"a resource":      {[]string{"ttl", "table:12"}, "before the colon"},
		"pause":           {[]string{"ttl", "table", "--pause", "-1s"}, "--pause"},
		"prometheus":      {[]string{"ttl", "table", "--prometheus", "prom"}, "http://"},
		"kind":            {[]string{"watch", "--kind", "lots"}, "refused"},
		"since":           {[]string{"watch", "--since", "-1s"}, "--since"},
		"watch two":       {[]string{"watch", "a", "b"}, `"b"`},
		"older than":      {[]string{"leases", "--older-than", "-1s"}, "--older-than"},
		"print argument":  {[]string{"migrate", "print", "3"}, `"3"`},
	} {
		got := newConsole(t).run(test.args...)

		require.Equal(t, exitUsage, got.code, name)
		require.Contains(t, got.errOut, test.says, name)
		require.NotContains(t, got.errOut, "hunter2", name)
		require.Empty(t, got.out, name)
	}
}

func TestAServerThatIsAwayIsAFailure(t *testing.T) {
	t.Parallel()
	got := newConsole(t, "--postgres", "postgres://nobody:hunter2@127.0.0.1:1/none").run("migrate", "up")

	require.Equal(t, exitFailed, got.code)
	require.Contains(t, got.errOut, "postgres:")
	require.NotContains(t, got.errOut, "hunter2")
}

func TestTheEnvironmentConfigures(t *testing.T) {
	t.Setenv("FENCEDB_POSTGRES_URL", testenv.PostgresURL(t))
	t.Setenv("FENCEDB_JSON", "true")
	var got schemaReport

	newConsole(t).json("migrate", &got, "migrate", "up")

	require.NotEmpty(t, got.Changed)
}

func TestHelpIsHelp(t *testing.T) {
	t.Parallel()
	c := newConsole(t)

	require.Contains(t, c.ok(), "Exit codes:")
	require.Contains(t, c.ok("migrate"), "status")
	require.Contains(t, c.ok("--version"), "fencedb version")
	for _, command := range []string{"migrate", "inspect", "leases", "watch", "revoke", "ttl", "prune", "doctor"} {
		require.Contains(t, c.ok(command, "--help"), "fencedb "+command, "it teaches by example")
	}
}
