package sale

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedb/fencedb/examples/inventory/shop"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
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

// Outcomes count how requests ended, each once.
type Outcomes struct {
	Done    int
	Refused int // by Postgres or in view of its limits: too late, nothing written
	Late    int // noticed by the buyer itself: too late, nothing written
	Busy    int // did not get its turn in time
	Over    int // sold out, or not reserved any more
	Unknown int // committed or not, nobody knows
	Failed  int // anything else
}

// Tally is what buyers were told.
type Tally struct {
	Reserve, Pay Outcomes
	LongPaid     int // of those paid: how many took longer than a lease lasts
	StoppedWrote int // stopped between reading and writing, and reserved afterwards
	StoppedNot   int // the same, and did not reserve
}

func (o *Outcomes) count(err error) {
	switch {
	case err == nil:
		o.Done++
	case errors.Is(err, fencedb.ErrCommitUnknown):
		o.Unknown++
	case errors.Is(err, fencedb.ErrStale), errors.Is(err, fencedb.ErrLeaseOver), errors.Is(err, fencedb.ErrBusy):
		o.Refused++
	case errors.Is(err, lease.ErrExpired), errors.Is(err, lease.ErrLost), errors.Is(err, lease.ErrUnreachable):
		o.Late++
	case errors.Is(err, lease.ErrHeld), errors.Is(err, context.DeadlineExceeded):
		o.Busy++
	case errors.Is(err, shop.ErrSoldOut), errors.Is(err, shop.ErrExpired), errors.Is(err, shop.ErrVoid):
		o.Over++
	default:
		o.Failed++
	}
}

func (o *Outcomes) add(p Outcomes) {
	o.Done += p.Done
	o.Refused += p.Refused
	o.Late += p.Late
	o.Busy += p.Busy
	o.Over += p.Over
	o.Unknown += p.Unknown
	o.Failed += p.Failed
}

func (t *Tally) add(u Tally) {
	t.Reserve.add(u.Reserve)
	t.Pay.add(u.Pay)
	t.LongPaid += u.LongPaid
	t.StoppedWrote += u.StoppedWrote
	t.StoppedNot += u.StoppedNot
}

// Problems says what is wrong with a sale, in sentences. A sale under a lock alone that has lost
// nothing is wrong too: then the load was too light to show anything.
func (r Result) Problems() (problems []string) {
	says := func(when bool, format string, args ...any) {
		if when {
			problems = append(problems, fmt.Sprintf("%s: ", r.Mode)+fmt.Sprintf(format, args...))
		}
	}
	stops := r.Told.StoppedWrote + r.Told.StoppedNot
	says(stops != r.Load.Pauses, "%d buyers were stopped instead of %d", stops, r.Load.Pauses)
	says(r.Told.Reserve.Done == 0 || r.Told.Pay.Done == 0, "nothing was sold")
	half := max(r.Closing.Half, r.Settled.Half)
	says(half > 0, "%d carts are half reserved", half)
	says(r.Settled.Misplaced > 0, "%d charges do not fit to the carts", r.Settled.Misplaced)
	settled := r.Settled
	says(settled.Payments != settled.Charged+settled.Refunded, "%d payments were begun, %d kept and %d given "+
		"back", settled.Payments, settled.Charged, settled.Refunded)
	if r.Mode == Lock {
		says(r.Load.Pauses > 0 && r.Emptied.Oversold == 0, "nothing was oversold, so the control shows nothing; "+
			"use more buyers or longer stops")
		return problems
	}
	for _, b := range []struct {
		when string
		Books
	}{{"closing", r.Closing}, {"emptied", r.Emptied}, {"settled", r.Settled}} {
		says(!b.Balanced(), "%s: %d units oversold, %d too many, %d too few", b.when, b.Oversold, b.TooMany, b.TooFew)
	}
	says(!r.told(r.Told.Reserve, r.Closing.Carts), "%d buyers were told reserved, and there are %d carts",
		r.Told.Reserve.Done, r.Closing.Carts)
	says(!r.told(r.Told.Pay, r.Closing.CartsSold), "%d buyers were told sold, and %d carts are",
		r.Told.Pay.Done, r.Closing.CartsSold)
	says(r.Mode == Fenced && r.Told.StoppedWrote > 0, "%d buyers who were stopped before they wrote have "+
		"written", r.Told.StoppedWrote)
	return problems
}

