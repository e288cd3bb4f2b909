package compat

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	bookings "github.com/fencedb/fencedb/lab/compat/sqlc"
)

func TestSqlc(t *testing.T) {
	t.Parallel()
	holdToContract(t, func(_ *testing.T, pool *pgxpool.Pool) library { return withSqlc(pool) })
}

func withSqlc(pool *pgxpool.Pool) library {
	queries := bookings.New(pool)
	return library{
		book: func(ctx context.Context, grant fencedb.Grant, table int, guest string) error {
			return fencedb.Tx(ctx, pool, grant, func(tx pgx.Tx) error {
				_, err := queries.WithTx(tx).CreateBooking(ctx, bookings.CreateBookingParams{TableID: int32(table), Guest: guest})
				return err
			})
		},
		forget: func(ctx context.Context, table int, guest string) error {
			_, err := queries.CreateBooking(ctx, bookings.CreateBookingParams{TableID: int32(table), Guest: guest})
			return fencedb.Explain(err)
		},
	}
}

// Each kind of generated function, as the first of a transaction, which travels with BEGIN and
// enter, and as a later one.
func TestEveryKindOfGeneratedQuery(t *testing.T) {
	t.Parallel()
	for name, queries := range map[string][]func(context.Context, *bookings.Queries) error{
		":one":       {createBooking, listBookings, moveGuest},
		":many":      {listBookings, createBooking},
		":execrows":  {moveGuest, createBooking},
		":copyfrom":  {createBookings, createBooking},
		":batchexec": {renameGuests, createBooking, renameGuests},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := migrated(t)
			var found []bookings.Booking
			err := fencedb.Tx(t.Context(), pool, grant("table:12", 41), func(tx pgx.Tx) error {
				for _, query := range queries {
					if err := query(t.Context(), bookings.New(tx)); err != nil {
						return err
					}
				}
				var err error
				found, err = bookings.New(tx).ListBookings(t.Context())
				return err
			})
			require.NoError(t, err)
			require.NotEmpty(t, found)
			require.EqualValues(t, 41, found[0].LastFencingToken)
			require.Len(t, guests(t, pool), len(found))

			for _, query := range queries {
				err := fencedb.Tx(t.Context(), pool, grant("table:12", 40), func(tx pgx.Tx) error {
					return query(t.Context(), bookings.New(tx))
				})
				require.ErrorIs(t, err, fencedb.ErrStale)
			}
			require.Len(t, guests(t, pool), len(found))
		})
	}
}

// docs/patterns.md shows it.
func TestARepositoryOverSqlc(t *testing.T) {
	t.Parallel()
	pool := migrated(t)

	repo := fencedb.NewRepository(pool, func(tx pgx.Tx) *bookings.Queries { return bookings.New(tx) })

	book := func(q *bookings.Queries) error { return createBooking(t.Context(), q) }
	require.NoError(t, repo.Write(t.Context(), grant("table:12", 42), book))
	require.ErrorIs(t, repo.Write(t.Context(), grant("table:12", 41), book), fencedb.ErrStale)
	require.ErrorIs(t, repo.Read(t.Context(), book), fencedb.ErrNoToken)
	require.NoError(t, repo.Read(t.Context(), func(q *bookings.Queries) error {
		found, err := q.ListBookings(t.Context())
		require.Len(t, found, 1)
		return err
	}))
}

func createBooking(ctx context.Context, q *bookings.Queries) error {
	_, err := q.CreateBooking(ctx, bookings.CreateBookingParams{TableID: 12, Guest: "ann"})
	return err
}

func createBookings(ctx context.Context, q *bookings.Queries) error {
	_, err := q.CreateBookings(ctx, []bookings.CreateBookingsParams{{TableID: 12, Guest: "ben"}, {TableID: 12, Guest: "cid"}})
	return err
}

func moveGuest(ctx context.Context, q *bookings.Queries) error {
	_, err := q.MoveGuest(ctx, bookings.MoveGuestParams{TableID: 12, Guest: "dan"})
	return err
}

func listBookings(ctx context.Context, q *bookings.Queries) error {
	_, err := q.ListBookings(ctx)
	return err
}

func renameGuests(ctx context.Context, q *bookings.Queries) (err error) {
	q.RenameGuests(ctx, []bookings.RenameGuestsParams{{ID: 1, Guest: "eve"}, {ID: 2, Guest: "fay"}}).Exec(func(_ int, failed error) {
		if err == nil {
			err = failed
		}
	})
	return err
}
