package compat

import (
	"database/sql"
	"errors"
	"fmt"
	"io"
	neturl "net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	atlas "ariga.io/atlas/sql/migrate"
	"ariga.io/atlas/sql/postgres"
	"github.com/amacneil/dbmate/v2/pkg/dbmate"
	_ "github.com/amacneil/dbmate/v2/pkg/driver/postgres" // postgres://
	"github.com/golang-migrate/migrate/v4"
	_ "github.com/golang-migrate/migrate/v4/database/pgx/v5" // pgx5://
	_ "github.com/golang-migrate/migrate/v4/source/file"     // file://
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/migrations"
)

// What fencedb migrate export has written behind a migration of the application, run by goose's
// command.
func TestGoosesCommandRunsWhatWasExported(t *testing.T) {
	t.Parallel()
	goose := build(t, "-C", "../../internal/tools/goose", "-tags", gooseDrivers, "github.com/pressly/goose/v3/cmd/goose")
	url, dir := testenv.PostgresURL(t), t.TempDir()
	write(t, dir, "00007_first.sql", "-- +goose Up\nCREATE TABLE first ();\n-- +goose Down\nDROP TABLE first;\n")
	export(t, "goose", dir)

	requireUpDownUp(t, url, func(direction string) error {
		command := map[string][]string{"up": {"up"}, "down": {"down-to", "0"}}[direction]
		return execute(t, goose, append([]string{"-dir", dir, "postgres", url}, command...)...)
	})
}

// All its drivers but that of Postgres.
const gooseDrivers = "no_azuresql no_clickhouse no_libsql no_mssql no_mysql no_sqlite3 no_vertica no_ydb"

func TestGolangMigrateRunsWhatWasExported(t *testing.T) {
	t.Parallel()
	url, dir := testenv.PostgresURL(t), t.TempDir()
	write(t, dir, "000007_first.up.sql", "CREATE TABLE first ();")
	write(t, dir, "000007_first.down.sql", "DROP TABLE first;")
	export(t, "golang-migrate", dir)
	migrator, err := migrate.New("file://"+dir, strings.Replace(url, "postgres://", "pgx5://", 1))
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = migrator.Close() })

	requireUpDownUp(t, url, func(direction string) error {
		if direction == "up" {
			return migrator.Up()
		}
		return migrator.Down()
	})
}

// By the packages that dbmate's command is made of.
func TestDbmateRunsWhatWasExported(t *testing.T) {
	t.Parallel()
	database, dir := testenv.PostgresURL(t), t.TempDir()
	write(t, dir, "20260102030405_first.sql", "-- migrate:up\nCREATE TABLE first ();\n-- migrate:down\nDROP TABLE first;\n")
	export(t, "dbmate", dir)
	address, err := neturl.Parse(database)
	require.NoError(t, err)
	migrator := dbmate.New(address)
	migrator.MigrationsDir, migrator.AutoDumpSchema, migrator.Log = []string{dir}, false, io.Discard

	requireUpDownUp(t, database, func(direction string) error {
		if direction == "up" {
			return migrator.Migrate()
		}
		var failed error
		for range files(t, dir) {
			failed = errors.Join(failed, migrator.Rollback())
		}
		return failed
	})
}

// By the executor of atlas migrate apply, behind what atlas migrate hash does.
func TestAtlasRunsWhatWasExported(t *testing.T) {
	t.Parallel()
	db, dir := openSQL(t, "pgx", testenv.PostgresURL(t)), t.TempDir()
	write(t, dir, "20260102030405_first.sql", "CREATE TABLE first ();\n")
	export(t, "atlas", dir)
	local, err := atlas.NewLocalDir(dir)
	require.NoError(t, err)
	hashed, err := local.Checksum()
	require.NoError(t, err)
	require.NoError(t, atlas.WriteSumFile(local, hashed))
	driver, err := postgres.Open(db)
	require.NoError(t, err)
	executor, err := atlas.NewExecutor(driver, local, atlas.NopRevisionReadWriter{})
	require.NoError(t, err)

	require.NoError(t, executor.ExecuteN(t.Context(), len(files(t, dir))))

	requireMigrated(t, db)
}

// files are the migrations in a directory.
func files(t *testing.T, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(dir + "/*.sql")
	require.NoError(t, err)
	return names
}

func requireUpDownUp(t *testing.T, url string, run func(direction string) error) {
	t.Helper()
	db := openSQL(t, "pgx", url)
	require.NoError(t, run("up"))
	requireMigrated(t, db)
	require.NoError(t, run("down"))
	requireGone(t, db)
	require.NoError(t, run("up"))
	requireMigrated(t, db)
}

func export(t *testing.T, tool, dir string) {
	t.Helper()
	require.NoError(t, execute(t, build(t, "-C", "../..", "./cmd/fencedb"), "migrate", "export", "--for", tool, dir))
}

// build compiles a command, whose package comes last.
func build(t *testing.T, args ...string) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "program")
	args = slices.Insert(args, len(args)-1, "-o", program)
	require.NoError(t, execute(t, "go", append([]string{"build"}, args...)...))
	return program
}

func execute(t *testing.T, program string, args ...string) error {
	t.Helper()
	said, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, said)
	}
	return nil
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
}

// Drivers leave the hint of Postgres out of the error text, and that says what to do.
func TestTheErrorOfAMigrationHasTheHintOfPostgres(t *testing.T) {
	t.Parallel()
	files := fstest.MapFS{"00001_protect.sql": {Data: []byte("-- +goose Up\nSELECT fencedb.protect('pg_tables', '');")}}
	for _, driver := range []string{"pgx", "postgres"} {
		db := openSQL(t, driver, testenv.PostgresURL(t))

		err := migrations.Apply(t.Context(), db, files, "versions")

		require.ErrorContains(t, err, "is not a table that can be protected", driver)
		require.ErrorContains(t, err, "hint: Protect ordinary and partitioned tables", driver)
	}
}

func requireMigrated(t *testing.T, db *sql.DB) {
	t.Helper()
	steps, err := migrations.Status(t.Context(), db)
	require.NoError(t, err)
	require.False(t, slices.ContainsFunc(steps, func(step migrations.Migration) bool { return !step.Applied }))
}

func requireGone(t *testing.T, db *sql.DB) {
	t.Helper()
	var present bool
	require.NoError(t, db.QueryRowContext(t.Context(), `SELECT to_regnamespace('fencedb') IS NOT NULL`).Scan(&present))
	require.False(t, present)
}