// told is whether there are as many rows as buyers know of. Behind the fence every error says
// whether the write committed, or that it is unknown; elsewhere a buyer that gave up while
// committing does not know.
func (r Result) told(o Outcomes, rows int64) bool {
	doubts := o.Unknown
	if r.Mode != Fenced {
		doubts += o.Busy
	}
	return int64(o.Done) <= rows && rows <= int64(o.Done+doubts)
}

// WriteTable prints sales side by side, one to a column.
func WriteTable(out io.Writer, results []Result) error {
	t := tabwriter.NewWriter(out, 0, 0, 3, ' ', tabwriter.AlignRight)
	for _, r := range rows {
		fmt.Fprintf(t, "%-34s", r.what)
		for _, result := range results {
			fmt.Fprint(t, "\t", r.of(result))
		}
		fmt.Fprintln(t, "\t")
	}
	return t.Flush()
}

type row struct {
	what string
	of   func(Result) string
}

var rows = []row{
	{"", func(r Result) string { return titles[r.Mode] }},
	{"carts reserved, each second", func(r Result) string { return count(int64(float64(r.Told.Reserve.Done) / r.Load.For.Seconds())) }},
	{"  half of them within", func(r Result) string { return quantile(r.Waits, 0.5) }},
	{"  99 of 100 within", func(r Result) string { return quantile(r.Waits, 0.99) }},
	{"  the slowest within", func(r Result) string { return quantile(r.Waits, 1) }},
	{"gave up waiting", func(r Result) string { return count(r.Told.Reserve.Busy + r.Told.Pay.Busy) }},
	{"stopped before writing: refused", func(r Result) string { return count(r.Told.StoppedNot) }},
	{"stopped before writing: wrote", func(r Result) string { return count(r.Told.StoppedWrote) }},
	{"late reservations refused", func(r Result) string { return count(r.Told.Reserve.Refused + r.Told.Reserve.Late) }},
	{"late payments refused", func(r Result) string { return count(r.Told.Pay.Refused + r.Told.Pay.Late) }},
	{"payments longer than a lease, sold", func(r Result) string { return count(r.Told.LongPaid) }},
	{"", empty},
	{"carts reserved", func(r Result) string { return count(r.Closing.Carts) }},
	{"carts sold", func(r Result) string { return count(r.Settled.CartsSold) }},
	{"reservations that ran out", func(r Result) string { return count(r.Closing.CartsExpired) }},
	{"payments begun", func(r Result) string { return count(r.Settled.Payments) }},
	{"  kept by the bank", func(r Result) string { return count(r.Settled.Charged) }},
	{"  given back", func(r Result) string { return count(r.Settled.Refunded) }},
	{"", empty},
	{"units: start", func(r Result) string { return count(r.Closing.Start) }},
	{"  sold", func(r Result) string { return count(r.Closing.Sold) }},
	{"  reserved", func(r Result) string { return count(r.Closing.Reserved) }},
	{"  left", func(r Result) string { return count(r.Closing.Remaining) }},
	{"  sum, less start", func(r Result) string { return sum(r.Closing) }},
	{"units oversold", func(r Result) string { return count(r.Emptied.Oversold) }},
	{"carts half reserved", func(r Result) string { return count(r.Closing.Half) }},
	{"charges that fit to no sold cart", func(r Result) string { return count(r.Settled.Misplaced) }},
}

// empty keeps the columns of the table going, which a line without cells would end.
func empty(Result) string { return "" }

var titles = map[Mode]string{Fenced: "fenced", Lock: "lock only", ForUpdate: "for update", Optimistic: "optimistic"}

func count[N int | int64](n N) string { return strconv.FormatInt(int64(n), 10) }

// sum is 0 if every SKU adds up, and otherwise by how much they do not, in both directions.
func sum(b Books) string {
	switch {
	case b.TooMany == 0 && b.TooFew == 0:
		return "0"
	case b.TooFew == 0:
		return fmt.Sprintf("+%d", b.TooMany)
	}
	return fmt.Sprintf("+%d -%d", b.TooMany, b.TooFew)
}

// quantile is the time that a part of all do not exceed: 0.5 gives the median.
func quantile(waits []time.Duration, part float64) string {
	if len(waits) == 0 {
		return "-"
	}
	sorted := slices.Sorted(slices.Values(waits))
	return sorted[min(int(part*float64(len(sorted))), len(sorted)-1)].Round(time.Millisecond).String()
}
