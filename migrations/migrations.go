// Package migrations installs the storage contract of fencedb in a Postgres database.
//
// The SQL in this package is the contract: the ledger of fences, fencedb.enter and fencedb.protect.
// Everything is in the schema fencedb, with a version table of its own, fencedb.goose_db_version,
// so an application's migrations and their table are not touched. It needs Postgres 15 or newer;
// the tests run on 15 to 18.
//
// # Ways to migrate
//
// Up is all that a Go program needs; Apply is Up and then the application's own migrations. A
// service that must not change schemas asks Status in its readiness check, as ready.Fences does.
// Then somebody else migrates: a program with the rights calls Up, or the command fencedb migrate
// does, or the tool that migrates the application uses Scripts. All of them leave the same schema,
// and each can continue where another stopped.
//
// # Why the schema is always called fencedb
//
// fencedb.enter and the other functions that change the ledger are SECURITY DEFINER. If they found
// names by the search_path of their caller, the caller could replace what they call. So they, and
// the guards that protect writes for every table, name functions and tables with their schema.
// Under another schema name, each of them would need another text, made at run time: SQL that
// nobody has reviewed or tested, in the functions that must be right.
//
// A second ledger in the same database would not be a second set of fences: a fence works because
// all writers meet at the same one. Tenants that must not share fences get resources of different
// names, or databases of their own.
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"
)

const (
	versionTable = "fencedb.goose_db_version"

	// lockID is the advisory lock by which migrators of one database take turns: "fencedb" in ASCII.
	// Go programs take it before they run the statements below (see inTurn); the statements take it
	// again, for psql.
	lockID = "x'66656e63656462'::bigint"

	// createSchema takes the lock, because two CREATE SCHEMA IF NOT EXISTS at once can collide in the
	// catalog. A role that lacks a right learns which one, and the statement that grants it.
	createSchema = `DO $$ BEGIN
    PERFORM pg_catalog.pg_advisory_xact_lock(` + lockID + `);
    IF pg_catalog.to_regnamespace('fencedb') IS NULL THEN
        IF NOT pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE') THEN
            RAISE EXCEPTION 'permission denied: % lacks CREATE on the database %, for the schema fencedb', current_user, pg_catalog.current_database()
                USING ERRCODE = 'insufficient_privilege', HINT = pg_catalog.format('Let the owner of the database run GRANT CREATE ON DATABASE %I TO %I; then migrate again.', pg_catalog.current_database(), current_user);
        END IF;
        CREATE SCHEMA fencedb;
        COMMENT ON SCHEMA fencedb IS 'Fencing tokens at the storage boundary: github.com/fencedb/fencedb';
    END IF;
END $$`

	// dropSchema removes the version table and the schema when every migration is undone, unless
	// somebody has begun to migrate again. A schema that another role has made stays.
	dropSchema = `DO $$ BEGIN
    PERFORM pg_catalog.pg_advisory_xact_lock(` + lockID + `);
    IF pg_catalog.to_regclass('` + versionTable + `') IS NULL THEN
        RETURN;
    ELSIF NOT EXISTS (SELECT FROM ` + versionTable + ` WHERE version_id OPERATOR(pg_catalog.>) 0) THEN
        DROP TABLE ` + versionTable + `;
        IF EXISTS (SELECT FROM pg_catalog.pg_namespace
                   WHERE nspname OPERATOR(pg_catalog.=) 'fencedb' AND pg_catalog.pg_has_role(nspowner, 'USAGE')) THEN
            DROP SCHEMA fencedb;
        END IF;
    END IF;
END $$`
)

var errNilDB = errors.New("the database is nil; with pgx pass stdlib.OpenDBFromPool(pool)")

// Migration is one step of the schema and whether the database has it.
type Migration struct {
	Version int64
	Name    string // file name, for example 00001_ledger.sql
	Applied bool
}

// Up applies every migration that the database lacks, each in a transaction of its own. Programs
// that migrate at the same moment take turns, with a session advisory lock; time limits of their
// sessions do not end the wait. So connect directly, not through a pooler that gives each
// transaction another session, such as PgBouncer in transaction mode. With pgx, Up refuses such a
// pooler; with other drivers it returns an error after it has migrated.
//
// On error, the migrations before the failed one stay applied, and the failed one leaves nothing;
// call Up again when the cause is gone. Cancelling ctx rolls back the migration under way.
//
// With pgx, pass stdlib.OpenDBFromPool(pool).
func Up(ctx context.Context, db *sql.DB) error {
	provider, err := open(ctx, db)
	if err == nil {
		err = up(ctx, provider)
	}
	return failed("up", err)
}

// up asks for the version first, which creates the version table under the lock. Provider.Up would
// create it without the lock: two at once would collide, and Postgres would log an error.
func up(ctx context.Context, provider *goose.Provider) error {
	_, err := provider.GetDBVersion(ctx)
	if err == nil {
		_, err = provider.Up(ctx)
	}
	return err
}

