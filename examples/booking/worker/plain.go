package worker

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedb/fencedb/examples/booking/booking"
	"github.com/fencedb/fencedb/fencedb"
)

// plainStore is the control of the experiment, not something to copy: the same statements, with nothing but the lock to
// protect them. That is how it is usually done. It writes to a table of its own, so that it cannot harm the real one.
type plainStore struct {
	booking.Store // for what the experiment does not do
	db            *pgxpool.Pool
	table         string
}

// Seal does nothing: there is no fence.
func (plainStore) Seal(context.Context, fencedb.Grant) error { return nil }

// Find is store.Find on another table.
func (s plainStore) Find(ctx context.Context, table int, slot time.Time) (booking.Booking, bool, error) {
	b := booking.Booking{Table: table, Slot: slot}
	err := s.db.QueryRow(ctx, `
		SELECT id, guest, party FROM `+s.name()+` WHERE table_id = $1 AND slot = $2`,
		table, slot).Scan(&b.ID, &b.Guest, &b.Party)
	if errors.Is(err, pgx.ErrNoRows) {
		return booking.Booking{}, false, nil
	}
	return b, err == nil, err
}

// Save is store.Save on another table and without the grant.
func (s plainStore) Save(ctx context.Context, _ fencedb.Grant, _ string, b booking.Booking) (booking.Answer, error) {
	_, err := s.db.Exec(ctx, `
		INSERT INTO `+s.name()+` (id, table_id, slot, guest, party) VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (table_id, slot) DO UPDATE SET guest = excluded.guest, party = excluded.party`,
		b.ID, b.Table, b.Slot, b.Guest, b.Party)
	return booking.Answer{Booking: b}, err
}

func (s plainStore) name() string { return pgx.Identifier{s.table}.Sanitize() }
