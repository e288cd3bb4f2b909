package worker

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedb/fencedb/fencedb"
)

const saveBooking = `
	INSERT INTO bookings (table_id, evening, guest) VALUES ($1, $2, $3)
	ON CONFLICT (table_id, evening) DO UPDATE SET guest = excluded.guest`

// bookings are what both stores read.
type bookings struct {
	db *pgxpool.Pool
}

// find returns "" if nobody has the evening. Reading needs no token.
func (b bookings) find(ctx context.Context, evening int) (guest string, err error) {
	err = b.db.QueryRow(ctx, `SELECT guest FROM bookings WHERE table_id = $1 AND evening = $2`, Table, evening).Scan(&guest)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", nil
	}
	return guest, err
}

// fencedStore is the one to copy.
type fencedStore struct {
	bookings
	traced fencedb.DB // the same pool
}

func (s fencedStore) seal(ctx context.Context, grant fencedb.Grant) error {
	return fencedb.Seal(ctx, s.traced, grant)
}

// save is one statement behind the fence, in one round trip. After fencedb.ErrStale nothing is written.
func (s fencedStore) save(ctx context.Context, grant fencedb.Grant, evening int, guest string) error {
	_, err := fencedb.Exec(ctx, s.traced, grant, saveBooking, Table, evening, guest)
	return err
}

// plainStore is the control of the experiment, not something to copy: the same statement with only the lock to protect it, as it
// is usually done. It works while the table is not protected.
type plainStore struct{ bookings }

func (plainStore) seal(context.Context, fencedb.Grant) error { return nil }

func (s plainStore) save(ctx context.Context, _ fencedb.Grant, evening int, guest string) error {
	_, err := s.db.Exec(ctx, saveBooking, Table, evening, guest)
	return err
}