// Down undoes the newest migration that the database has, in a transaction of its own, and removes
// what that migration made and what is recorded there. After the first migration it drops the
// schema as well. If there is none, it does nothing. Down refuses while a table is still protected,
// as [Reset] does.
func Down(ctx context.Context, db *sql.DB) error {
	return undo(ctx, db, "down", func(provider *goose.Provider) error {
		_, err := provider.Down(ctx)
		if errors.Is(err, goose.ErrNoNextVersion) {
			return nil
		}
		return err
	})
}

// Reset removes everything that Up has made, schema and fences included. If there is nothing, it
// does nothing. A schema that belongs to another role stays, empty. Without the fences every old
// token is accepted again. So while a table is still protected, Reset refuses and changes nothing;
// the error names the tables. After another error, the migrations not yet undone stay applied.
func Reset(ctx context.Context, db *sql.DB) error {
	return undo(ctx, db, "reset", func(provider *goose.Provider) error {
		_, err := provider.DownTo(ctx, 0)
		return err
	})
}

func undo(ctx context.Context, db *sql.DB, function string, some func(*goose.Provider) error) error {
	provider, err := open(ctx, db)
	if err == nil {
		err = refuseIfProtected(ctx, db)
	}
	if err == nil {
		err = some(provider)
	}
	if err == nil {
		err = inTurn(ctx, db, dropSchema)
	}
	return failed(function, err)
}

// failed adds to an error, if there is one, the function that it comes from and the hint of
// Postgres, which says what to do and is missing in the error texts of the drivers.
func failed(function string, err error) error {
	var (
		pgErr *pgconn.PgError
		pq    interface{ Get(field byte) string } // lib/pq
		hint  string
	)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &pgErr):
		hint = pgErr.Hint
	case errors.As(err, &pq):
		hint = pq.Get('H')
	}
	if hint != "" {
		return fmt.Errorf("fencedb/migrations: %s: %w; hint: %s", function, err, hint)
	}
	return fmt.Errorf("fencedb/migrations: %s: %w", function, err)
}

// refuseIfProtected checks before the first migration is undone. The Down migrations check again,
// for tables that are protected meanwhile and for other tools. By then later migrations may be
// undone, and their data gone.
func refuseIfProtected(ctx context.Context, db *sql.DB) error {
	var canProtect bool
	if err := db.QueryRowContext(ctx, "SELECT pg_catalog.to_regclass('fencedb.protected_tables') IS NOT NULL").Scan(&canProtect); err != nil || !canProtect {
		return err
	}
	var tables sql.NullString
	err := db.QueryRowContext(ctx, "SELECT pg_catalog.string_agg(table_name::pg_catalog.text, ', ' ORDER BY table_name::pg_catalog.text) FROM fencedb.protected_tables").Scan(&tables)
	if err == nil && tables.Valid {
		err = fmt.Errorf("still protected: %s; nothing was changed, call fencedb.unprotect for each first", tables.String)
	}
	return err
}

// Status lists the migrations that this package knows, oldest first, and which of them the database
// has. A database that has newer ones too, as during a deployment, is ready if it has all of these.
// Status only reads.
func Status(ctx context.Context, db *sql.DB) ([]Migration, error) {
	applied, err := appliedVersions(ctx, db)
	if err != nil {
		return nil, failed("status", err)
	}
	provider, err := newProvider(db, scripts(), ours())
	if err != nil {
		return nil, failed("status", err)
	}
	var steps []Migration
	for _, source := range provider.ListSources() {
		steps = append(steps, Migration{source.Version, path.Base(source.Path), applied[source.Version]})
	}
	return steps, nil
}

// appliedVersions reads the version table itself, because the provider would create it if it is
// missing.
func appliedVersions(ctx context.Context, db *sql.DB) (map[int64]bool, error) {
	if db == nil {
		return nil, errNilDB
	}
	var migrated bool
	if err := db.QueryRowContext(ctx, "SELECT pg_catalog.to_regclass('"+versionTable+"') IS NOT NULL").Scan(&migrated); err != nil || !migrated {
		return nil, err
	}
	rows, err := ours().ListMigrations(ctx, db)
	applied := map[int64]bool{}
	for _, row := range rows {
		applied[row.Version] = row.IsApplied
	}
	return applied, err
}

// open creates the schema before it makes a provider: goose does not create the schema of its
// version table, and a provider that failed for that reason stays broken.
func open(ctx context.Context, db *sql.DB) (*goose.Provider, error) {
	if db == nil {
		return nil, errNilDB
	}
	if err := inTurn(ctx, db, createSchema); err != nil {
		return nil, fmt.Errorf("create schema: %w", err)
	}
	return newProvider(db, scripts(), ours())
}

