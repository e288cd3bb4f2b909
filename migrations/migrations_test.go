package migrations_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/pressly/goose/v3"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/migrations"
)

func applied(t *testing.T, db *sql.DB) (names []string, all bool) {
	t.Helper()
	steps, err := migrations.Status(t.Context(), db)
	require.NoError(t, err)
	require.NotEmpty(t, steps)
	all = true
	for _, step := range steps {
		if step.Applied {
			names = append(names, step.Name)
		}
		all = all && step.Applied
	}
	return names, all
}

func TestUpAndDownToZeroAndUpAgain(t *testing.T) {
	t.Parallel()
	url := testenv.PostgresURL(t)
	db, psql := open(t, url), connect(t, url)

	names, _ := applied(t, db)
	require.Empty(t, names)
	require.Empty(t, psql.one("to_regnamespace('fencedb')"), "asking for the status must create nothing")

	for range 2 { // the second round proves that nothing was left behind
		require.NoError(t, migrations.Up(t.Context(), db))
		require.NoError(t, migrations.Up(t.Context(), db), "with nothing to do")
		_, all := applied(t, db)
		require.True(t, all)

		require.NoError(t, migrations.Reset(t.Context(), db))
		require.NoError(t, migrations.Reset(t.Context(), db), "with nothing to do")
		require.Empty(t, psql.one("to_regnamespace('fencedb')"))
	}
}

func TestProgramsMayMigrateAtOnce(t *testing.T) {
	t.Parallel()
	url := testenv.PostgresURL(t)

	var programs errgroup.Group
	for range 8 {
		db := open(t, url)
		programs.Go(func() error { return migrations.Up(t.Context(), db) })
	}

	require.NoError(t, programs.Wait())
	_, all := applied(t, open(t, url))
	require.True(t, all)
}

func TestTheApplicationsGooseIsNotTouched(t *testing.T) {
	url := testenv.PostgresURL(t)
	db, psql := open(t, url), connect(t, url)
	psql.exec(`CREATE TABLE goose_db_version (mine text)`)
	goose.AddNamedMigrationNoTxContext("00009_of_the_application.go", func(context.Context, *sql.DB) error {
		panic("a migration of the application ran")
	}, nil)
	t.Cleanup(goose.ResetGlobalMigrations)

	require.NoError(t, migrations.Up(t.Context(), db))

	require.Equal(t, "0", psql.one(`SELECT count(*) FROM goose_db_version`))
}

func TestAFailedUpLeavesNothingAndCanBeRepeated(t *testing.T) {
	t.Parallel()
	url := testenv.PostgresURL(t)
	db, psql := open(t, url), connect(t, url)
	psql.exec(`CREATE SCHEMA fencedb; CREATE TABLE fencedb.foreign_issuers (in_the_way int)`)

	require.ErrorContains(t, migrations.Up(t.Context(), db), "foreign_issuers")
	require.Empty(t, psql.one("to_regclass('fencedb.fences')"), "the failed migration is rolled back as a whole")

	psql.exec(`DROP TABLE fencedb.foreign_issuers`)
	require.NoError(t, migrations.Up(t.Context(), db))
}

func TestDownRefusesWhileATableIsProtected(t *testing.T) {
	t.Parallel()
	for name, undo := range map[string]func(context.Context, *sql.DB) error{"Down": migrations.Down, "Reset": migrations.Reset} {
		url := testenv.PostgresURL(t)
		db, psql := open(t, url), connect(t, url)
		require.NoError(t, migrations.Up(t.Context(), db))
		psql.exec(`CREATE TABLE seats (id int NOT NULL); SELECT fencedb.protect('seats', resource => 'seat:{id}')`)

		require.ErrorContains(t, undo(t.Context(), db), "still protected: seats", name)
		psql.refused("FN002", `INSERT INTO seats VALUES (1)`)
		_, all := applied(t, db)
		require.True(t, all, "a refusal undoes no migration, not the later ones either")

		psql.exec(`SELECT fencedb.unprotect('seats')`)
		require.NoError(t, undo(t.Context(), db), name)
	}
}

