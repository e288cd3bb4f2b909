package fencedb_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
)

func TestWritesOfAnotherResourceSaySo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)

	err := fencedb.Tx(t.Context(), w.pool, grant("table:12", 41), func(tx pgx.Tx) error {
		return book(t.Context(), tx, 13, "ann")
	})

	var wrong *fencedb.WrongResourceError
	require.ErrorAs(t, err, &wrong)
	require.ErrorIs(t, err, fencedb.ErrWrongResource)
	require.Equal(t, "table:13", wrong.Resource)
	require.Equal(t, []string{"table:12"}, wrong.Entered)
	require.ErrorContains(t, err, `the row belongs to "table:13"`)
	require.Empty(t, w.guests())
}

// A transaction can lose its token only by tampering; the error is the same as without Tx.
func TestWritesWithoutATokenSaySo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)

	err := fencedb.Tx(t.Context(), w.pool, grant("table:12", 41), func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `SELECT set_config('fencedb.granted', '', true)`); err != nil {
			return err
		}
		return book(t.Context(), tx, 12, "ann")
	})

	require.ErrorIs(t, err, fencedb.ErrNoToken)
	var pgErr *pgconn.PgError
	require.True(t, errors.As(err, &pgErr), "the server's error stays in the chain")
	require.Equal(t, "FN002", pgErr.Code)
}

func TestADatabaseWithoutMigrationsSaysSo(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), testenv.PostgresURL(t))
	require.NoError(t, err)
	t.Cleanup(pool.Close)

	require.ErrorContains(t, fencedb.Seal(t.Context(), pool, grant("table:12", 41)), "run migrations.Up")
	err = fencedb.Tx(t.Context(), pool, grant("table:12", 41), func(tx pgx.Tx) error { return nil })
	require.ErrorContains(t, err, "run migrations.Up")
}

func TestARoleThatMayNotEnterSaysSo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	role := "app_" + collect[string](w, `SELECT current_database()::text`)[0]
	w.exec(`CREATE ROLE "` + role + `"`)
	defer w.exec(`DROP ROLE "` + role + `"`)
	conn := w.conn()
	_, err := conn.Exec(t.Context(), `SET ROLE "`+role+`"`)
	require.NoError(t, err)

	require.ErrorContains(t, fencedb.Seal(t.Context(), conn, grant("table:12", 41)), "fencedb.allow('role')")
}

func TestAClosedPoolSaysSo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pool.Close()

	for _, err := range []error{
		fencedb.Seal(t.Context(), w.pool, grant("table:12", 41)),
		fencedb.Tx(t.Context(), w.pool, grant("table:12", 41), func(tx pgx.Tx) error { return nil }),
	} {
		require.ErrorContains(t, err, "closed pool")
		require.NotErrorIs(t, err, fencedb.ErrCommitUnknown)
	}
}