// newProvider disables goose's global registry: otherwise the application's own Go migrations would
// run here.
func newProvider(db *sql.DB, files fs.FS, store database.Store) (*goose.Provider, error) {
	return goose.NewProvider(goose.DialectCustom, db, files,
		goose.WithStore(store),
		goose.WithDisableGlobalRegistry(true),
		goose.WithSessionLocker(advisoryLock{}),
	)
}

// ours is the version table of fencedb. Its name has a schema, so no search_path matters.
func ours() database.Store { return must(database.NewStore(goose.DialectPostgres, versionTable)) }

//go:embed sql/*.sql
var files embed.FS

// scripts are the migrations as SQL files with goose's annotations.
func scripts() fs.FS { return must(fs.Sub(files, "sql")) }

// must is for errors that only a mistake in the embedded files, or in their names here, can cause.
func must[T any](value T, err error) T {
	if err != nil {
		panic("bug: " + err.Error())
	}
	return value
}

// Apply migrates an application's database: it calls [Up], and then applies the application's own
// migrations, which can therefore call fencedb.protect. These are SQL files with goose's
// annotations at the root of files. table keeps their versions. An application that has used goose
// before passes the name of its table, by default goose_db_version. The name has small letters
// only, and may have a schema.
//
// Without a schema, the table is in current_schema(). If the search_path shows one of that name in
// another schema only, Apply refuses, and changes nothing: either a schema that comes first was
// created since, and everything would be applied again, or the table belongs to another tenant.
//
// Programs that migrate at the same moment take turns, as with Up, and an error leaves the database
// as with Up. An embedded directory needs [fs.Sub]; a pattern such as //go:embed *.sql does not.
func Apply(ctx context.Context, db *sql.DB, files fs.FS, table string) error {
	if err := Up(ctx, db); err != nil {
		return err
	}
	if !plainName.MatchString(table) {
		return failed("apply", unfit(table))
	}
	provider, err := newProvider(db, files, &versions{must(database.NewStore(goose.DialectPostgres, table))})
	if errors.Is(err, goose.ErrNoMigrations) {
		err = fmt.Errorf("no numbered .sql files at the root of files; "+
			"for //go:embed schema/*.sql pass fs.Sub(files, \"schema\"): %w", err)
	}
	if err == nil {
		err = up(ctx, provider)
	}
	return failed("apply", err)
}

// plainName matches the names that are the same with and without quotes.
var plainName = regexp.MustCompile(`^([a-z_][a-z0-9_$]*\.)?[a-z_][a-z0-9_$]*$`)

func unfit(table string) error {
	return fmt.Errorf("%q cannot be the application's version table; name one such as public.goose_db_version, "+
		"in small letters and without quotes", table)
}

// versions is the version table of an application. Goose would look for a name without a schema in
// current_schema() only, and each statement of goose would find it by the search_path of the
// moment, which a migration may set.
type versions struct{ database.Store }

// TableExists gives the table the name with a schema that goose uses from now on. Goose asks once
// for each provider, under the lock, and before anything else.
func (v *versions) TableExists(ctx context.Context, db database.DBTxConn) (bool, error) {
	table := v.Tablename()
	var (
		name, first  sql.NullString // with schema, and quoted where needed; first is current_schema()
		exists, ours bool
	)
	err := db.QueryRowContext(ctx, `
SELECT found IS NOT NULL, coalesce(found OPERATOR(pg_catalog.=) pg_catalog.to_regclass('`+versionTable+`'), false),
       CASE WHEN found IS NOT NULL THEN (SELECT pg_catalog.format('%I.%I', n.nspname, c.relname)
                                         FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
                                         WHERE c.oid OPERATOR(pg_catalog.=) found)
            WHEN pg_catalog.strpos(asked, '.') OPERATOR(pg_catalog.>) 0 THEN asked
            WHEN pg_catalog.current_schema() IS NOT NULL THEN pg_catalog.format('%I.%I', pg_catalog.current_schema(), asked) END,
       CASE WHEN pg_catalog.strpos(asked, '.') OPERATOR(pg_catalog.=) 0 AND pg_catalog.current_schema() IS NOT NULL THEN pg_catalog.format('%I.%I', pg_catalog.current_schema(), asked) END
FROM (SELECT $1::pg_catalog.text AS asked, pg_catalog.to_regclass($1::pg_catalog.text) AS found) AS t`, table).Scan(&exists, &ours, &name, &first)
	switch {
	case err != nil:
		return false, err
	case ours: // goose would take our migrations for the application's
		return false, unfit(table)
	case !name.Valid:
		return false, fmt.Errorf("no schema of the search_path exists; name the version table %q with its schema", table)
	case first.Valid && first != name:
		return false, fmt.Errorf("the version table is %s, where the search_path would create %s; name one of the two, with its schema", name.String, first.String)
	}
	v.Store, err = database.NewStore(goose.DialectPostgres, name.String)
	return exists, err
}
