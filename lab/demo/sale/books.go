package sale

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"text/template"
	"time"

	"github.com/jackc/pgx/v5"
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

	Unsettled int64 // carts and refunds that a sweep has yet to see to
}

// Balanced is that every unit is accounted for.
func (b Books) Balanced() bool { return b.Oversold == 0 && b.TooMany == 0 && b.TooFew == 0 }

//go:embed books.sql
var selectBooks string

func audit(ctx context.Context, db *pgxpool.Pool) (Books, error) {
	rows, _ := db.Query(ctx, selectBooks)
	return pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Books])
}

func outcomeOf(err error) Outcome {
	switch {
	case err == nil:
		return Done
	case errors.Is(err, fencedb.ErrCommitUnknown):
		return Unknown
	case errors.Is(err, fencedb.ErrStale), errors.Is(err, fencedb.ErrLeaseOver), errors.Is(err, fencedb.ErrBusy),
		errors.Is(err, fencedb.ErrTooLong), errors.Is(err, lease.ErrExpired), errors.Is(err, lease.ErrLost),
		errors.Is(err, lease.ErrUnreachable):
		return Refused
	case errors.Is(err, lease.ErrHeld), errors.Is(err, context.DeadlineExceeded):
		return Busy
	case errors.Is(err, shop.ErrSoldOut), errors.Is(err, shop.ErrExpired), errors.Is(err, errVoid):
		return Over
	}
	return Failed
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
	says(r.Told.Reserve[Done] == 0 || r.Told.Pay[Done] == 0, "nothing was sold")
	half := max(r.Closing.Half, r.End.Half)
	says(half > 0, "%d carts are half reserved", half)
	says(r.End.Misplaced > 0, "%d charges do not fit to the carts", r.End.Misplaced)
	says(r.End.Payments != r.End.Charged+r.End.Refunded, "%d payments were begun, %d kept and %d given "+
		"back", r.End.Payments, r.End.Charged, r.End.Refunded)
	if r.Mode == Lock {
		says(r.Load.Pauses > 0 && r.End.Oversold == 0, "nothing was oversold, so the control shows nothing; "+
			"use more buyers or longer stops")
		return problems
	}
	for _, b := range []struct {
		when string
		Books
	}{{"closing", r.Closing}, {"end", r.End}} {
		says(!b.Balanced(), "%s: %d units oversold, %d too many, %d too few", b.when, b.Oversold, b.TooMany, b.TooFew)
	}
	says(!r.told(r.Told.Reserve, r.Closing.Carts), "%d buyers were told reserved, and there are %d carts",
		r.Told.Reserve[Done], r.Closing.Carts)
	says(!r.told(r.Told.Pay, r.Closing.CartsSold), "%d buyers were told sold, and %d carts are",
		r.Told.Pay[Done], r.Closing.CartsSold)
	says(r.Mode == Fenced && r.Told.StoppedWrote > 0, "%d buyers who were stopped before they wrote have "+
		"written", r.Told.StoppedWrote)
	return problems
}

// told is whether there are as many rows as buyers know of. Behind the fence every error says
// whether the write committed, or that it is unknown; elsewhere a buyer that gave up while
// committing does not know.
func (r Result) told(o Outcomes, rows int64) bool {
	doubts := o[Unknown]
	if r.Mode != Fenced {
		doubts += o[Busy]
	}
	return int64(o[Done]) <= rows && rows <= int64(o[Done]+doubts)
}

// table has a line for each row of the table: what it is, and its cell for each Result, with tabs
// between.
//
//go:embed table.txt
var tableText string

var table = template.Must(template.New("").Option("missingkey=zero").Funcs(template.FuncMap{
	"rate":   func(n int, over time.Duration) int { return int(float64(n) / over.Seconds()) },
	"within": quantile,
	"plus":   func(n, m int) int { return n + m },
}).Parse(tableText))

// WriteTable prints sales side by side, one to a column.
func WriteTable(out io.Writer, results []Result) error {
	t := tabwriter.NewWriter(out, 0, 0, 3, ' ', tabwriter.AlignRight)
	return errors.Join(table.Execute(t, results), t.Flush())
}

// quantile is the time that a part of all do not exceed: 0.5 gives the median.
func quantile(waits []time.Duration, part float64) string {
	if len(waits) == 0 {
		return "-"
	}
	sorted := slices.Sorted(slices.Values(waits))
	return sorted[min(int(part*float64(len(sorted))), len(sorted)-1)].Round(time.Millisecond).String()
}
