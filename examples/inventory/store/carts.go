package store

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// The states of a cart.
const (
	Reserved = "RESERVED"
	Sold     = "SOLD"
	Expired  = "EXPIRED"
)

// Line is some units of one SKU.
type Line struct {
	SKU   string `json:"sku"`
	Units int    `json:"units"`
	Cents int64  `json:"cents"` // for all of them
}

// Cart is what one buyer reserves, all of it or nothing.
type Cart struct {
	ID      uuid.UUID `json:"id"`
	Buyer   string    `json:"buyer"`
	State   string    `json:"state"`
	Cents   int64     `json:"cents"`
	Expires time.Time `json:"expires"`
	Lines   []Line    `json:"lines"`
}

// AddCart inserts a cart with its lines, reserved for a time from now on, by Postgres's clock. It returns when that will be over.
func AddCart(ctx context.Context, tx Writer, c Cart, keep time.Duration) (expires time.Time, err error) {
	var b pgx.Batch
	b.Queue(`
		INSERT INTO carts (id, buyer, lines, cents, expires_at)
		VALUES ($1, $2, $3, $4, clock_timestamp() + $5 * interval '1 ms')
		RETURNING expires_at`, c.ID, c.Buyer, len(c.Lines), c.Cents, keep.Milliseconds()).
		QueryRow(func(row pgx.Row) error { return row.Scan(&expires) })
	for _, l := range c.Lines {
		b.Queue(`INSERT INTO cart_lines (cart_id, sku, units, cents) VALUES ($1, $2, $3, $4)`, c.ID, l.SKU, l.Units, l.Cents)
	}
	err = tx.SendBatch(ctx, &b).Close()
	return expires, err
}

// FindCart reads a cart; pgx.ErrNoRows if there is none.
func FindCart(ctx context.Context, db Reader, id uuid.UUID) (Cart, error) {
	c := Cart{ID: id}
	err := db.QueryRow(ctx, `SELECT buyer, state, cents, expires_at FROM carts WHERE id = $1`, id).Scan(&c.Buyer, &c.State, &c.Cents, &c.Expires)
	if err != nil {
		return Cart{}, err
	}
	c.Lines, err = Lines(ctx, db, id)
	return c, err
}

// Lines reads those of a cart, which never change.
func Lines(ctx context.Context, db Reader, id uuid.UUID) ([]Line, error) {
	return collect[Line](db.Query(ctx, `SELECT sku, units, cents FROM cart_lines WHERE cart_id = $1 ORDER BY sku`, id))
}

// Overdue finds reservations that nobody has paid in time, the oldest first.
func Overdue(ctx context.Context, db Reader, atMost int) ([]uuid.UUID, error) {
	return ids(db.Query(ctx, `
		SELECT id FROM carts WHERE state = 'RESERVED' AND expires_at <= clock_timestamp() ORDER BY expires_at LIMIT $1`, atMost))
}

// Expire ends a reservation that is overdue, and makes the money of a payment under way due to be given back. It returns
// false, and has done nothing, if the cart is not RESERVED any more, or not yet overdue.
func Expire(ctx context.Context, tx Writer, id uuid.UUID) (bool, error) {
	tag, err := tx.Exec(ctx, `
		WITH over AS (
			UPDATE carts SET state = 'EXPIRED'
			WHERE id = $1 AND state = 'RESERVED' AND expires_at <= clock_timestamp()
			RETURNING id
		), refund AS (
			UPDATE payments SET state = 'REFUND_DUE' FROM over WHERE cart_id = over.id
		)
		SELECT FROM over`, id)
	return tag.RowsAffected() == 1, err
}

func ids(rows pgx.Rows, err error) ([]uuid.UUID, error) {
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
}
