package once_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/lease/once"
)

// Variables that make the test binary be a runner: a process that runs the work of key "a" until
// its stdin ends.
const (
	runnerAddr      = "ONCE_TEST_RUNNER_ADDR"
	runnerNamespace = "ONCE_TEST_RUNNER_NAMESPACE"
)

var inFlight = once.Config{InFlight: 8 * time.Second}

func TestMain(m *testing.M) {
	if addr := os.Getenv(runnerAddr); addr != "" {
		beRunner(addr)
		return
	}
	testenv.Main(m)
}

func beRunner(addr string) {
	cfg := inFlight
	cfg.Namespace = os.Getenv(runnerNamespace)
	o, err := once.New(redis.NewClient(&redis.Options{Addr: addr}), cfg)
	if err == nil {
		_, _, err = o.Do(context.Background(), "a", nil, func(context.Context, *lease.Lease) ([]byte, error) {
			fmt.Println("running")
			_, _ = io.Copy(io.Discard, os.Stdin)
			return []byte("from the runner"), nil
		})
	}
	fmt.Println("refused:", errors.Is(err, once.ErrNotRecorded))
}

// runner is such a process, after it has begun.
type runner struct {
	cmd   *exec.Cmd
	stdin io.Closer
	said  *bufio.Reader
}

func startRunner(t *testing.T, w *world) *runner {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), runnerAddr+"="+w.client.(*redis.Client).Options().Addr, runnerNamespace+"="+w.namespace)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	r := &runner{cmd, stdin, bufio.NewReader(stdout)}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // fails if it has ended
		_ = cmd.Wait()
	})
	require.Equal(t, "running\n", r.line(t))
	return r
}

func (r *runner) line(t *testing.T) string {
	t.Helper()
	line, err := r.said.ReadString('\n')
	require.NoError(t, err)
	return line
}

// duplicates asks for the key a hundred times from two more processes' point of view, and counts
// the runs.
func duplicates(t *testing.T, w *world) (runs *atomic.Int64, results []<-chan outcome) {
	runs = new(atomic.Int64)
	for range 2 {
		o := w.once(t, inFlight)
		for range 50 {
			results = append(results, begin(t.Context(), o, "a", func(context.Context, *lease.Lease) ([]byte, error) {
				runs.Add(1)
				return []byte("from a duplicate"), nil
			}))
		}
	}
	return runs, results
}

func TestARunnerThatIsKilledIsReplacedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := startRunner(t, w)
	runs, results := duplicates(t, w)
	require.NoError(t, r.cmd.Process.Kill())
	for _, result := range results {
		got := <-result
		require.NoError(t, got.err)
		require.Equal(t, "from a duplicate", got.result)
	}
	require.EqualValues(t, 1, runs.Load())
}

func TestARunnerThatWasStoppedIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := startRunner(t, w)
	runs, results := duplicates(t, w)
	require.NoError(t, r.cmd.Process.Signal(syscall.SIGSTOP))
	for _, result := range results {
		require.Equal(t, "from a duplicate", (<-result).result)
	}
	require.EqualValues(t, 1, runs.Load())

	require.NoError(t, r.stdin.Close())
	require.NoError(t, r.cmd.Process.Signal(syscall.SIGCONT))
	require.Equal(t, "refused: true\n", r.line(t))
	require.Equal(t, outcome{"from a duplicate", true, nil}, do(t.Context(), w.once(t, inFlight), "a", forbidden(t)))
}
