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

// This file is the SQL of the shop: one function for each statement, over whatever the caller reads
// or writes with. None of them protects anything. The triggers that the migration puts on the
// tables keep a late writer out: they refuse every row whose resource the transaction has not
// entered with a current token. So the writes here succeed only within package fencedb.

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
	Version   int64  `json:"-"`
}

// Reader is a pool or a transaction.
type Reader interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

const selectLevels = `SELECT sku, start, remaining, cents, version FROM stock`

// AllLevels reads everything that is for sale, in the order of the SKUs.
func AllLevels(ctx context.Context, db Reader) ([]Level, error) {
	return collect[Level](db.Query(ctx, selectLevels+` ORDER BY sku`))
}

// Levels reads those of some SKUs, in the order of the SKUs. What does not exist is missing.
func Levels(ctx context.Context, db Reader, skus []string) ([]Level, error) {
	return collect[Level](db.Query(ctx, selectLevels+` WHERE sku = ANY ($1) ORDER BY sku`, skus))
}

func collect[T any](rows pgx.Rows, _ error) ([]T, error) { // the rows have the error too
	return pgx.CollectRows(rows, pgx.RowToStructByPos[T])
}

// SetLevels writes how much remains. The caller must know that nobody has written since it read.
func SetLevels(ctx context.Context, tx pgx.Tx, levels []Level) error {
	var b pgx.Batch
	for _, l := range levels {
		b.Queue(`UPDATE stock SET remaining = $2, version = version + 1 WHERE sku = $1`, l.SKU, l.Remaining)
	}
	return tx.SendBatch(ctx, &b).Close()
}

// AddLevels puts new SKUs up for sale and leaves those alone that are there.
func AddLevels(ctx context.Context, tx pgx.Tx, levels []Level) error {
	var b pgx.Batch
	for _, l := range levels {
		b.Queue(`INSERT INTO stock (sku, start, remaining, cents) VALUES ($1, $2, $2, $3) ON CONFLICT DO NOTHING`,
			l.SKU, l.Start, l.Cents)
	}
	return tx.SendBatch(ctx, &b).Close()
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

// AddCart inserts a cart of priced lines, reserved for a time from now on, by Postgres's clock.
func AddCart(ctx context.Context, tx pgx.Tx, id uuid.UUID, buyer string, priced []Line,
	keep time.Duration) (Cart, error) {
	c := Cart{ID: id, Buyer: buyer, State: Reserved, Lines: priced}
	for _, l := range priced {
		c.Cents += l.Cents
	}
	var b pgx.Batch
	b.Queue(`
		INSERT INTO carts (id, buyer, lines, cents, expires_at)
		VALUES ($1, $2, $3, $4, clock_timestamp() + $5 * interval '1 ms')
		RETURNING expires_at`, id, buyer, len(priced), c.Cents, keep.Milliseconds()).
		QueryRow(func(row pgx.Row) error { return row.Scan(&c.Expires) })
	for _, l := range priced {
		b.Queue(`INSERT INTO cart_lines (cart_id, sku, units, cents) VALUES ($1, $2, $3, $4)`, id, l.SKU, l.Units, l.Cents)
	}
	err := tx.SendBatch(ctx, &b).Close()
	return c, err
}

// Cart finds a cart, or fails with [ErrNoCart].
func (s *Shop) Cart(ctx context.Context, id uuid.UUID) (Cart, error) {
	c := Cart{ID: id}
	err := s.DB.QueryRow(ctx, `SELECT buyer, state, cents, expires_at FROM carts WHERE id = $1`, id).
		Scan(&c.Buyer, &c.State, &c.Cents, &c.Expires)
	if errors.Is(err, pgx.ErrNoRows) {
		return Cart{}, ErrNoCart
	}
	if err == nil {
		c.Lines, err = Lines(ctx, s.DB, id)
	}
	return c, err
}

// Lines reads those of a cart, which never change.
func Lines(ctx context.Context, db Reader, id uuid.UUID) ([]Line, error) {
	return collect[Line](db.Query(ctx, `SELECT sku, units, cents FROM cart_lines WHERE cart_id = $1 ORDER BY sku`, id))
}

// Expire ends a reservation that is overdue, and makes the money of a payment under way due to be
// given back. It returns false, and has done nothing, if the cart is not RESERVED any more, or not
// yet overdue.
func Expire(ctx context.Context, tx pgx.Tx, id uuid.UUID) (bool, error) {
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

// Statements that need no transaction around them: each decides and writes at once.
const (
	// BeginPayment notes that the bank will be asked, before it is, and returns for how much. Again
	// for a payment that was begun before, so that it can be taken up. No row: the cart cannot be
	// paid.
	BeginPayment = `
		INSERT INTO payments AS p (cart_id, cents)
		SELECT id, cents FROM carts WHERE id = $1 AND state = 'RESERVED' AND expires_at > clock_timestamp()
		ON CONFLICT (cart_id) DO UPDATE SET state = p.state
		RETURNING cents`

	// Sell makes a paid cart SOLD. It writes no row if the cart is not RESERVED any more.
	Sell = `
		WITH sold AS (UPDATE carts SET state = 'SOLD' WHERE id = $1 AND state = 'RESERVED' RETURNING id)
		UPDATE payments SET state = 'TAKEN' FROM sold WHERE cart_id = sold.id`

	// Overdue finds reservations that nobody has paid in time, the oldest first.
	Overdue = `
		SELECT id FROM carts WHERE state = 'RESERVED' AND expires_at <= clock_timestamp() ORDER BY expires_at LIMIT 200`

	// RefundsDue finds carts whose money the bank has to give back, in no order: some that the bank
	// keeps refusing must not keep the rest out.
	RefundsDue = `SELECT cart_id FROM payments WHERE state = 'REFUND_DUE' ORDER BY random() LIMIT 200`

	// Refunded notes that the bank has given the money back.
	Refunded = `UPDATE payments SET state = 'REFUNDED' WHERE cart_id = $1 AND state = 'REFUND_DUE'`
)
