package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/redis/go-redis/v9"
)

// warmUp is what processes get to start and connect before anything counts.
const warmUp = 500 * time.Millisecond

// result of one load.
type result struct {
	during    time.Duration
	grants    int
	overlaps  int       // grants before the holder before had begun to give back: two holders at once
	gaps      durations // from the call of a release to the return of the next acquisition
	waits     durations // of all that ended, and of those still going on at the end
	overtaken int       // the most grants to later callers that one waiter had to see before its own
	pings     durations // round trips of the waiting processes meanwhile
	scripts   durations // the same with a script that does nothing
	used      counters
}

// measure runs a load. Only what happens between the warm-up and the end counts; a wait counts from its begin.
func measure(ctx context.Context, client *redis.Client, j job, during time.Duration) (r result, err error) {
	c, err := hire(ctx, j)
	if err != nil {
		return r, err
	}
	defer func() {
		if err != nil {
			_, _ = c.dismiss()
		}
	}()
	if !pass(ctx, warmUp) {
		return r, context.Cause(ctx)
	}
	before, err := count(ctx, client)
	if err != nil {
		return r, err
	}
	from := time.Now()
	if !pass(ctx, during) {
		return r, context.Cause(ctx)
	}
	to := time.Now()
	after, err := count(ctx, client)
	if err != nil {
		return r, err
	}
	all, err := c.dismiss()
	c = nil
	r.during = to.Sub(from)
	r.judge(all.Turns, from.UnixNano(), to.UnixNano())
	r.compare(all.Trips, from.UnixNano(), to.UnixNano())
	own := requestsPerTrip*int64(len(r.pings)) + 1 // the first count
	r.used = counters{after.commands - before.commands - own, after.reads - before.reads - own}
	return r, err
}

// pass reports whether ctx lets that time pass.
func pass(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// compare takes the trips in a span of time.
func (r *result) compare(trips []trip, from, to int64) {
	for _, t := range trips {
		if t.At >= from && t.At < to {
			r.pings, r.scripts = append(r.pings, t.Ping), append(r.scripts, t.Script)
		}
	}
}

// judge looks at the turns that were granted, or waited for, in a span of time.
func (r *result) judge(turns []turn, from, to int64) {
	for n, t := range turns {
		if t.Granted > to {
			turns[n].Granted = 0
		}
		if turns[n].Granted == 0 {
			r.waits = append(r.waits, time.Duration(max(to-t.Called, 0)))
		}
	}
	turns = slices.DeleteFunc(turns, func(t turn) bool { return t.Granted == 0 })
	slices.SortFunc(turns, func(a, b turn) int { return cmp.Compare(a.Granted, b.Granted) })
	for n, t := range turns {
		if t.Granted < from {
			continue
		}
		r.grants++
		r.waits = append(r.waits, time.Duration(t.Granted-t.Called))
		r.overtaken = max(r.overtaken, overtaking(turns[:n], t))
		if n > 0 {
			gap := time.Duration(t.Granted - turns[n-1].Released)
			r.gaps = append(r.gaps, gap)
			if gap < 0 {
				r.overlaps++
			}
		}
	}
}

// overtaking counts the earlier grants to those who called later. The grants are in order.
func overtaking(earlier []turn, t turn) (n int) {
	for _, e := range slices.Backward(earlier) {
		if e.Granted < t.Called {
			return n
		}
		if e.Called > t.Called {
			n++
		}
	}
	return n
}

func (r *result) perSecond() float64 { return float64(r.grants) / r.during.Seconds() }
func (r *result) commands() float64  { return float64(r.used.commands) / float64(max(r.grants, 1)) }
func (r *result) reads() float64     { return float64(r.used.reads) / float64(max(r.grants, 1)) }

// probeEvery is how often each process makes its round trips: rare enough to be no load.
const probeEvery = 40 * time.Millisecond

// trip is a PING, and a script that does nothing behind it, from a process that waits: what one round trip costs those that the
// load consists of.
type trip struct {
	At     int64 // when the PING was sent, as the times of a turn
	Ping   time.Duration
	Script time.Duration
}

// requestsPerTrip is what a trip adds to the counters.
const requestsPerTrip = 2

// nothing is what a script costs before it does anything.
var nothing = redis.NewScript("return 1")

// probe makes trips until ctx ends.
func probe(ctx context.Context, addr string) (trips []trip, err error) {
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	if err := nothing.Load(ctx, client).Err(); err != nil {
		return nil, err
	}
	again := time.NewTicker(probeEvery)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return trips, nil
		case <-again.C:
		}
		t, err := makeTrip(ctx, client)
		switch {
		case ctx.Err() != nil:
			return trips, nil
		case err != nil:
			return nil, err
		}
		trips = append(trips, t)
	}
}

func makeTrip(ctx context.Context, client *redis.Client) (trip, error) {
	start := time.Now()
	if err := client.Ping(ctx).Err(); err != nil {
		return trip{}, err
	}
	pinged := time.Now()
	if err := nothing.EvalSha(ctx, client, nil).Err(); err != nil {
		return trip{}, err
	}
	return trip{At: start.UnixNano(), Ping: pinged.Sub(start), Script: time.Since(pinged)}, nil
}

// counters of a Redis since its start.
type counters struct {
	commands int64 // executed, those inside scripts included
	reads    int64 // of a socket: requests, except that a pipeline needs one for many
}

func count(ctx context.Context, client *redis.Client) (c counters, err error) {
	info, err := client.Info(ctx, "stats", "commandstats").Result()
	if err != nil {
		return c, err
	}
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch {
		case name == "total_reads_processed":
			c.reads, err = strconv.ParseInt(value, 10, 64)
		case strings.HasPrefix(name, "cmdstat_"):
			var calls int64
			_, err = fmt.Sscanf(value, "calls=%d,", &calls)
			c.commands += calls
		}
		if err != nil {
			return c, fmt.Errorf("INFO says %q: %w", line, err)
		}
	}
	return c, nil
}

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
