package fencedb_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
)

func TestTxCommitsBehindTheFence(t *testing.T) {
	t.Parallel()
	w := newWorld(t)

	err := fencedb.Tx(t.Context(), w.pool, grant("table:12", 41), func(tx pgx.Tx) error {
		return book(t.Context(), tx, 12, "ann")
	})

	require.NoError(t, err)
	require.Equal(t, []string{"ann"}, w.guests())
	require.EqualValues(t, 41, w.fence("table:12"))
}

func TestTxRefusesAStaleToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	require.NoError(t, fencedb.Seal(t.Context(), w.pool, grant("table:12", 42)))

	err := fencedb.Tx(t.Context(), w.pool, grant("table:12", 41), func(tx pgx.Tx) error {
		return book(t.Context(), tx, 12, "ann")
	})

	var stale *fencedb.StaleError
	require.ErrorAs(t, err, &stale)
	require.ErrorIs(t, err, fencedb.ErrStale)
	require.Equal(t, "table:12", stale.Resource)
	require.EqualValues(t, 41, stale.Token)
	require.EqualValues(t, 42, stale.Stored)
	require.Empty(t, w.guests())
}

func TestTxRefusesAnEqualTokenOfAnotherLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	require.NoError(t, fencedb.Seal(t.Context(), w.pool, grant("table:12", 41)))

	err := fencedb.Seal(t.Context(), w.pool, grant("table:12", 41))

	require.ErrorIs(t, err, fencedb.ErrStale)
}

func TestTxRollsBackOnError(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	soldOut := errors.New("sold out")

	err := fencedb.Tx(t.Context(), w.pool, grant("table:12", 41), func(tx pgx.Tx) error {
		require.NoError(t, book(t.Context(), tx, 12, "ann"))
		return soldOut
	})

	require.Equal(t, soldOut, err, "the function's own error comes back as it is")
	require.Empty(t, w.guests())
	require.Zero(t, w.fence("table:12"), "a fence that did not commit is not raised")
}
