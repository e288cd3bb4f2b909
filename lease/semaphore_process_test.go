package lease_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/lease"
)

// Variables that make the test binary be a holder: a process that holds a place on "a" until its stdin ends.
const (
	holderAddr      = "SEMAPHORE_TEST_HOLDER_ADDR"
	holderNamespace = "SEMAPHORE_TEST_HOLDER_NAMESPACE"
)

const (
	places    = 5
	holderTTL = 1500 * ms
)

func bePermitHolder(addr string) {
	s, err := lease.NewSemaphore(redis.NewClient(&redis.Options{Addr: addr}), lease.SemaphoreConfig{
		Limit: places, Lease: lease.Config{TTL: holderTTL, Namespace: os.Getenv(holderNamespace)},
	})
	if err == nil {
		err = s.Do(context.Background(), "a", func(context.Context, *lease.Lease) error {
			fmt.Println("holding")
			_, err := io.Copy(io.Discard, os.Stdin)
			return err
		})
	}
	fmt.Println("lost:", err != nil)
}

type permitHolder struct {
	cmd   *exec.Cmd
	stdin io.Closer
	said  *bufio.Reader
}

func startPermitHolder(t *testing.T, w *world) *permitHolder {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), holderAddr+"="+w.client.(*redis.Client).Options().Addr, holderNamespace+"="+w.namespace)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	h := &permitHolder{cmd, stdin, bufio.NewReader(stdout)}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // fails if it has ended
		_ = cmd.Wait()
	})
	require.Equal(t, "holding\n", h.line(t))
	return h
}

func (h *permitHolder) line(t *testing.T) string {
	t.Helper()
	line, err := h.said.ReadString('\n')
	require.NoError(t, err)
	return line
}

// Two of five places are held by processes that are stopped. A hundred contenders get the three others at first, and all five
// when the stopped ones have been given up; never more, by Redis's own account.
func TestSemaphoreAHundredContendersUnderStoppedHolders(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stopped := []*permitHolder{startPermitHolder(t, w), startPermitHolder(t, w)}
	for _, h := range stopped {
		require.NoError(t, h.cmd.Process.Signal(syscall.SIGSTOP))
	}

	most := contend(t, w, 100)
	require.LessOrEqual(t, most, places)

	inspector := w.semaphore(t, places, lease.Config{})
	// They are given up: all places can be had.
	var got []*lease.Lease
	for range places {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		l, err := inspector.Acquire(ctx, "a")
		cancel()
		require.NoError(t, err)
		got = append(got, l)
	}
	requireFull(t, inspector, "a")
	for _, h := range stopped {
		require.NoError(t, h.stdin.Close())
		require.NoError(t, h.cmd.Process.Signal(syscall.SIGCONT))
		require.Equal(t, "lost: true\n", h.line(t))
	}
	for _, l := range got {
		requireVerdict(t, l, lease.Current)
		require.NoError(t, l.Release(t.Context()))
	}
}

// contend lets n contenders, from four processes' point of view, hold a place once each, and returns the most holders that any of
// them saw in Redis.
func contend(t *testing.T, w *world, n int) int {
	t.Helper()
	var mu sync.Mutex
	done, most := 0, 0
	look := func(ctx context.Context, s *lease.Semaphore) error {
		found, err := s.Inspect(ctx, "a")
		mu.Lock()
		defer mu.Unlock()
		done, most = done+1, max(most, len(found.Permits))
		return err
	}
	var all sync.WaitGroup
	for range 4 {
		s := w.semaphore(t, places, lease.Config{})
		for range n / 4 {
			all.Go(func() {
				err := s.Do(t.Context(), "a", func(ctx context.Context, _ *lease.Lease) error { return look(ctx, s) })
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
	all.Wait()
	require.Equal(t, n, done)
	return most
}

func TestSemaphoreAHolderThatIsKilledBlocksItsPlaceForOneTTL(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.semaphore(t, places, lease.Config{})
	dead := startPermitHolder(t, w)
	for range places - 1 {
		tryPermit(t, s, "a")
	}
	requireFull(t, s, "a")
	require.NoError(t, dead.cmd.Process.Kill())
	l, err := s.Acquire(t.Context(), "a")
	require.NoError(t, err)
	require.NoError(t, l.Release(t.Context()))
}
