package testenv

import (
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

func TestPgBouncerStandsBeforeOneDatabaseUntilTheTestEnds(t *testing.T) {
	t.Parallel()
	database := PostgresURL(t)
	var addr string
	t.Run("the test", func(t *testing.T) {
		bouncer := PgBouncer(t, database, "transaction")
		config, err := pgx.ParseConfig(bouncer.URL())
		require.NoError(t, err)
		config.DefaultQueryExecMode = pgx.QueryExecModeExec
		addr = address(int(config.Port))

		var pids [2]int
		for i := range pids {
			conn, err := pgx.ConnectConfig(t.Context(), config)
			require.NoError(t, err)
			defer conn.Close(t.Context())
			var name string
			require.NoError(t, conn.QueryRow(t.Context(), `SELECT current_database(), pg_backend_pid()`).Scan(&name, &pids[i]))
			require.True(t, strings.HasSuffix(database, "/"+name+"?sslmode=disable"), "%s in %s", name, database)
		}
		require.Equal(t, pids[0], pids[1], "two clients share one server connection")
		require.True(t, bouncer.AtLeast(1, 0))
		require.False(t, bouncer.AtLeast(999, 0))
	})

	_, err := net.Dial("tcp", addr)
	require.Error(t, err)
}

func TestVersionsOfPgBouncerAreCompared(t *testing.T) {
	t.Parallel()
	has := &PgBouncerServer{version: "PgBouncer 1.18.0"}

	require.True(t, has.AtLeast(1, 18))
	require.True(t, has.AtLeast(0, 99))
	require.False(t, has.AtLeast(1, 21))
	require.False(t, has.AtLeast(2, 0))
	require.False(t, (&PgBouncerServer{version: "odyssey"}).AtLeast(0, 0))
}

func TestPgBouncerIsFoundOffPath(t *testing.T) {
	h := bareHost()
	_, err := h.pgbouncerBin(t.Context())
	require.ErrorContains(t, err, "no pgbouncer on PATH")

	h.isFile = func(path string) bool { return path == "/usr/sbin/pgbouncer" }
	path, err := h.pgbouncerBin(t.Context())
	require.NoError(t, err)
	require.Equal(t, "/usr/sbin/pgbouncer", path)

	h.lookPath = tools("/opt/bin/pgbouncer")
	path, err = h.pgbouncerBin(t.Context())
	require.NoError(t, err)
	require.Equal(t, "/opt/bin/pgbouncer", path)
}
