package store

import (
	"context"

	"github.com/google/uuid"
)

// Statements that need no transaction around them: each decides and writes at once.
const (
	// BeginPayment notes that the bank will be asked, before it is, and returns for how much. Again for a payment that was begun
	// before, so that it can be taken up. No row: the cart cannot be paid.
	BeginPayment = `
		INSERT INTO payments AS p (cart_id, cents)
		SELECT id, cents FROM carts WHERE id = $1 AND state = 'RESERVED' AND expires_at > clock_timestamp()
		ON CONFLICT (cart_id) DO UPDATE SET state = p.state
		RETURNING cents`

	// Sell makes a paid cart SOLD. It writes no row if the cart is not RESERVED any more.
	Sell = `
		WITH sold AS (UPDATE carts SET state = 'SOLD' WHERE id = $1 AND state = 'RESERVED' RETURNING id)
		UPDATE payments SET state = 'TAKEN' FROM sold WHERE cart_id = sold.id`

	// Refunded notes that the bank has given the money back.
	Refunded = `UPDATE payments SET state = 'REFUNDED' WHERE cart_id = $1 AND state = 'REFUND_DUE'`
)

// RefundsDue finds carts whose money the bank has to give back, in no order: some that the bank keeps refusing must not keep the rest out.
func RefundsDue(ctx context.Context, db Reader, atMost int) ([]uuid.UUID, error) {
	return ids(db.Query(ctx, `SELECT cart_id FROM payments WHERE state = 'REFUND_DUE' ORDER BY random() LIMIT $1`, atMost))
}
