package main

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/examples/booking/server"
	"github.com/fencedb/fencedb/internal/testenv"
)

// The lines of the README are run as they are printed, but for the address. Each says which status its answer has.
func TestTheREADMEWorksAsPrinted(t *testing.T) {
	t.Parallel()
	lines := commandsAfter(t, "In another terminal:\n\n")
	url := serving(t, privateServers(t)).url

	script := exec.CommandContext(t.Context(), "sh", "-eu", "-c", strings.ReplaceAll(lines, "localhost:8080", url))
	said, err := script.Output()
	require.NoError(t, err)

	require.Equal(t, matches(lines, `# (\d{3})`), matches(string(said), `(?m)^HTTP/1.1 (\d{3})`), string(said))
	require.NotEmpty(t, matches(lines, `# (\d{3})`))
}

func TestMigrateAndServeOnServersOfOnesOwn(t *testing.T) {
	t.Parallel()
	env := []string{
		server.PostgresVar + "=" + testenv.PostgresURL(t),
		server.RedisVar + "=redis://" + testenv.Redis(t).Options().Addr + "/0",
		server.NamespaceVar + "=" + testenv.Namespace(t),
	}
	migrate := program(t, "migrate")
	migrate.Env = append(migrate.Env, env...)
	said, err := migrate.CombinedOutput()
	require.NoError(t, err, string(said))

	s := serving(t, env)
	ready := exec.CommandContext(t.Context(), "curl", "--silent", "--fail", s.url+"/readyz")
	require.NoError(t, ready.Run())

	require.NoError(t, s.cmd.Process.Signal(os.Interrupt))
	require.NoError(t, s.cmd.Wait(), "ends in good order")
}

// commandsAfter returns the indented lines that follow a text in the README.
func commandsAfter(t *testing.T, text string) string {
	t.Helper()
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(readme), text)
	require.True(t, found)
	lines, _, _ := strings.Cut(rest, "\n\n")
	return lines
}

func matches(text, pattern string) (all []string) {
	for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		all = append(all, match[1])
	}
	return all
}

// privateServers is an environment without settings, in which the service finds servers for itself.
func privateServers(t *testing.T) []string {
	t.Helper()
	return []string{
		"FENCEDB_POSTGRES_URL=" + testenv.PostgresURL(t),
		"FENCEDB_REDIS_URL=redis://" + testenv.Redis(t).Options().Addr + "/0",
		server.NamespaceVar + "=" + testenv.Namespace(t),
	}
}

// served is the service as a process.
type served struct {
	cmd *exec.Cmd
	url string
}

func serving(t *testing.T, env []string) served {
	t.Helper()
	cmd := program(t, "serve")
	cmd.Env = append(cmd.Env, env...)
	cmd.Env = append(cmd.Env, server.AddrVar+"=127.0.0.1:0")
	log := &watched{more: make(chan struct{}, 1)}
	cmd.Stderr = log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt) // fails if it has ended
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(log)
		}
	})
	log.until(t, "listening")
	return served{cmd, matches(log.String(), `url=(\S+)`)[0]}
}
