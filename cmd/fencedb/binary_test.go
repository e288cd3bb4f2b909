package main

import (
	"bytes"
	"debug/buildinfo"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
)

// built is the command as make fencedb builds it.
func built(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fencedb")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", path, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	return path
}

func TestTheBinary(t *testing.T) {
	t.Parallel()
	path := built(t)
	t.Run("is static", func(t *testing.T) { static(t, path) })
	t.Run("writes no more than the error to stderr", func(t *testing.T) { oneLine(t, path) })
	t.Run("completes in shells", func(t *testing.T) { completes(t, path) })
}

func static(t *testing.T, path string) {
	info, err := buildinfo.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "github.com/fencedb/fencedb/cmd/fencedb", info.Path)
	if runtime.GOOS != "linux" {
		return // elsewhere every program is linked with the system's library
	}
	file, err := elf.Open(path)
	require.NoError(t, err)
	defer file.Close()
	libraries, err := file.ImportedLibraries()
	require.NoError(t, err)
	require.Empty(t, libraries)
	for _, segment := range file.Progs {
		require.NotEqual(t, elf.PT_INTERP, segment.Type, "a loader")
	}
}

func oneLine(t *testing.T, path string) {
	var errOut bytes.Buffer
	leases := exec.CommandContext(t.Context(), path, "--redis", "redis://127.0.0.1:1", "leases")
	leases.Stderr = &errOut

	var exit *exec.ExitError
	require.ErrorAs(t, leases.Run(), &exit)

	require.Equal(t, app.ExitFailed, exit.ExitCode())
	require.Equal(t, 1, strings.Count(errOut.String(), "\n"), errOut.String())
	require.True(t, strings.HasPrefix(errOut.String(), "fencedb: redis: "), errOut.String())
}

func completes(t *testing.T, path string) {
	for line, word := range map[string]string{"": "inspect", "migrate": "status", "revoke --re": "--reason"} {
		out, err := exec.CommandContext(t.Context(), path, append(strings.Fields(line), "--generate-shell-completion")...).CombinedOutput()
		require.NoError(t, err, string(out))
		require.Contains(t, string(out), word, line)
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		out, err := exec.CommandContext(t.Context(), path, "completion", shell).CombinedOutput()
		require.NoError(t, err, string(out))
		require.Contains(t, string(out), "fencedb", shell)
	}
}
