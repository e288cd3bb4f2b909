// Package store keeps bookings in Postgres, in a table that only the current holder of a lease can write to.
package store

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedb/fencedb/examples/booking/booking"
	"github.com/fencedb/fencedb/fencedb"
)

// Store is a [booking.Store]. The database must have been brought up with [Migrate].
type Store struct {
	db *pgxpool.Pool
}

var _ booking.Store = (*Store)(nil)

// New returns a store on db, which stays the caller's to close.
func New(db *pgxpool.Pool) *Store { return &Store{db} }

// Seal implements [booking.Store].
func (s *Store) Seal(ctx context.Context, grant fencedb.Grant) error {
	return fencedb.Seal(ctx, s.db, grant)
}

// Find implements [booking.Store]. Reading needs no token.
func (s *Store) Find(ctx context.Context, table int, slot time.Time) (booking.Booking, bool, error) {
	b := booking.Booking{Table: table, Slot: slot}
	err := s.db.QueryRow(ctx, `
		SELECT guest, party FROM bookings WHERE table_id = $1 AND slot = $2`,
		table, slot).Scan(&b.Guest, &b.Party)
	if errors.Is(err, pgx.ErrNoRows) {
		return booking.Booking{}, false, nil
	}
	return b, err == nil, err
}

// Save implements [booking.Store]: one statement behind the fence, in one round trip.
func (s *Store) Save(ctx context.Context, grant fencedb.Grant, b booking.Booking) error {
	_, err := fencedb.Exec(ctx, s.db, grant, `
		INSERT INTO bookings (table_id, slot, guest, party) VALUES ($1, $2, $3, $4)
		ON CONFLICT (table_id, slot) DO UPDATE SET guest = excluded.guest, party = excluded.party`,
		b.Table, b.Slot, b.Guest, b.Party)
	return err
}
