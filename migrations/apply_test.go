package migrations_test

import (
	"errors"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/migrations"
)

var ofAnApplication = fstest.MapFS{
	"00001_tables.sql": {Data: []byte("-- +goose Up\nCREATE TABLE tables (id int NOT NULL);\n-- +goose Down\nDROP TABLE " +
		"tables;")},
	"00002_protect.sql": {Data: []byte("-- +goose Up\nSELECT fencedb.protect('tables', resource => 'table:{id}');\n" +
		"-- +goose Down\nSELECT fencedb.unprotect('tables');")},
}

// Each program finds nothing, and each but one finds everything when it has the lock. No
// transaction fails meanwhile, so nothing is in the log of Postgres.
func TestProgramsMayApplyTheirOwnMigrationsAtOnce(t *testing.T) {
	t.Parallel()
	url := testenv.PostgresURL(t)
	psql := connect(t, url)
	var programs errgroup.Group
	for range 8 {
		db := open(t, url)
		programs.Go(func() error {
			return errors.Join(migrations.Apply(t.Context(), db, ofAnApplication, "goose_db_version"), db.Close())
		})
	}
	require.NoError(t, programs.Wait())

	require.Eventually(t, func() bool { // a session tells what it has counted when it ends
		return psql.one(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()`) == "1"
	}, time.Minute, 5*time.Millisecond)
	require.Equal(t, "0", psql.one(`SELECT xact_rollback FROM pg_stat_database WHERE datname = current_database()`))
	require.Equal(t, "1", psql.one("SELECT count(*) FROM fencedb.protected_tables"))
	require.Equal(t, "2", psql.one("SELECT max(version_id) FROM goose_db_version"))
}

func TestAFailedMigrationOfAnApplicationLeavesTheOnesBefore(t *testing.T) {
	t.Parallel()
	db, psql := empty(t)
	broken := fstest.MapFS{
		"00001_tables.sql": ofAnApplication["00001_tables.sql"],
		"00002_broken.sql": {Data: []byte("-- +goose Up\nCREATE TABLE chairs (id int); SELECT 1/0;")},
	}

	require.Error(t, migrations.Apply(t.Context(), db, broken, "versions"))
	require.Equal(t, "true", psql.one("to_regclass('tables') IS NOT NULL AND to_regclass('chairs') IS NULL"))

	require.NoError(t, migrations.Apply(t.Context(), db, ofAnApplication, "versions"), "once the cause is gone")
}

func TestAnApplicationNeedsAVersionTableOfItsOwn(t *testing.T) {
	t.Parallel()
	db, _ := empty(t)
	for _, table := range []string{"", "fencedb.goose_db_version", "FENCEDB.goose_db_version", "Versions", `"versions"`} {
		require.ErrorContains(t, migrations.Apply(t.Context(), db, ofAnApplication, table), "version table", table)
	}
	require.Error(t, migrations.Apply(t.Context(), db, fstest.MapFS{}, "versions"), "no migrations at all")
	below := fstest.MapFS{"schema/00001_tables.sql": ofAnApplication["00001_tables.sql"]}
	require.ErrorContains(t, migrations.Apply(t.Context(), db, below, "versions"), `pass fs.Sub(files, "schema")`)
	require.Error(t, migrations.Apply(t.Context(), nil, ofAnApplication, "versions"))
}

// Goose would find the versions of fencedb, and take the application's for applied.
func TestTheVersionTableOfAnApplicationIsNotOursByTheSearchPath(t *testing.T) {
	t.Parallel()
	url := testenv.PostgresURL(t)
	db := open(t, url+"&search_path=fencedb,public")

	chairs := fstest.MapFS{"00001_chairs.sql": {Data: []byte("-- +goose Up\nCREATE TABLE public.chairs (id int);")}}

	require.ErrorContains(t, migrations.Apply(t.Context(), db, chairs, "goose_db_version"), "version table")

	for range 2 {
		require.NoError(t, migrations.Apply(t.Context(), db, chairs, "public.goose_db_version"))
	}
	require.Equal(t, "0", connect(t, url).one("SELECT count(*) FROM public.chairs"))
}
