// Package store keeps bookings in Postgres, in a table that only the current holder of a lease can write to.
//
// The statements are sqlc's. What makes them safe is where they run: all that write do so in [fencedb.Tx], and the table
// accepts no other way in.
package store

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedb/fencedb/examples/booking/booking"
	"github.com/fencedb/fencedb/examples/booking/store/query"
	"github.com/fencedb/fencedb/fencedb"
)

// Store is a [booking.Store]. The database must have been brought up with [Migrate].
type Store struct {
	db      *pgxpool.Pool
	fenced  fencedb.DB // db, with the tracers
	queries *query.Queries
}

var _ booking.Store = (*Store)(nil)

// New returns a store on db, which stays the caller's to close. The tracers are told of its writes.
func New(db *pgxpool.Pool, tracers ...fencedb.Tracer) *Store {
	return &Store{db, fencedb.Traced(db, tracers...), query.New(db)}
}

// Seal implements [booking.Store].
func (s *Store) Seal(ctx context.Context, grant fencedb.Grant) error {
	return explain(fencedb.Seal(ctx, s.fenced, grant))
}

// Find implements [booking.Store].
func (s *Store) Find(ctx context.Context, table int, slot time.Time) (booking.Booking, bool, error) {
	return found(s.queries.FindBooking(ctx, query.FindBookingParams{TableID: int32(table), Slot: slot}))
}

// Get implements [booking.Store].
func (s *Store) Get(ctx context.Context, id uuid.UUID) (booking.Booking, bool, error) {
	return found(s.queries.GetBooking(ctx, id))
}

// List implements [booking.Store].
func (s *Store) List(ctx context.Context, table int, from time.Time, limit int) ([]booking.Booking, error) {
	rows, err := s.queries.ListBookings(ctx, query.ListBookingsParams{
		TableID: int32(table), FromSlot: from, AtMost: int32(limit),
	})
	bookings := make([]booking.Booking, len(rows))
	for i, row := range rows {
		bookings[i] = fromRow(row)
	}
	return bookings, explain(err)
}

// errNew undoes what Answered has begun with a key that is new.
var errNew = errors.New("the key is new")

// Answered implements [booking.Store]. It waits for a transaction with the same key that is still open.
func (s *Store) Answered(ctx context.Context, key string, b booking.Booking) (answer booking.Answer, found bool, err error) {
	err = pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		answer, found, err = fencedb.OnceJSON(ctx, tx, key, asked(b), func() (booking.Answer, error) {
			return booking.Answer{}, errNew
		})
		return err
	})
	if errors.Is(err, errNew) {
		err = nil
	}
	return answer, found, explain(err)
}

// Save implements [booking.Store]: the booking and the answer to its key, in one transaction behind the fence.
func (s *Store) Save(ctx context.Context, grant fencedb.Grant, key string, b booking.Booking) (answer booking.Answer, err error) {
	err = fencedb.Tx(ctx, s.fenced, grant, func(tx pgx.Tx) error {
		save := func() (booking.Answer, error) { return s.save(ctx, tx, b) }
		if key == "" {
			answer, err = save()
			return err
		}
		answer, _, err = fencedb.OnceJSON(ctx, tx, key, asked(b), save)
		return err
	})
	return answer, explain(err)
}

func (s *Store) save(ctx context.Context, tx pgx.Tx, b booking.Booking) (booking.Answer, error) {
	row, err := s.queries.WithTx(tx).SaveBooking(ctx, query.SaveBookingParams{
		ID: b.ID, TableID: int32(b.Table), Slot: b.Slot, Guest: b.Guest, Party: int32(b.Party),
	})
	return booking.Answer{Booking: fromRow(row), Created: row.ID == b.ID}, err
}

// Remove implements [booking.Store].
func (s *Store) Remove(ctx context.Context, grant fencedb.Grant, id uuid.UUID) (removed bool, err error) {
	err = fencedb.Tx(ctx, s.fenced, grant, func(tx pgx.Tx) error {
		rows, err := s.queries.WithTx(tx).RemoveBooking(ctx, id)
		removed = rows > 0
		return err
	})
	return removed, explain(err)
}

// asked is what a key stands for: the booking without its ID, which is new each time that the request is sent.
func asked(b booking.Booking) booking.Booking {
	b.ID = uuid.Nil
	return b
}

func found(row query.Booking, err error) (booking.Booking, bool, error) {
	if errors.Is(err, pgx.ErrNoRows) {
		return booking.Booking{}, false, nil
	}
	return fromRow(row), err == nil, explain(err)
}

func fromRow(row query.Booking) booking.Booking {
	return booking.Booking{ID: row.ID, Table: int(row.TableID), Slot: row.Slot.UTC(), Guest: row.Guest, Party: int(row.Party)}
}
