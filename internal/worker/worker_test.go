package worker_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/worker"
)

// workerVar makes this test binary a worker, which tells what it hears; "dumb" is one that ends
// before it is ready.
const workerVar = "FENCEDB_TEST_WORKER"

func TestMain(m *testing.M) {
	switch os.Getenv(workerVar) {
	case "":
		os.Exit(m.Run())
	case "echo":
		fmt.Println(`"ready"`)
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			fmt.Println(lines.Text())
		}
	}
}

func start(t *testing.T, kind string) (*worker.Process[string], error) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	command := exec.Command(self)
	command.Env = append(os.Environ(), workerVar+"="+kind)
	return worker.Spawn[string](t.Context(), command)
}

func next(t *testing.T, p *worker.Process[string]) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	told, err := p.Next(ctx)
	require.NoError(t, err)
	return told
}

func TestAWorkerThatIsStoppedAnswersWhenItWakes(t *testing.T) {
	t.Parallel()
	p, err := start(t, "echo")
	require.NoError(t, err)
	defer p.Kill()
	require.NoError(t, p.Order("a"))
	require.Equal(t, "a", next(t, p))

	require.NoError(t, p.Stop())
	require.NoError(t, p.Order("b"))
	require.Empty(t, p.Events(), "it stands still")

	require.NoError(t, p.Continue())
	require.Equal(t, "b", next(t, p))
}

func TestAWorkerEndsWithItsOrders(t *testing.T) {
	t.Parallel()
	p, err := start(t, "echo")
	require.NoError(t, err)
	defer p.Kill()
	p.EndOrders()
	_, more := <-p.Events()
	require.False(t, more)
	_, err = p.Next(t.Context())
	require.ErrorContains(t, err, "has ended")
}

func TestKillLeavesNothing(t *testing.T) {
	t.Parallel()
	p, err := start(t, "echo")
	require.NoError(t, err)
	require.NoError(t, p.Stop())
	p.Kill()
	require.ErrorIs(t, syscall.Kill(p.PID(), 0), syscall.ESRCH)
	require.Error(t, p.Stop())
}

func TestAWorkerThatIsNeverReadyIsAnError(t *testing.T) {
	t.Parallel()
	_, err := start(t, "dumb")
	require.ErrorContains(t, err, "start a worker")
}

// An order that cannot be told is an error, not a worker that waits.
func TestAnOrderThatIsNotJSON(t *testing.T) {
	t.Parallel()
	p, err := start(t, "echo")
	require.NoError(t, err)
	defer p.Kill()
	var unsupported *json.UnsupportedTypeError
	require.ErrorAs(t, p.Order(func() {}), &unsupported)
}
