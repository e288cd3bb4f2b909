package migrations_test

import (
	"cmp"
	"errors"
	"net/url"
	"strings"
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
	address := testenv.PostgresURL(t)
	psql := connect(t, address)
	var programs errgroup.Group
	for range 8 {
		db := open(t, address)
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
	address := testenv.PostgresURL(t)
	db := open(t, address+"&search_path=fencedb,public")

	chairs := fstest.MapFS{"00001_chairs.sql": {Data: []byte("-- +goose Up\nCREATE TABLE public.chairs (id int);")}}

	require.ErrorContains(t, migrations.Apply(t.Context(), db, chairs, "goose_db_version"), "version table")

	for range 2 {
		require.NoError(t, migrations.Apply(t.Context(), db, chairs, "public.goose_db_version"))
	}
	require.Equal(t, "0", connect(t, address).one("SELECT count(*) FROM public.chairs"))
}

// Goose would look in the first schema only, and apply everything again.
func TestASchemaThatIsCreatedLaterChangesNoVersionTable(t *testing.T) {
	t.Parallel()
	const version = "(SELECT string_agg(schemaname, ' ' ORDER BY schemaname) FROM pg_tables WHERE tablename = 'goose_db_version' AND schemaname <> 'fencedb')"
	for name, c := range map[string]struct {
		path   string // the search_path
		before string
		second string // of the second migration
		table  string // defaults to goose_db_version
		want   string // the schema of the version table
		later  string // the error of later calls
	}{
		"the role's":                {path: `"$user",public`, second: `CREATE SCHEMA "$user"`, want: "public", later: "with its schema"},
		"the first of the path":     {path: "app,public", second: "CREATE SCHEMA app", want: "public", later: "public.goose_db_version, where"},
		"both are there before":     {path: "app,public", before: "CREATE SCHEMA app", want: "app"},
		"a name that needs quotes":  {path: `"The ""App"" 1.0",public`, before: `CREATE SCHEMA "The ""App"" 1.0"`, want: `The "App" 1.0`},
		"a migration sets the path": {path: "public", second: "CREATE SCHEMA app; SET search_path = app", want: "public"},
		"a dump clears the path":    {path: "public", second: "SELECT pg_catalog.set_config('search_path', '', false)", want: "public"},
		"with its schema":           {path: "app,public", before: "CREATE SCHEMA app", table: "public.goose_db_version", want: "public"},
		"with its schema, of the second": {path: "public,app", before: "CREATE SCHEMA app; CREATE TABLE public.goose_db_version (other int)",
			table: "app.goose_db_version", want: "app public"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := testenv.PostgresURL(t)
			psql := connect(t, address)
			role := psql.one("current_user")
			psql.exec(c.before)
			files := fstest.MapFS{
				"00001_tables.sql": {Data: []byte("-- +goose Up\nCREATE TABLE tables (id int);")},
				"00002_schema.sql": {Data: []byte("-- +goose Up\n" + strings.ReplaceAll(cmp.Or(c.second, "SELECT 1"), "$user", role) + ";")},
			}
			for n := range 3 {
				db := open(t, address+"&search_path="+url.PathEscape(c.path))
				db.SetMaxOpenConns(1)
				err := migrations.Apply(t.Context(), db, files, cmp.Or(c.table, "goose_db_version"))
				if n > 0 && c.later != "" {
					require.ErrorContains(t, err, c.later)
				} else {
					require.NoError(t, err)
				}
				require.NoError(t, db.Close())
			}
			require.Equal(t, c.want, psql.one(version))
			require.Equal(t, "1", psql.one("SELECT count(*) FROM pg_tables WHERE tablename = 'tables'"))
		})
	}
}

// With nothing applied, the program would work in the tables of the other.
func TestATenantDoesNotTakeTheVersionTableOfAnother(t *testing.T) {
	t.Parallel()
	address := testenv.PostgresURL(t)
	psql := connect(t, address)
	psql.exec("CREATE SCHEMA app")
	require.NoError(t, migrations.Apply(t.Context(), open(t, address+"&search_path=public"), ofAnApplication, "versions"))
	require.NoError(t, migrations.Apply(t.Context(), open(t, address+"&search_path=public,app"), ofAnApplication, "versions"))
	for _, path := range []string{"app,public", "nowhere,app,public"} {
		db := open(t, address+"&search_path="+path)
		require.ErrorContains(t, migrations.Apply(t.Context(), db, ofAnApplication, "versions"), "the version table is public.versions, where the search_path would create app.versions")
	}

	require.NoError(t, migrations.Apply(t.Context(), open(t, address+"&search_path=app,public"), ofAnApplication, "app.versions"))
	require.Equal(t, "app public", psql.one("SELECT string_agg(schemaname, ' ' ORDER BY schemaname) FROM pg_tables WHERE tablename = 'versions'"))
}

func TestAVersionTableNeedsASchema(t *testing.T) {
	t.Parallel()
	db := open(t, testenv.PostgresURL(t)+"&search_path=nowhere")

	require.ErrorContains(t, migrations.Apply(t.Context(), db, ofAnApplication, "versions"), "with its schema")
}
