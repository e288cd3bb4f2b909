package conn

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
)

// pgx gives a connection back 15 seconds after a query on it was given up, if the server hangs.
func TestAConnectionThatHangsDoesNotKeepTheCommand(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), testenv.PostgresURL(t))
	require.NoError(t, err)
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	closed := make(chan struct{})

	go func() { (&Servers{Pool: pool}).Close(); close(closed) }()

	select {
	case <-closed:
	case <-time.After(10 * time.Second):
		require.Fail(t, "it waits")
	}
}
