package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
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
	for range 2 {
		program := exec.CommandContext(t.Context(), self)
		program.Env = append(os.Environ(), asProgram+"=1",
			"FENCEDB_POSTGRES_URL="+database,
			"FENCEDB_REDIS_URL=redis://"+client.Options().Addr+"/0")
		said, err := program.CombinedOutput()
		require.NoError(t, err, string(said))
		require.Empty(t, string(said))
	}

	require.NoError(t, client.Del(t.Context(), "lease:v1:{table:12}:fence").Err()) // it has no namespace to be found by

	conn, err := pgx.Connect(t.Context(), database)
	require.NoError(t, err)
	rows, _ := conn.Query(t.Context(), `SELECT guest FROM reservations WHERE last_fencing_token > 0`)
	guests, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Equal(t, []string{"Ann"}, guests)
	require.NoError(t, conn.Close(t.Context()))
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
	require.LessOrEqual(t, strings.Count(program, "\n"), 40)
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
