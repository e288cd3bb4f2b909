package main

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
)

// asProgram makes the test binary be the program under test.
const asProgram = "DEMO_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	testenv.Main(m)
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for says, args := range map[string][]string{
		`unknown argument "dance"`:    {"dance"},
		"-dance":                      {"-dance"},
		`value "high" for flag -port`: {"-port", "high"},
	} {
		require.ErrorContains(t, run(t.Context(), args), says)
	}
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self, "sing")
	cmd.Env = append(os.Environ(), asProgram+"=1")
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Run(), &exit)
	require.Equal(t, 1, exit.ExitCode())
}
