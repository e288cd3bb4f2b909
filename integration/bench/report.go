package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

type durations []time.Duration

// at returns the value that a part of all do not exceed: at(0.5) is the median; 0 if there are none.
func (d durations) at(part float64) time.Duration { return quantile(d, part) }

func quantile[T int64 | float64 | time.Duration](values []T, part float64) T {
	if len(values) == 0 {
		var none T
		return none
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(int(part*float64(len(sorted))), len(sorted)-1)]
}

// median of what each round says.
func median[T int64 | float64 | time.Duration](rounds []result, of func(*result) T) T {
	var values []T
	for n := range rounds {
		values = append(values, of(&rounds[n]))
	}
	return quantile(values, 0.5)
}

func longest(rounds []result) (d time.Duration) {
	for _, r := range rounds {
		d = max(d, r.waits.at(1))
	}
	return d
}

// table writes columns of equal width. Each row is a line of words with tabs between.
func table(w io.Writer, rows ...string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, row := range rows {
		if _, err := fmt.Fprintln(t, row+"\t"); err != nil {
			return err
		}
	}
	return t.Flush()
}

func micro(d time.Duration) string { return d.Round(time.Microsecond).String() }

func milli(d time.Duration) string { return d.Round(100 * time.Microsecond).String() }
