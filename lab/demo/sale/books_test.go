package sale

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/examples/inventory/shop"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
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
	Unsettled: 1,
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
		"a refund that is due":        {`UPDATE payments SET state = 'REFUND_DUE' WHERE cents = 500`, func(b *Books) { b.Unsettled = 2 }},
		"paid for no cart":            {`INSERT INTO bank.charges VALUES (gen_random_uuid(), 1, 'CHARGED')`, func(b *Books) { b.Charged, b.Misplaced = 2, 1 }},
		"stopped in the bank":         {`INSERT INTO bank.charges VALUES (gen_random_uuid(), 0, 'VOID')`, func(b *Books) { b.Refunded = 2 }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := prepared(t, ForUpdate, Load{SKUs: 2, Stock: 10, TTL: time.Minute})
			execute(t, p.DB, goodBooks)
			execute(t, p.DB, tc.fault)

			b, err := audit(t.Context(), p.DB)

			require.NoError(t, err)
			want := good
			tc.seen(&want)
			require.Equal(t, want, b)
			require.Equal(t, want.Oversold+want.TooMany+want.TooFew == 0, b.Balanced())
		})
	}
}

func fine(mode Mode) Result {
	r := Result{Mode: mode, Load: light, Told: Tally{Reserve: Outcomes{Done: 3}, Pay: Outcomes{Done: 1}, StoppedNot: 1},
		Closing: good, End: good}
	if mode == Lock {
		r.End.Oversold = 3
	}
	return r
}

func TestTheVerdictNamesEachProblem(t *testing.T) {
	t.Parallel()
	for _, mode := range Modes {
		require.Empty(t, fine(mode).Problems(), mode)
	}
	for says, tc := range map[string]struct {
		mode  Mode
		fault func(r *Result)
	}{
		"2 buyers were stopped instead of 1":    {Optimistic, func(r *Result) { r.Told.StoppedWrote++ }},
		"nothing was sold":                      {Lock, func(r *Result) { r.Told.Pay[Done] = 0 }},
		"4 carts are half reserved":             {Lock, func(r *Result) { r.Closing.Half = 4 }},
		"5 charges do not fit":                  {Lock, func(r *Result) { r.End.Misplaced = 5 }},
		"2 payments were begun, 1 kept and 2":   {Lock, func(r *Result) { r.End.Refunded = 2 }},
		"the control shows nothing":             {Lock, func(r *Result) { r.End.Oversold = 0 }},
		"closing: 0 units oversold, 2 too many": {ForUpdate, func(r *Result) { r.Closing.TooMany = 2 }},
		"end: 2 units oversold":                 {Fenced, func(r *Result) { r.End.Oversold = 2 }},
		"end: 0 units oversold, 0 too many, 2":  {Optimistic, func(r *Result) { r.End.TooFew = 2 }},
		"2 buyers were told reserved":           {ForUpdate, func(r *Result) { r.Told.Reserve[Done] = 2 }},
		"4 buyers were told reserved":           {Fenced, func(r *Result) { r.Told.Reserve[Done] = 4 }},
		"2 buyers were told sold":               {Fenced, func(r *Result) { r.Told.Pay[Done] = 2 }},
		"before they wrote have written":        {Fenced, func(r *Result) { r.Told.StoppedWrote, r.Told.StoppedNot = 1, 0 }},
	} {
		r := fine(tc.mode)
		tc.fault(&r)
		require.Contains(t, strings.Join(r.Problems(), "\n"), says)
	}
}

func TestADoubtfulOutcomeMayHaveARow(t *testing.T) {
	t.Parallel()
	r := fine(ForUpdate)
	r.Told.Reserve = Outcomes{Done: 2, Busy: 1}
	require.Empty(t, r.Problems())
	r.Mode = Fenced
	require.NotEmpty(t, r.Problems(), "a buyer that gave up behind the fence has written nothing")
	r.Told.Reserve = Outcomes{Done: 2, Unknown: 1}
	require.Empty(t, r.Problems())
}

func TestEachRequestEndsOnce(t *testing.T) {
	t.Parallel()
	stale := &fencedb.StaleError{Resource: "sku:1", Token: 41, Stored: 42}
	for name, tc := range map[string]struct {
		err  error
		want Outcome
	}{
		"done":      {nil, Done},
		"stale":     {errors.Join(stale, lease.ErrExpired, context.DeadlineExceeded), Refused},
		"over":      {fmt.Errorf("sell: %w", fencedb.ErrLeaseOver), Refused},
		"too long":  {fmt.Errorf("sell: %w", fencedb.ErrTooLong), Refused},
		"noticed":   {errors.Join(context.Canceled, lease.ErrExpired), Refused},
		"held":      {&lease.HeldError{}, Busy},
		"no time":   {context.DeadlineExceeded, Busy},
		"sold out":  {shop.ErrSoldOut, Over},
		"expired":   {shop.ErrExpired, Over},
		"refunded":  {errVoid, Over}, // before the charge came
		"in doubt":  {errors.Join(fencedb.ErrCommitUnknown, lease.ErrExpired), Unknown},
		"otherwise": {errors.New("no such table"), Failed},
	} {
		require.Equal(t, tc.want, outcomeOf(tc.err), name)
	}
}

func TestTheTableHasAColumnForEachSale(t *testing.T) {
	t.Parallel()
	r := fine(Lock)
	r.Told.Reserve[Done] = 1000
	r.Closing.TooMany, r.Closing.TooFew = 7, 2
	for n := range 100 {
		r.Told.Waits = append(r.Told.Waits, time.Duration(n+1)*time.Millisecond)
	}
	var out strings.Builder

	require.NoError(t, WriteTable(&out, []Result{fine(Fenced), r}))

	for _, line := range []string{
		`\s+fenced\s+lock only`,
		`carts reserved, each second\s+0\s+250`,
		`half of them within\s+-\s+51ms`,
		`99 of 100 within\s+-\s+100ms`,
		`sum, less start\s+\+0 -0\s+\+7 -2`,
		`units oversold\s+0\s+3`,
	} {
		require.Regexp(t, line, out.String())
	}
	for line := range strings.Lines(out.String()) {
		require.Len(t, line, strings.Index(out.String(), "\n")+1, "columns stand under their titles: %q", line)
	}
}
