package shop

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/fencedb/fencedb/migrations"
)

//go:embed *.sql
var files embed.FS

// Migrate brings the database up: the fences first, then the tables of the shop. It does nothing
// where nothing is missing.
func Migrate(ctx context.Context, db *sql.DB) error {
	return migrations.Apply(ctx, db, files, "inventory_migrations")
}

// Level is how much of a SKU there is.
type Level struct {
	SKU       string `json:"sku"`
	Start     int    `json:"start"`
	Remaining int    `json:"remaining"` // neither sold nor reserved
	Cents     int64  `json:"cents"`     // of a unit, at the full price
}

// Tables are the statements of the shop, in one transaction. The [Shop] gets them from its
// repository, behind a fence or to read only. Whoever makes them of another transaction is kept out
// by the triggers of the migration: they refuse every row whose resource the transaction has not
// entered with a current token.
type Tables struct{ tx pgx.Tx }

// In returns the tables as tx sees and writes them.
func In(tx pgx.Tx) Tables { return Tables{tx} }

// Levels reads those of some SKUs, or of all if skus is nil, in the order of the SKUs. What does
// not exist is missing.
func (t Tables) Levels(ctx context.Context, skus []string) ([]Level, error) {
	rows, _ := t.tx.Query(ctx, `
		SELECT sku, start, remaining, cents FROM stock WHERE $1::text[] IS NULL OR sku = ANY ($1) ORDER BY sku`, skus)
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Level])
}

// SetLevels writes how much remains. The caller must know that nobody has written since it read.
func (t Tables) SetLevels(ctx context.Context, levels []Level) error {
	var b pgx.Batch
	for _, l := range levels {
		b.Queue(`UPDATE stock SET remaining = $2 WHERE sku = $1`, l.SKU, l.Remaining)
	}
	return t.tx.SendBatch(ctx, &b).Close()
}

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

// AddCart inserts a cart, reserved for a time from now on, by Postgres's clock.
func (t Tables) AddCart(ctx context.Context, c Cart, keep time.Duration) (Cart, error) {
	c.State = Reserved
	err := t.tx.QueryRow(ctx, `
		WITH cart AS (
			INSERT INTO carts (id, buyer, lines, cents, expires_at)
			VALUES ($1, $2, $3, $4, clock_timestamp() + $5 * interval '1 ms')
			RETURNING id, expires_at
		), lines AS (
			INSERT INTO cart_lines (cart_id, sku, units, cents)
			SELECT id, l.* FROM cart, jsonb_to_recordset($6) AS l (sku text, units int, cents bigint)
		)
		SELECT expires_at FROM cart`, c.ID, c.Buyer, len(c.Lines), c.Cents, keep.Milliseconds(), c.Lines).Scan(&c.Expires)
	return c, err
}

// Cart finds a cart, or fails with [ErrNoCart].
func (t Tables) Cart(ctx context.Context, id uuid.UUID) (Cart, error) {
	c := Cart{ID: id}
	err := t.tx.QueryRow(ctx, `
		SELECT buyer, state, cents, expires_at, (
			SELECT json_agg(json_build_object('sku', sku, 'units', units, 'cents', cents) ORDER BY sku)
			FROM cart_lines WHERE cart_id = id
		) FROM carts WHERE id = $1`, id).Scan(&c.Buyer, &c.State, &c.Cents, &c.Expires, &c.Lines)
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrNoCart
	}
	return c, err
}

// Expire ends a reservation that is overdue, puts its units back, and makes the money of a payment
// under way due to be given back. It does nothing if the cart is not RESERVED any more, or not yet
// overdue.
func (t Tables) Expire(ctx context.Context, id uuid.UUID) error {
	_, err := t.tx.Exec(ctx, `
		WITH over AS (
			UPDATE carts SET state = 'EXPIRED'
			WHERE id = $1 AND state = 'RESERVED' AND expires_at <= clock_timestamp()
			RETURNING id
		), refund AS (
			UPDATE payments SET state = 'REFUND_DUE' FROM over WHERE cart_id = over.id
		)
		UPDATE stock SET remaining = remaining + units
		FROM over JOIN cart_lines ON cart_id = over.id WHERE cart_lines.sku = stock.sku`, id)
	return err
}

// BeginPayment notes that the bank will be asked, before it is, and returns for how much. Again for
// a payment that was begun before, so that it can be taken up. [pgx.ErrNoRows]: the cart cannot be
// paid.
func (t Tables) BeginPayment(ctx context.Context, id uuid.UUID) (cents int64, err error) {
	err = t.tx.QueryRow(ctx, `
		INSERT INTO payments AS p (cart_id, cents)
		SELECT id, cents FROM carts WHERE id = $1 AND state = 'RESERVED' AND expires_at > clock_timestamp()
		ON CONFLICT (cart_id) DO UPDATE SET state = p.state
		RETURNING cents`, id).Scan(&cents)
	return cents, err
}

// Sell makes a paid cart SOLD, or fails with [ErrExpired] if it is not RESERVED any more.
func (t Tables) Sell(ctx context.Context, id uuid.UUID) error {
	tag, err := t.tx.Exec(ctx, `
		WITH sold AS (UPDATE carts SET state = 'SOLD' WHERE id = $1 AND state = 'RESERVED' RETURNING id)
		UPDATE payments SET state = 'TAKEN' FROM sold WHERE cart_id = sold.id`, id)
	if err == nil && tag.RowsAffected() == 0 {
		err = ErrExpired
	}
	return err
}

// Refunded notes that the bank has given the money back.
func (t Tables) Refunded(ctx context.Context, id uuid.UUID) error {
	_, err := t.tx.Exec(ctx, `UPDATE payments SET state = 'REFUNDED' WHERE cart_id = $1 AND state = 'REFUND_DUE'`, id)
	return err
}

// What [Shop.Each] can be told to find.
const (
	// overdue finds reservations that nobody has paid in time, the oldest first.
	overdue = `
		SELECT id FROM carts WHERE state = 'RESERVED' AND expires_at <= clock_timestamp() ORDER BY expires_at LIMIT 200`

	// refundsDue finds carts whose money the bank has to give back, in no order: some that the bank
	// keeps refusing must not keep the rest out.
	refundsDue = `SELECT cart_id FROM payments WHERE state = 'REFUND_DUE' ORDER BY random() LIMIT 200`
)
