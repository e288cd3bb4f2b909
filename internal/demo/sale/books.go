package sale

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Books are what the database says about goods, carts and money. Nobody was asked but the rows.
type Books struct {
	// Units, of all SKUs together.
	Start, Remaining, Reserved, Sold int64

	Oversold int64 // units promised beyond what there was to sell, SKU by SKU
	TooMany  int64 // units that are promised and still for sale: sold + reserved + remaining - start
	TooFew   int64 // the opposite: units that nobody has

	Carts, CartsSold, CartsExpired int64
	Half                           int64 // carts with fewer lines than were asked for

	Payments  int64 // that the shop has begun
	Charged   int64 // charges that the bank has kept
	Refunded  int64 // charges that the bank has given back, or refused because they had been
	Misplaced int64 // kept without a cart that is sold for just that amount, or the other way round
}

// Balanced is that every unit is accounted for.
func (b Books) Balanced() bool { return b.Oversold == 0 && b.TooMany == 0 && b.TooFew == 0 }

// One statement, and so one moment.
const selectBooks = `
	WITH promised AS (
		SELECT l.sku, sum(l.units) FILTER (WHERE c.state = 'RESERVED') AS reserved, sum(l.units) FILTER (WHERE c.state = 'SOLD') AS sold
		FROM cart_lines l JOIN carts c ON c.id = l.cart_id GROUP BY l.sku
	), shelf AS (
		SELECT s.start, s.remaining, coalesce(p.reserved, 0) AS reserved, coalesce(p.sold, 0) AS sold
		FROM stock s LEFT JOIN promised p USING (sku)
	), asked AS (
		SELECT c.state, c.lines > (SELECT count(*) FROM cart_lines l WHERE l.cart_id = c.id) AS half FROM carts c
	), money AS (
		SELECT b.state AS bank, c.state AS cart, b.cents = c.cents AS same
		FROM bank.charges b FULL JOIN carts c ON c.id = b.key
	)
	SELECT goods.*, kept.*, taken.* FROM (
		SELECT sum(start), sum(remaining), sum(reserved), sum(sold),
		       sum(greatest(0, sold + reserved - start)),
		       sum(greatest(0, sold + reserved + remaining - start)),
		       sum(greatest(0, start - sold - reserved - remaining)) FROM shelf
	) AS goods, (
		SELECT count(*), count(*) FILTER (WHERE state = 'SOLD'), count(*) FILTER (WHERE state = 'EXPIRED'), count(*) FILTER (WHERE half) FROM asked
	) AS kept, (
		SELECT (SELECT count(*) FROM payments), count(*) FILTER (WHERE bank = 'CHARGED'), count(*) FILTER (WHERE bank IN ('REFUNDED', 'VOID')),
		       count(*) FILTER (WHERE (bank = 'CHARGED' OR cart = 'SOLD') AND (bank = 'CHARGED' AND cart = 'SOLD' AND same) IS NOT TRUE) FROM money
	) AS taken`

func audit(ctx context.Context, db *pgxpool.Pool) (b Books, err error) {
	err = db.QueryRow(ctx, selectBooks).Scan(
		&b.Start, &b.Remaining, &b.Reserved, &b.Sold, &b.Oversold, &b.TooMany, &b.TooFew,
		&b.Carts, &b.CartsSold, &b.CartsExpired, &b.Half,
		&b.Payments, &b.Charged, &b.Refunded, &b.Misplaced)
	return b, err
}

// unsettled counts what a sweep has yet to do.
func unsettled(ctx context.Context, db *pgxpool.Pool) (n int, err error) {
	err = db.QueryRow(ctx, `
		SELECT (SELECT count(*) FROM carts WHERE state = 'RESERVED') + (SELECT count(*) FROM payments WHERE state = 'REFUND_DUE')`).Scan(&n)
	return n, err
}
