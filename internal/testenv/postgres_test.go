package testenv

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
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