func TestDownUndoesTheNewestMigrationUntilNothingIsLeft(t *testing.T) {
	t.Parallel()
	url := testenv.PostgresURL(t)
	db, psql := open(t, url), connect(t, url)
	require.NoError(t, migrations.Up(t.Context(), db))
	steps, _ := applied(t, db)
	for left := len(steps) - 1; left >= 0; left-- {
		require.NoError(t, migrations.Down(t.Context(), db))

		now, err := migrations.Status(t.Context(), db)
		require.NoError(t, err)
		for n, step := range now {
			require.Equal(t, n < left, step.Applied, "%s, when %d are left", step.Name, left)
		}
		require.Equal(t, fmt.Sprint(left > 0), psql.one(`SELECT to_regnamespace('fencedb') IS NOT NULL`))
	}
	require.NoError(t, migrations.Down(t.Context(), db), "with nothing to do")
	require.Equal(t, "false", psql.one(`SELECT to_regnamespace('fencedb') IS NOT NULL`))
	require.NoError(t, migrations.Up(t.Context(), db))
}

// The last statement of Reset comes when its lock on migrating is given back.
func TestDownLeavesWhatIsMigratedMeanwhile(t *testing.T) {
	t.Parallel()
	migrator := newSession(t)
	down := migrator.beside()
	script := migrations.Scripts()[0].Down
	migrator.exec(`SELECT pg_advisory_lock(x'66656e63656462'::bigint)`)

	done := make(chan error, 1)
	go func() {
		_, err := down.conn.PgConn().Exec(t.Context(), script[strings.LastIndex(script, "DO $$"):]).ReadAll()
		done <- err
	}()
	migrator.beside().awaitBlocked(down.conn.PgConn().PID())
	migrator.exec(`SELECT pg_advisory_unlock(x'66656e63656462'::bigint)`)

	require.NoError(t, <-done)
	require.Equal(t, "true", migrator.one(`SELECT count(*) > 1 FROM fencedb.goose_db_version`))
}

func TestBadCallsAreRefused(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(context.Context, *sql.DB) error{
		"Up":   migrations.Up,
		"Down": migrations.Down, "Reset": migrations.Reset,
		"Status": func(ctx context.Context, db *sql.DB) error {
			_, err := migrations.Status(ctx, db)
			return err
		},
	} {
		require.ErrorContains(t, call(t.Context(), nil), "the database is nil", name)

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, call(ctx, open(t, testenv.PostgresURL(t))), context.Canceled, name)
	}
}

func TestEveryTableFunctionAndViewIsExplained(t *testing.T) {
	t.Parallel()
	s := newSession(t)

	require.Empty(t, s.one(`SELECT string_agg(p.oid::regprocedure::text, ', ') FROM pg_proc p
		WHERE p.pronamespace = 'fencedb'::regnamespace AND obj_description(p.oid, 'pg_proc') IS NULL`))
	require.Empty(t, s.one(`SELECT string_agg(c.relname, ', ') FROM pg_class c
		WHERE c.relnamespace = 'fencedb'::regnamespace AND c.relkind IN ('r', 'v') AND c.relname <> 'goose_db_version'
		  AND obj_description(c.oid, 'pg_class') IS NULL`))
}

// After a crash Postgres empties unlogged tables, and nothing else. Unlogged sequences begin anew:
// those of the epoch tell so that there was a crash.
func TestTheLedgerOutlivesACrash(t *testing.T) {
	t.Parallel()
	s := newSession(t)

	require.Empty(t, s.one(`SELECT string_agg(c.oid::regclass::text, ', ') FROM pg_class c
		WHERE c.relnamespace = 'fencedb'::regnamespace AND c.relkind IN ('r', 'i') AND c.relpersistence <> 'p'`))
	require.Equal(t, "former_end, former_epoch, server_epoch, unbroken_since", s.one(`SELECT string_agg(c.relname, ', ' ORDER BY c.relname) FROM pg_class c
		WHERE c.relnamespace = 'fencedb'::regnamespace AND c.relkind = 'S' AND c.relpersistence = 'u'`))
}
