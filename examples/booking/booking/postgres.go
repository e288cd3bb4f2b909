package booking

import (
	"context"
	"database/sql"
	"embed"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/fencedb/fencedb/migrations"
)

//go:embed *.sql
var files embed.FS

// Migrate brings the database up: the fences first, then the bookings. It does nothing where
// nothing is missing.
func Migrate(ctx context.Context, db *sql.DB) error {
	return migrations.Apply(ctx, db, files, "booking_migrations")
}

// bookings are the statements, in one transaction: of the Write of a repository, which takes a
// grant, of its Read, or of a desk. The table accepts no other writes.
type bookings struct{ tx pgx.Tx }

func in(tx pgx.Tx) bookings { return bookings{tx} }

const columns = `id, table_id, slot, guest, party`

func (b bookings) where(ctx context.Context, condition string, args ...any) ([]Booking, error) {
	rows, _ := b.tx.Query(ctx, `SELECT `+columns+` FROM bookings WHERE `+condition, args...)
	return pgx.CollectRows(rows, scan)
}

// save writes over whatever is there, which then keeps its ID.
func (b bookings) save(ctx context.Context, want Booking) (Answer, error) {
	rows, _ := b.tx.Query(ctx, `
		INSERT INTO bookings (`+columns+`) VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (table_id, slot) DO UPDATE SET guest = excluded.guest, party = excluded.party
		RETURNING `+columns, want.ID, want.Table, want.Slot, want.Guest, want.Party)
	saved, err := pgx.CollectExactlyOneRow(rows, scan)
	return Answer{Booking: saved, Created: saved.ID == want.ID}, err
}

func (b bookings) remove(ctx context.Context, id uuid.UUID) error {
	tag, err := b.tx.Exec(ctx, `DELETE FROM bookings WHERE id = $1`, id)
	if err == nil && tag.RowsAffected() == 0 {
		err = ErrUnknown
	}
	return err
}

func scan(row pgx.CollectableRow) (b Booking, err error) {
	err = row.Scan(&b.ID, &b.Table, &b.Slot, &b.Guest, &b.Party)
	b.Slot = b.Slot.UTC()
	return b, err
}
