package chaos

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

// stoppedVar makes this test binary a holder in a process of its own: the address of Redis, the URL of Postgres.
const stoppedVar = "FENCEDB_TEST_STOPPED"

// oversleepInAProcess acquires, says so, and when a line arrives writes with its old lease, and with its bare token.
func oversleepInAProcess(settings []string) error {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, settings[1])
	if err != nil {
		return err
	}
	defer pool.Close()
	i, err := lease.New(redis.NewClient(&redis.Options{Addr: settings[0]}), lease.Config{TTL: ttl, Namespace: "chaos"})
	if err != nil {
		return err
	}
	l, err := i.Acquire(ctx, resources[0])
	if err != nil {
		return err
	}
	fmt.Println("holding")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	write := func(g fencedb.Grant) error {
		return fencedb.Tx(ctx, pool, g, func(tx pgx.Tx) error { return increment(ctx, tx, g, atOnce) })
	}
	withLease, withToken := write(l), write(fencedb.NewGrant(l.Resource(), l.Token(), l.LeaseID(), time.Time{}))
	fmt.Println(errors.Is(withLease, fencedb.ErrStale) || errors.Is(withLease, fencedb.ErrLeaseOver), errors.Is(withToken, fencedb.ErrStale))
	return nil
}

// The whole process is stopped, with the watchdog that renews its lease.
func TestAStoppedProcessIsRefused(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	w := newWorld(t, clientsOf(t, server.Addr()))
	w.survive(func() {
		p := w.newProcess(server.Addr())
		require.Equal(t, "holding", p.says())
		require.NoError(t, p.Process.Signal(syscall.SIGSTOP))
		w.awaitCommits(nap)
		_, err := fmt.Fprintln(p.stdin)
		require.NoError(t, err)
		require.NoError(t, p.Process.Signal(syscall.SIGCONT))
		require.Equal(t, "true true", p.says(), "refused, with the lease and with its token")
		require.NoError(t, p.Wait())
	})
}

// process runs oversleepInAProcess.
type process struct {
	*exec.Cmd
	stdin io.Writer
	says  func() string // the next line
}

func (w *world) newProcess(redis string) *process {
	p := &process{Cmd: exec.Command(os.Args[0])}
	p.Env = append(os.Environ(), stoppedVar+"="+redis+" "+w.pool.Config().ConnString())
	p.Stderr = os.Stderr
	var err error
	p.stdin, err = p.StdinPipe()
	require.NoError(w, err)
	stdout, err := p.StdoutPipe()
	require.NoError(w, err)
	lines := bufio.NewScanner(stdout)
	p.says = func() string { lines.Scan(); return lines.Text() }
	require.NoError(w, p.Start())
	w.Cleanup(func() { _ = p.Process.Kill() })
	return p
}
