package fencedb_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
)

// A transaction whose first use is a savepoint: it can be undone alone, kept, nested, and is closed
// afterwards.
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

// Otherwise what was to be undone would be committed, as would be what a caller was told has
// failed.
func TestASavepointIsClosedAlsoWhenTheContextIsOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	require.NoError(t, fencedb.Tx(t.Context(), w.pool, grant("table:12", 41), func(tx pgx.Tx) error {
		ctx, cancel := context.WithCancel(t.Context())
		undone := errors.New("undone")
		err := pgx.BeginFunc(ctx, tx, func(sp pgx.Tx) error {
			require.NoError(t, book(ctx, sp, 12, "ann"))
			cancel()
			return undone
		})
		require.ErrorIs(t, err, undone)
		ctx, cancel = context.WithCancel(t.Context())
		require.NoError(t, pgx.BeginFunc(ctx, tx, func(sp pgx.Tx) error {
			defer cancel()
			return book(ctx, sp, 12, "ben")
		}))
		return nil
	}))
	require.Equal(t, []string{"ben"}, w.guests())
}

func TestASavepointThatCannotBeClosedIsNotCommitted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, undone := range map[string]error{"Commit": nil, "Rollback": errors.New("undone")} {
		err := fencedb.Tx(t.Context(), w.pool, grant("table:12", w.fence("table:12")+1), func(tx pgx.Tx) error {
			var unread pgx.Rows
			require.Error(t, pgx.BeginFunc(t.Context(), tx, func(sp pgx.Tx) (err error) {
				require.NoError(t, book(t.Context(), sp, 12, "ann"))
				unread, err = sp.Query(t.Context(), `SELECT 1`)
				require.NoError(t, err)
				return undone
			}))
			unread.Close()
			return nil
		})
		require.ErrorContains(t, err, "conn busy", name)
		require.Empty(t, w.guests(), name)
	}
}

// The server refuses to release it, and rolling back to the one around it undoes both.
func TestASavepointThatHasFailedIsUndoneWithTheOneAroundIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	require.NoError(t, fencedb.Tx(t.Context(), w.pool, grant("table:12", 41), func(tx pgx.Tx) error {
		require.Error(t, pgx.BeginFunc(t.Context(), tx, func(outer pgx.Tx) error {
			return pgx.BeginFunc(t.Context(), outer, func(inner pgx.Tx) error {
				require.NoError(t, book(t.Context(), inner, 12, "ann"))
				_, err := inner.Exec(t.Context(), `SELECT 1/0`)
				require.Error(t, err)
				return nil
			})
		}))
		return book(t.Context(), tx, 12, "ben")
	}))
	require.Equal(t, []string{"ben"}, w.guests())
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
