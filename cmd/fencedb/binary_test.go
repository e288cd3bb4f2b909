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
	t.Run("completes in bash", func(t *testing.T) { completes(t, path) })
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

	require.Equal(t, exitFailed, exit.ExitCode())
	require.Equal(t, 1, strings.Count(errOut.String(), "\n"), errOut.String())
	require.True(t, strings.HasPrefix(errOut.String(), "fencedb: redis: "), errOut.String())
}

func completes(t *testing.T, path string) {
	w := newWorld(t)
	for _, resource := range []string{"table:12", "table:13", "seat:1"} {
		w.acquire(resource)
	}
	for line, want := range map[string]string{
		"fencedb mig":                    "migrate",
		"fencedb migrate u":              "up",
		"fencedb migrate ":               "up down reset status print export",
		"fencedb watch --s":              "--since",
		"fencedb watch --kind lo":        "lost",
		"fencedb inspect ":               "seat:1 table:12 table:13",
		"fencedb inspect t":              "table:12 table:13",
		"fencedb inspect table:":         "12 13", // bash takes what is before the colon for another word
		"fencedb inspect table:13":       "13",
		"fencedb with seat:1 -- ":        "",
		"fencedb with seat:1 -- ls -":    "",
		"fencedb ttl ":                   "seat table",
		"fencedb adopt ":                 "seats",
		"fencedb --namespace x inspect ": "",
	} {
		require.Equal(t, want, w.complete(path, line), line)
	}
}

// complete asks bash what it would offer at the end of line.
func (w *world) complete(path, line string) string {
	w.Helper()
	bash := exec.CommandContext(w.Context(), "bash", "--norc", "-euc", `
		source <(fencedb completion bash)
		COMP_LINE=$1 COMP_POINT=${#1}
		_fencedb
		echo "${COMPREPLY[*]-}" | sed 's/ help$//'`, "bash", line)
	bash.Env = append(os.Environ(), "PATH="+filepath.Dir(path)+":"+os.Getenv("PATH"), "FENCEDB_REDIS_URL="+redisURL(w.redis),
		"FENCEDB_POSTGRES_URL="+w.pool.Config().ConnString(), "FENCEDB_NAMESPACE="+w.namespace)
	out, err := bash.CombinedOutput()
	require.NoError(w, err, string(out))
	return strings.TrimSpace(string(out))
}
