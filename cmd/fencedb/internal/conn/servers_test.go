package conn

import (
	"testing"

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

	(&Servers{Pool: pool}).Close() // or it waits for ever
}
