package main

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
)

// asProgram makes the test binary be the program under test.
const asProgram = "BOOKING_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	testenv.Main(m)
}

func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	return cmd
}

// The lines of the README are run as they are printed, but for the address. Each says which status
// its answer has.
func TestTheREADMEWorksAsPrinted(t *testing.T) {
	t.Parallel()
	lines := commandsAfter(t, "In another terminal:\n\n")
	url := serving(t, servers(t))

	script := exec.CommandContext(t.Context(), "sh", "-eu", "-c", strings.ReplaceAll(lines, "localhost:8080", url))
	said, err := script.Output()
	require.NoError(t, err)

	require.Equal(t, matches(lines, `# (\d{3})`), matches(string(said), `(?m)^HTTP/1.1 (\d{3})`), string(said))
	require.NotEmpty(t, matches(lines, `# (\d{3})`))
}

func TestUsage(t *testing.T) {
	t.Parallel()
	both := []string{postgresVar + "=postgres://127.0.0.1:5432/tables", redisVar + "=redis://127.0.0.1:6379/0"}
	for name, tc := range map[string]struct {
		args []string
		env  []string
		says string
	}{
		"unknown argument": {args: []string{"sing"}, env: both, says: `"sing"`},
		"more than one":    {args: []string{"migrate", ":9090"}, env: both, says: `":9090"`},
		"no Postgres":      {args: []string{"migrate"}, says: postgresVar},
		"no Redis":         {env: both[:1], says: redisVar},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := program(t, tc.args...)
			cmd.Env = append(append(cmd.Env, postgresVar+"=", redisVar+"="), tc.env...)
			said, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit)
			require.Equal(t, 1, exit.ExitCode())
			require.Contains(t, string(said), tc.says)
		})
	}
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

// servers is an environment of an empty database that has been migrated by the program.
func servers(t *testing.T) []string {
	t.Helper()
	env := []string{
		postgresVar + "=" + testenv.PostgresURL(t),
		redisVar + "=redis://" + testenv.Redis(t).Options().Addr + "/0",
		namespaceVar + "=" + testenv.Namespace(t),
	}
	cmd := program(t, "migrate")
	cmd.Env = append(cmd.Env, env...)
	said, err := cmd.CombinedOutput()
	require.NoError(t, err, string(said))
	return env
}

// serving starts the service as a process, and returns its URL.
func serving(t *testing.T, env []string) string {
	t.Helper()
	cmd := program(t)
	cmd.Env = append(cmd.Env, env...)
	cmd.Env = append(cmd.Env, addrVar+"=127.0.0.1:0")
	log := &logged{}
	cmd.Stderr = log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt) // fails if it has ended
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(log)
		}
	})
	return log.url(t)
}
