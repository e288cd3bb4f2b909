package worker

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedb/fencedb/examples/booking/booking"
	"github.com/fencedb/fencedb/fencedb"
)

// plainStore is the control of the experiment, not something to copy: the same statement with only the lock to protect it, as it
// is usually done. It works while the table is not protected.
type plainStore struct {
	booking.Store // for reading
	db            *pgxpool.Pool
}

// Seal does nothing: there is no fence.
func (plainStore) Seal(context.Context, fencedb.Grant) error { return nil }

// Save is store.Save without the grant.
func (s plainStore) Save(ctx context.Context, _ fencedb.Grant, _ string, b booking.Booking) (booking.Answer, error) {
	_, err := s.db.Exec(ctx, `
		INSERT INTO bookings (id, table_id, slot, guest, party) VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (table_id, slot) DO UPDATE SET guest = excluded.guest, party = excluded.party`,
		b.ID, b.Table, b.Slot, b.Guest, b.Party)
	return booking.Answer{Booking: b}, err
}
