package testenv_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
)

func TestOwnRedisComesBackWithWhatItSaved(t *testing.T) {
	t.Parallel()
	s := testenv.OwnRedis(t, "--appendonly", "yes", "--appendfsync", "always")
	require.NoError(t, s.Client().Set(t.Context(), "k", "saved", 0).Err())
	addr := s.Addr()
	s.Kill()
	require.Error(t, s.Client().Ping(t.Context()).Err())
	s.Restart()
	require.Equal(t, addr, s.Addr())
	require.Equal(t, "saved", s.Client().Get(t.Context(), "k").Val())
}

func TestOwnPostgresComesBackAfterACrash(t *testing.T) {
	t.Parallel()
	s := testenv.OwnPostgres(t, "fsync=on", "synchronous_commit=on", "full_page_writes=on")
	pool := s.Pool()
	_, err := pool.Exec(t.Context(), "CREATE TABLE kept (); INSERT INTO kept DEFAULT VALUES")
	require.NoError(t, err)
	s.Kill()
	s.Restart()
	var rows int
	pool.Reset()
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM kept").Scan(&rows))
	require.Equal(t, 1, rows)
}
