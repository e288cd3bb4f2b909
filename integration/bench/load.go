package main

import (
	"cmp"
	"context"
	"slices"
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
