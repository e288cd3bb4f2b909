package testenv

import (
	"context"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestOwnPostgresComesBackAfterACrash(t *testing.T) {
	t.Parallel()
	s := OwnPostgres(t, "fsync=on", "synchronous_commit=on", "full_page_writes=on")
	pool := s.Pool()
	_, err := pool.Exec(t.Context(), "CREATE TABLE kept (); INSERT INTO kept DEFAULT VALUES")
	require.NoError(t, err)
	url := s.URL()
	s.Kill()
	s.Restart()
	require.Equal(t, url, s.URL())
	pool.Reset()
	require.Equal(t, 1, count(t, pool, "kept"))
}

// A child of the crashed server still holds its shared memory, because it was paused.
func TestARestartWaitsForWhatTheCrashLeft(t *testing.T) {
	t.Parallel()
	s := OwnPostgres(t)
	var child int
	require.NoError(t, s.Pool().QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(&child))
	require.NoError(t, syscall.Kill(child, syscall.SIGSTOP))
	s.Kill()

	failures := s.cluster.process.log()
	restarted := make(chan error)
	go func() { restarted <- s.cluster.restart(t.Context()) }()
	await(t, "a first attempt to fail", func(context.Context) bool {
		return (&process{dir: s.cluster.dir}).log() != failures
	})
	require.NoError(t, syscall.Kill(child, syscall.SIGCONT))
	require.NoError(t, <-restarted)
}

func TestOwnPostgresRestartsInGoodOrder(t *testing.T) {
	t.Parallel()
	s := OwnPostgres(t)
	pool := s.Pool()
	_, err := pool.Exec(t.Context(), "CREATE TABLE kept ()")
	require.NoError(t, err)
	s.Restart()
	pool.Reset()
	require.Equal(t, 0, count(t, pool, "kept"))
}

func TestOwnPostgresTakesSettings(t *testing.T) {
	t.Parallel()
	s := OwnPostgres(t, "fsync=on", "deadlock_timeout=10ms")
	var fsync, deadlock string
	require.NoError(t, s.Pool().QueryRow(t.Context(),
		"SELECT current_setting('fsync'), current_setting('deadlock_timeout')").Scan(&fsync, &deadlock))
	require.Equal(t, []string{"on", "10ms"}, []string{fsync, deadlock})
}

func TestAPausedPostgresTakesNoConnection(t *testing.T) {
	t.Parallel()
	s := OwnPostgres(t)
	s.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 10*pollEvery)
	defer cancel()
	require.ErrorIs(t, newPool(t, s.URL()).Ping(ctx), context.DeadlineExceeded)
	s.Resume()
	require.NoError(t, newPool(t, s.URL()).Ping(t.Context()))
}

func TestAPausedPostgresCanBeStopped(t *testing.T) {
	t.Parallel()
	s := OwnPostgres(t)
	s.Pause()
	s.Stop()
}

func TestACrashedPostgresLeavesNoSharedMemory(t *testing.T) {
	t.Parallel()
	s := OwnPostgres(t)
	segment, found := s.cluster.sharedMemory()
	require.True(t, found)
	s.Kill()
	s.Stop()
	require.Eventually(t, func() bool {
		_, err := unix.SysvShmCtl(segment, unix.IPC_STAT, new(unix.SysvShmDesc))
		return err != nil
	}, patience, pollEvery)
}
