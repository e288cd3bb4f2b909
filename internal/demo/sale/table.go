package sale

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// WriteTable prints sales side by side, one to a column.
func WriteTable(out io.Writer, results []Result) error {
	t := tabwriter.NewWriter(out, 0, 0, 3, ' ', tabwriter.AlignRight)
	for _, r := range rows {
		fmt.Fprintf(t, "%-*s", labelWidth, r.what)
		for _, result := range results {
			fmt.Fprint(t, "\t", r.of(result))
		}
		fmt.Fprintln(t, "\t")
	}
	return t.Flush()
}

const labelWidth = 34

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

const barWidth = 24

// Bar shows on a terminal how far a sale of that length is, in one line that it writes over.
func Bar(out io.Writer, mode Mode, length time.Duration) Progress {
	return func(gone time.Duration, told Tally) {
		full := int(barWidth * min(gone, length) / length)
		fmt.Fprintf(out, "\r%-10s [%s%s] %4.0f s  %d reserved, %d sold, %d refused \x1b[K", titles[mode],
			strings.Repeat("#", full), strings.Repeat(".", barWidth-full), gone.Seconds(),
			told.Reserve.Done, told.Pay.Done, told.Reserve.Refused+told.Reserve.Late+told.Pay.Refused+told.Pay.Late)
	}
}
