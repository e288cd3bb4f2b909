package compat

import (
	"database/sql"
	"fmt"
	"testing"
	"testing/fstest"

	"github.com/golang-migrate/migrate/v4"
	driver "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/pressly/goose/v3"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/migrations"
)

// An application that migrates with golang-migrate takes the scripts over as files of its own.
func TestGolangMigrate(t *testing.T) {
	t.Parallel()
	url := testenv.PostgresURL(t)
	files := fstest.MapFS{}
	for _, script := range migrations.Scripts() {
		name := fmt.Sprintf("%06d_fencedb_%s", script.Version, script.Name)
		files[name+".up.sql"] = &fstest.MapFile{Data: []byte(script.Up)}
		files[name+".down.sql"] = &fstest.MapFile{Data: []byte(script.Down)}
	}
	source, err := iofs.New(files, ".")
	require.NoError(t, err)
	database, err := driver.WithInstance(openSQL(t, "pgx", url), &driver.Config{})
	require.NoError(t, err)
	migrator, err := migrate.NewWithInstance("iofs", source, "pgx5", database)
	require.NoError(t, err)

	require.NoError(t, migrator.Up())
	requireMigrated(t, openSQL(t, "pgx", url))
	require.NoError(t, migrator.Down())
	requireGone(t, openSQL(t, "pgx", url))
}

// One that migrates with goose can do so too, between migrations of its own.
func TestGooseWithTheApplicationsOwnMigrations(t *testing.T) {
	t.Parallel()
	db := openSQL(t, "pgx", testenv.PostgresURL(t))
	files := fstest.MapFS{}
	for i, script := range migrations.Scripts() {
		files[fmt.Sprintf("%05d_fencedb_%s.sql", i+1, script.Name)] = &fstest.MapFile{Data: []byte(
			"-- +goose Up\n-- +goose StatementBegin\n" + script.Up + "-- +goose StatementEnd\n" +
				"-- +goose Down\n-- +goose StatementBegin\n" + script.Down + "-- +goose StatementEnd\n")}
	}
	files["00099_bookings.sql"] = &fstest.MapFile{Data: []byte("-- +goose Up\n-- +goose StatementBegin\n" + schema + "-- +goose StatementEnd\n" +
		"-- +goose Down\nSELECT fencedb.unprotect('bookings');\nDROP TABLE bookings;\n")}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files)
	require.NoError(t, err)

	_, err = provider.Up(t.Context())
	require.NoError(t, err)
	requireMigrated(t, db)
	_, err = provider.DownTo(t.Context(), 0)
	require.NoError(t, err)
	requireGone(t, db)
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
	pending, err := migrations.Pending(t.Context(), db)
	require.NoError(t, err)
	require.False(t, pending)
}

func requireGone(t *testing.T, db *sql.DB) {
	t.Helper()
	var present bool
	require.NoError(t, db.QueryRowContext(t.Context(), `SELECT to_regnamespace('fencedb') IS NOT NULL`).Scan(&present))
	require.False(t, present)
}
