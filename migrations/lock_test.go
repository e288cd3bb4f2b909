package migrations_test

import (
	"context"
	"database/sql"
	"net/url"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/migrations"
)

const lockID = `x'66656e63656462'::bigint`

// CREATE INDEX CONCURRENTLY waits for every older snapshot, also for that of a statement that waits
// for the lock of its migrator: a deadlock, and an index that is INVALID.
func TestAnIndexIsBuiltConcurrentlyWhileOthersWait(t *testing.T) {
	t.Parallel()
	address := testenv.PostgresURL(t)
	psql := connect(t, address)
	psql.exec(`CREATE TABLE tables AS SELECT n AS id FROM generate_series(1, 300000) n`)
	concurrently := fstest.MapFS{"00001_index.sql": {Data: []byte("-- +goose NO TRANSACTION\n-- +goose Up\nCREATE INDEX CONCURRENTLY by_id ON tables (id);\n")}}
	var programs errgroup.Group
	for range 4 {
		db := open(t, address)
		programs.Go(func() error { return migrations.Apply(t.Context(), db, concurrently, "versions") })
	}

	require.NoError(t, programs.Wait())
	require.Equal(t, "true", psql.one(`SELECT indisvalid FROM pg_index WHERE indexrelid = 'by_id'::regclass`))
	require.Equal(t, "1", psql.one(`SELECT max(version_id) FROM versions`))
}

// Some set such limits for every session of a service, in its URL.
func TestTimeLimitsOfTheSessionDoNotEndTheWait(t *testing.T) {
	t.Parallel()
	address := testenv.PostgresURL(t)
	holder := connect(t, address)
	observer := holder.beside()
	calls := map[string]func(context.Context, *sql.DB) error{
		"Up": migrations.Up, "Down": migrations.Down, "Reset": migrations.Reset,
		"Apply": func(ctx context.Context, db *sql.DB) error {
			return migrations.Apply(ctx, db, ofAnApplication, "versions")
		},
	}
	for _, name := range []string{"Up", "Down", "Reset", "Apply"} { // which protects a table, so that Down would refuse
		call := calls[name]
		limited, err := url.Parse(address)
		require.NoError(t, err)
		query := limited.Query()
		query.Set("statement_timeout", "1s")
		query.Set("lock_timeout", "100ms")
		query.Set("application_name", name)
		limited.RawQuery = query.Encode()
		db := open(t, limited.String())
		holder.exec(`SELECT pg_advisory_lock(` + lockID + `)`)
		done := make(chan error, 1)
		go func() { done <- call(t.Context(), db) }()

		require.Eventually(t, func() bool { // it goes on asking when its limits have passed
			return observer.one(`SELECT count(*) FROM pg_stat_activity
				WHERE application_name = $1 AND query_start > backend_start + interval '1.1 s'`, name) == "1" || len(done) > 0
		}, time.Minute, 5*time.Millisecond, name)
		if len(done) > 0 {
			require.FailNow(t, "it did not wait", "%s: %v", name, <-done)
		}
		holder.exec(`SELECT pg_advisory_unlock(` + lockID + `)`)
		require.NoError(t, <-done, name)
	}
}

func TestAWaitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	address := testenv.PostgresURL(t)
	holder, db := connect(t, address), open(t, address)
	holder.exec(`SELECT pg_advisory_lock(` + lockID + `)`)
	observer := holder.beside()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- migrations.Up(ctx, db) }()
	require.Eventually(t, func() bool {
		return observer.one(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'SELECT pg_catalog.pg_try_advisory_lock%'`) == "1"
	}, time.Minute, 5*time.Millisecond)

	cancel()

	require.ErrorIs(t, <-done, context.Canceled)
	require.Empty(t, holder.one("to_regnamespace('fencedb')"))
	holder.exec(`SELECT pg_advisory_unlock(` + lockID + `)`)
	require.NoError(t, migrations.Up(t.Context(), db), "nothing was left behind")
}

func TestALockThatWasLostIsTold(t *testing.T) {
	t.Parallel()
	address := testenv.PostgresURL(t)
	db := open(t, address)
	careless := fstest.MapFS{"00001_unlock.sql": {Data: []byte("-- +goose Up\nSELECT pg_advisory_unlock_all();\n")}}

	err := migrations.Apply(t.Context(), db, careless, "versions")

	require.ErrorContains(t, err, "the lock was lost meanwhile")
	require.NoError(t, migrations.Apply(t.Context(), db, careless, "versions"), "it has migrated")
}

func TestAPoolerIsRefusedWhereTheLockWouldNotHold(t *testing.T) {
	t.Parallel()
	address := testenv.PostgresURL(t)
	for _, c := range []struct {
		mode, size string
		want       string
	}{
		{"transaction", "1", "pool_mode = transaction"}, {"transaction", "5", "pool_mode = transaction"},
		{"session", "1", ""}, {"session", "5", ""},
	} {
		pooler := testenv.PgBouncer(t, address, c.mode, "default_pool_size="+c.size)
		db := open(t, pooler.URL())

		err := migrations.Up(t.Context(), db)

		if c.want != "" {
			require.ErrorContains(t, err, c.want)
			require.Equal(t, "", connect(t, address).one("to_regnamespace('fencedb')"), "nothing was done")
			continue
		}
		require.NoError(t, err, c)
		require.NoError(t, migrations.Reset(t.Context(), db), c)
		require.NoError(t, db.Close())
	}
}
