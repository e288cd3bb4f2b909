package fencedb_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
)

// A transaction whose first use is a savepoint: it can be undone alone, kept, nested, and is closed afterwards.
func TestASavepointAsTheFirstUse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()

	err := fencedb.Tx(ctx, w.pool, grant("table:12", 41), func(tx pgx.Tx) error {
		undone := errors.New("undone")
		err := pgx.BeginFunc(ctx, tx, func(first pgx.Tx) error { return errors.Join(book(ctx, first, 12, "ann"), undone) })
		require.ErrorIs(t, err, undone)
		if err := pgx.BeginFunc(ctx, tx, func(second pgx.Tx) error { return book(ctx, second, 12, "ben") }); err != nil {
			return err
		}
		return book(ctx, tx, 12, "cleo")
	})
	require.NoError(t, err)
	require.Equal(t, []string{"ben", "cleo"}, w.guests())

	err = fencedb.Tx(ctx, w.pool, grant("table:12", 42), func(tx pgx.Tx) error {
		first, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		if err := pgx.BeginFunc(ctx, first, func(nested pgx.Tx) error { return book(ctx, nested, 12, "dan") }); err != nil {
			return err
		}
		return first.Commit(ctx)
	})
	require.NoError(t, err)
	require.Equal(t, []string{"ben", "cleo", "dan"}, w.guests())
}

func TestASavepointThatIsOverAnswersSo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()

	err := fencedb.Tx(ctx, w.pool, grant("table:12", 41), func(tx pgx.Tx) error {
		first, err := tx.Begin(ctx)
		require.NoError(t, err)
		require.NoError(t, first.Rollback(ctx))
		for name, use := range firstUses {
			if name != "Conn" && name != "LargeObjects" { // those pgx does not guard either
				require.ErrorIs(t, use(ctx, first), pgx.ErrTxClosed, name)
			}
		}
		require.ErrorIs(t, first.Commit(ctx), pgx.ErrTxClosed)
		require.ErrorIs(t, first.Rollback(ctx), pgx.ErrTxClosed)
		return nil
	})
	require.NoError(t, err)
	require.Empty(t, w.guests())
}
