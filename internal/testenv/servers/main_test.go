package main

import (
	"bufio"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
)

// asProgram makes the test binary be the program under test.
const asProgram = "SERVERS_TEST_AS_PROGRAM"

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

func TestACommandGetsServers(t *testing.T) {
	t.Parallel()
	cmd := program(t, "sh", "-c", "echo $FENCEDB_POSTGRES_URL $FENCEDB_REDIS_URL; exit 3")
	url := testenv.PostgresURL(t)
	cmd.Env = append(cmd.Env, "FENCEDB_POSTGRES_URL="+url, "FENCEDB_REDIS_URL=redis://"+testenv.Redis(t).Options().Addr+"/0")
	said, err := cmd.Output()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 3, exit.ExitCode())
	require.Regexp(t, `^postgres\S+ redis://\S+\n$`, string(said))
}

func TestACommandThatEndsWellWhenInterruptedHasSucceeded(t *testing.T) {
	t.Parallel()
	cmd := program(t, "sh", "-c", "trap 'exit 0' INT; echo ready; while :; do sleep 0.1; done")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ready\n", line)
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	require.NoError(t, cmd.Wait())
}

func TestUsage(t *testing.T) {
	t.Parallel()
	require.ErrorContains(t, run(t.Context(), nil), "which command?")
	require.ErrorContains(t, run(t.Context(), []string{"-sing"}), "-sing")
	require.NoError(t, run(t.Context(), []string{"-missing"}))
	var exit *exec.ExitError
	require.ErrorAs(t, program(t, "-sing").Run(), &exit)
	require.Equal(t, 1, exit.ExitCode())
}
