// Package examples tests what all examples have in common: that they can be copied, and that they
// can be started at once.
package examples

import (
	"bufio"
	"bytes"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/fencedb/fencedb/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const module = "github.com/fencedb/fencedb"

func all(t *testing.T) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(".")
	require.NoError(t, err)
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	require.Contains(t, names, "quickstart")
	return names
}

// A copy is everything but the tests, which start servers with internal/testenv.
func TestEachExampleBuildsInAForeignModule(t *testing.T) {
	t.Parallel()
	for _, name := range all(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, files, lines := t.TempDir(), 0, 0
			require.NoError(t, os.CopyFS(dir, os.DirFS(name)))
			require.NoError(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
				switch {
				case err != nil || !strings.HasSuffix(path, ".go"):
					return err
				case strings.HasSuffix(path, "_test.go"):
					return os.Remove(path)
				}
				files++
				text, err := os.ReadFile(path)
				require.NoError(t, err)
				lines += len(codeLine.FindAll(text, -1))
				renamed := strings.ReplaceAll(string(text), module+"/examples/"+name, "example.test/renamed")
				require.NotContains(t, renamed, module+"/examples", path)
				require.NotContains(t, renamed, module+"/internal", path)
				return os.WriteFile(path, []byte(renamed), 0o600)
			}))
			require.LessOrEqual(t, files, 5, "Go files")
			require.LessOrEqual(t, lines, 450, "lines of code")
			readme, err := os.ReadFile(filepath.Join(dir, "README.md"))
			require.NoError(t, err)
			require.LessOrEqual(t, bytes.Count(readme, []byte("\n")), 45, "lines of README.md, which is one screen")

			if files == 0 { // it is in other languages
				return
			}
			writeModule(t, dir)
			run(t, dir, "go", "vet", "./...") // compiles it too
		})
	}
}

// codeLine is one that is neither blank nor a comment.
var codeLine = regexp.MustCompile(`(?m)^[ \t]*[^ \t\n/]`)

// writeModule makes dir a module with what the examples need, on this checkout of fencedb.
func writeModule(t *testing.T, dir string) {
	t.Helper()
	root, err := filepath.Abs("..")
	require.NoError(t, err)
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	run(t, dir, "go", "mod", "edit", "-module=example.test/renamed",
		"-replace="+module+"="+root, "-replace="+module+"/observe="+filepath.Join(root, "observe"))
}

func run(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
	said, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s %v\n%s", name, args, said)
}

// Replicas start at the same moment, on a database that has nothing in it, which all examples
// share.
func TestEightOfEachExampleStartAtOnce(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	run(t, ".", "go", "build", "-o", bin, "./...")
	env := append(os.Environ(), "FENCEDB_POSTGRES_URL="+testenv.PostgresURL(t), "FENCEDB_REDIS_URL=redis://"+testenv.OwnRedis(t).Addr())
	var programs errgroup.Group
	started := 0
	for name, args := range map[string][]string{
		"booking": {"migrate"}, "inventory": {"stock"}, "jobs": {"add", "sales"}, "cron": {"add", "ann"}, "quickstart": nil,
	} {
		for range 8 {
			started++
			programs.Go(func() error {
				cmd := exec.CommandContext(t.Context(), filepath.Join(bin, name), args...)
				cmd.Env = env
				said, err := cmd.CombinedOutput()
				if err != nil {
					t.Errorf("%s: %v\n%s", name, err, said)
				}
				return nil
			})
		}
	}
	require.NoError(t, programs.Wait())
	require.Equal(t, 40, started)
}

// A service that people look at shows moving lines within a minute, in a Prometheus that has the
// configuration of docker-compose.yml. Only the addresses are others.
func TestTheDashboardMovesWithinAMinute(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	run(t, ".", "go", "build", "-o", bin, "./booking")
	env := append(os.Environ(), "FENCEDB_POSTGRES_URL="+testenv.PostgresURL(t), "FENCEDB_REDIS_URL=redis://"+testenv.OwnRedis(t).Addr(),
		"BOOKING_ADDR=127.0.0.1:0")
	migrate := exec.CommandContext(t.Context(), filepath.Join(bin, "booking"), "migrate")
	migrate.Env = env
	said, err := migrate.CombinedOutput()
	require.NoError(t, err, string(said))
	booking := serving(t, filepath.Join(bin, "booking"), env)

	guide, err := os.ReadFile("../docs/observing.md")
	require.NoError(t, err)
	loop := regexp.MustCompile(`(?m)^    while (?:.*\n)+?    done$`).FindString(string(guide))
	require.Contains(t, loop, "localhost:8080")
	guests := exec.Command("sh", "-c", strings.ReplaceAll(loop, "localhost:8080", booking))
	guests.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(t, guests.Start())
	t.Cleanup(func() {
		_ = syscall.Kill(-guests.Process.Pid, syscall.SIGKILL)
		_ = guests.Wait()
	})
	config := t.TempDir()
	for _, name := range []string{"prometheus.yml", "rules.yml", "targets.yml"} {
		text, err := os.ReadFile("../observe/dashboards/" + name)
		require.NoError(t, err)
		if name == "targets.yml" {
			require.Contains(t, string(text), "host.docker.internal:8080")
			text = bytes.ReplaceAll(text, []byte("host.docker.internal:8080"), []byte(booking))
		}
		require.NoError(t, os.WriteFile(filepath.Join(config, name), text, 0o600))
	}
	prometheus := testenv.Prometheus(t, filepath.Join(config, "prometheus.yml"))

	for _, query := range []string{ // of panels, with the interval that Grafana takes for scrapes every five seconds
		`sum by (instance) (rate(redis_lease_acquire_total{job="fencedb", outcome="granted"}[20s])) > 0`,
		`sum by (instance) (rate(fencedb_writes_total{job="fencedb", outcome="committed"}[20s])) > 0`,
	} {
		require.Eventually(t, func() bool {
			moving, err := prometheus.Ask(query)
			return err == nil && len(moving) == 1
		}, time.Minute, 500*time.Millisecond, query)
	}
}

// serving starts a program that serves until the end of the test, and returns its host:port.
func serving(t *testing.T, program string, env []string) string {
	t.Helper()
	cmd := exec.Command(program)
	cmd.Env = env
	log, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	})
	for lines := bufio.NewScanner(log); lines.Scan(); {
		if found := regexp.MustCompile(`url=http://(\S+)`).FindStringSubmatch(lines.Text()); found != nil {
			go func() { _, _ = io.Copy(io.Discard, log) }()
			return found[1]
		}
	}
	require.Fail(t, program+" does not serve")
	return ""
}
