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

// AddLevels puts new SKUs up for sale and leaves those alone that are there.
func (t Tables) AddLevels(ctx context.Context, levels []Level) error {
	var b pgx.Batch
	for _, l := range levels {
		b.Queue(`INSERT INTO stock (sku, start, remaining, cents) VALUES ($1, $2, $2, $3) ON CONFLICT DO NOTHING`,
			l.SKU, l.Start, l.Cents)
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

// AddCart inserts a cart of priced lines, reserved for a time from now on, by Postgres's clock.
func (t Tables) AddCart(ctx context.Context, id uuid.UUID, buyer string, priced []Line,
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
	err := t.tx.SendBatch(ctx, &b).Close()
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

// Expire ends a reservation that is overdue, and makes the money of a payment under way due to be
// given back. It returns false, and has done nothing, if the cart is not RESERVED any more, or not
// yet overdue.
func (t Tables) Expire(ctx context.Context, id uuid.UUID) (bool, error) {
	tag, err := t.tx.Exec(ctx, `
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

// Sell makes a paid cart SOLD. It returns false, and has done nothing, if the cart is not RESERVED
// any more.
func (t Tables) Sell(ctx context.Context, id uuid.UUID) (bool, error) {
	tag, err := t.tx.Exec(ctx, `
		WITH sold AS (UPDATE carts SET state = 'SOLD' WHERE id = $1 AND state = 'RESERVED' RETURNING id)
		UPDATE payments SET state = 'TAKEN' FROM sold WHERE cart_id = sold.id`, id)
	return tag.RowsAffected() == 1, err
}

// Refunded notes that the bank has given the money back.
func (t Tables) Refunded(ctx context.Context, id uuid.UUID) error {
	_, err := t.tx.Exec(ctx, `UPDATE payments SET state = 'REFUNDED' WHERE cart_id = $1 AND state = 'REFUND_DUE'`, id)
	return err
}

// What [Shop.Each] can be told to find.
const (
	// Overdue finds reservations that nobody has paid in time, the oldest first.
	Overdue = `
		SELECT id FROM carts WHERE state = 'RESERVED' AND expires_at <= clock_timestamp() ORDER BY expires_at LIMIT 200`

	// RefundsDue finds carts whose money the bank has to give back, in no order: some that the bank
	// keeps refusing must not keep the rest out.
	RefundsDue = `SELECT cart_id FROM payments WHERE state = 'REFUND_DUE' ORDER BY random() LIMIT 200`
)

func (t Tables) find(ctx context.Context, carts string) ([]uuid.UUID, error) {
	rows, _ := t.tx.Query(ctx, carts)
	return pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
}
