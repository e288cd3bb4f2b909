package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

// asProgram makes the test binary be the program under test.
const asProgram = "QUICKSTART_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	testenv.Main(m)
}

func TestTheProgramBooksOnAnEmptyDatabaseAndAgain(t *testing.T) {
	t.Parallel()
	database, client := testenv.PostgresURL(t), testenv.Redis(t)
	self, err := os.Executable()
	require.NoError(t, err)
	book := func() (string, error) {
		program := exec.CommandContext(t.Context(), self)
		program.Env = append(os.Environ(), asProgram+"=1",
			"FENCEDB_POSTGRES_URL="+database,
			"FENCEDB_REDIS_URL=redis://"+client.Options().Addr+"/0")
		said, err := program.CombinedOutput()
		return string(said), err
	}
	for range 2 {
		said, err := book()
		require.NoError(t, err, said)
		require.Empty(t, said)
	}

	pool, err := pgxpool.New(t.Context(), database)
	require.NoError(t, err)
	defer pool.Close()
	guests := func() []string {
		rows, _ := pool.Query(t.Context(), `SELECT guest FROM reservations WHERE last_fencing_token > 0`)
		guests, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		return guests
	}
	require.Equal(t, []string{"Ann"}, guests())

	issuer, err := lease.New(client, lease.Config{TTL: 10 * time.Second})
	require.NoError(t, err)
	_, err = guard.New(issuer, pool).Exec(t.Context(), "table:12", `UPDATE reservations SET guest = 'Bob'`)
	require.NoError(t, err)
	said, err := book()
	require.Error(t, err)
	require.Contains(t, said, "table 12 is taken")
	require.Equal(t, []string{"Bob"}, guests())

	require.NoError(t, issuer.Close(t.Context()))
	require.NoError(t, client.Del(t.Context(), "lease:v1:{table:12}:fence").Err()) // it has no namespace to be found by
}

func TestTheProgramNamesTheVariableThatIsWrong(t *testing.T) {
	t.Parallel()
	redis := "redis://" + testenv.Redis(t).Options().Addr + "/0"
	self, err := os.Executable()
	require.NoError(t, err)
	for variable, env := range map[string][]string{
		"FENCEDB_REDIS_URL":    {"FENCEDB_POSTGRES_URL=" + testenv.PostgresURL(t), "FENCEDB_REDIS_URL="},
		"FENCEDB_POSTGRES_URL": {"FENCEDB_POSTGRES_URL=", "FENCEDB_REDIS_URL=" + redis, "PGHOST=127.0.0.1", "PGPORT=1"},
	} {
		program := exec.CommandContext(t.Context(), self)
		program.Env = append(append(os.Environ(), asProgram+"=1"), env...)
		said, err := program.CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(said), variable)
	}
}

func TestTheREADMEShowsThisProgram(t *testing.T) {
	t.Parallel()
	readme := read(t, "../../README.md")

	program := read(t, "main.go")
	require.LessOrEqual(t, strings.Count(program, "\n"), 44)
	require.Contains(t, readme, "```go\n"+program+"```\n")

	_, setUp, found := strings.Cut(read(t, "setup.go"), "\npackage main\n")
	require.True(t, found)
	require.Contains(t, readme, "```go\npackage main\n"+setUp+"```\n")
	require.Contains(t, readme, "```sql\n"+read(t, "00001_reservations.sql")+"```\n")
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(text)
}
