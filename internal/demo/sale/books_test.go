package sale

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Two SKUs of ten: a cart that is sold with two of each and paid, one that is reserved with one of
// the first, and one that ran out.
const goodBooks = `
	UPDATE stock SET remaining = CASE sku WHEN 'sku-01' THEN 7 ELSE 8 END;
	INSERT INTO carts (id, buyer, state, lines, cents, expires_at) VALUES
		('00000000-0000-0000-0000-000000000001', 'ann', 'SOLD',     2, 400, now()),
		('00000000-0000-0000-0000-000000000002', 'bob', 'RESERVED', 1, 100, now()),
		('00000000-0000-0000-0000-000000000003', 'cyd', 'EXPIRED',  1, 500, now());
	INSERT INTO cart_lines (cart_id, sku, units, cents) VALUES
		('00000000-0000-0000-0000-000000000001', 'sku-01', 2, 200),
		('00000000-0000-0000-0000-000000000001', 'sku-02', 2, 200),
		('00000000-0000-0000-0000-000000000002', 'sku-01', 1, 100),
		('00000000-0000-0000-0000-000000000003', 'sku-02', 5, 500);
	INSERT INTO payments (cart_id, cents) SELECT id, cents FROM carts WHERE state <> 'RESERVED';
	INSERT INTO bank.charges (key, cents, state) VALUES
		('00000000-0000-0000-0000-000000000001', 400, 'CHARGED'),
		('00000000-0000-0000-0000-000000000003', 500, 'REFUNDED')`

var good = Books{
	Start: 20, Remaining: 15, Reserved: 1, Sold: 4,
	Carts: 3, CartsSold: 1, CartsExpired: 1,
	Payments: 2, Charged: 1, Refunded: 1,
}

func TestTheAuditorSeesEachFault(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		fault string
		seen  func(b *Books)
	}{
		"none":                   {`SELECT`, func(*Books) {}},
		"promised, and for sale": {`UPDATE stock SET remaining = 9 WHERE sku = 'sku-01'`, func(b *Books) { b.Remaining, b.TooMany = 17, 2 }},
		"gone":                   {`UPDATE stock SET remaining = 5 WHERE sku = 'sku-02'`, func(b *Books) { b.Remaining, b.TooFew = 12, 3 }},
		"both":                   {`UPDATE stock SET remaining = 15 - remaining`, func(b *Books) { b.TooMany, b.TooFew = 1, 1 }},
		"oversold": {`UPDATE cart_lines SET units = 11 WHERE sku = 'sku-01' AND units = 1`,
			func(b *Books) { b.Reserved, b.Oversold, b.TooMany = 11, 3, 10 }},
		"half a cart":                 {`UPDATE carts SET lines = 2`, func(b *Books) { b.Half = 2 }},
		"neither kept nor given back": {`DELETE FROM bank.charges WHERE state = 'REFUNDED'`, func(b *Books) { b.Refunded = 0 }},
		"sold and not paid":           {`DELETE FROM bank.charges WHERE state = 'CHARGED'`, func(b *Books) { b.Charged, b.Misplaced = 0, 1 }},
		"sold and refunded":           {`UPDATE bank.charges SET state = 'REFUNDED'`, func(b *Books) { b.Charged, b.Refunded, b.Misplaced = 0, 2, 1 }},
		"paid and not sold":           {`UPDATE bank.charges SET state = 'CHARGED'`, func(b *Books) { b.Charged, b.Refunded, b.Misplaced = 2, 0, 1 }},
		"paid too much":               {`UPDATE bank.charges SET cents = 401`, func(b *Books) { b.Misplaced = 1 }},
		"paid for no cart":            {`INSERT INTO bank.charges VALUES (gen_random_uuid(), 1, 'CHARGED')`, func(b *Books) { b.Charged, b.Misplaced = 2, 1 }},
		"stopped in the bank":         {`INSERT INTO bank.charges VALUES (gen_random_uuid(), 0, 'VOID')`, func(b *Books) { b.Refunded = 2 }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := prepared(t, ForUpdate, Load{SKUs: 2, Stock: 10, TTL: time.Minute})
			execute(t, p.db, goodBooks)
			execute(t, p.db, tc.fault)

			b, err := audit(t.Context(), p.db)

			require.NoError(t, err)
			want := good
			tc.seen(&want)
			require.Equal(t, want, b)
			require.Equal(t, want.Oversold+want.TooMany+want.TooFew == 0, b.Balanced())
		})
	}
}

func TestWhatIsUnsettledIsCounted(t *testing.T) {
	t.Parallel()
	p := prepared(t, ForUpdate, Load{SKUs: 2, Stock: 10, TTL: time.Minute})
	execute(t, p.db, goodBooks)
	execute(t, p.db, `UPDATE payments SET state = 'REFUND_DUE' WHERE cents = 500`)

	n, err := unsettled(t.Context(), p.db)

	require.NoError(t, err)
	require.Equal(t, 2, n)
}
