package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/fencedb/fencedb/internal/worker"
)

// warmUp is what processes get to start and connect before anything counts.
const warmUp = 500 * time.Millisecond

// result of one load.
type result struct {
	grants    int
	gaps      []time.Duration // from a release's call to the next acquisition's return; below 0: two holders
	waits     []time.Duration // of all that ended, and of those still going on at the end
	overtaken int             // the most grants to later callers that one waiter had to see before its own
	inTurn    time.Duration   // the longest that one would have waited, had all been served in turn
	pings     []time.Duration // round trips of the waiting processes meanwhile

	perSecond       float64 // grants
	commands, reads float64 // of Redis, for each grant
}

// measure runs a load. Only what happens between the warm-up and the end counts; a wait counts from
// its begin.
func measure(ctx context.Context, client *redis.Client, j job, during time.Duration) (r result, err error) {
	c, err := hire(ctx, j)
	if err != nil {
		return r, err
	}
	from, fromErr := readAfter(ctx, client, warmUp)
	to, toErr := readAfter(ctx, client, during)
	all, err := c.dismiss()
	if err := errors.Join(fromErr, toErr, err); err != nil {
		return r, err
	}
	r.judge(all.Turns, j.Waiters, from.at.UnixNano(), to.at.UnixNano())
	for _, p := range all.Pings {
		if p.At >= from.at.UnixNano() && p.At < to.at.UnixNano() {
			r.pings = append(r.pings, p.Took)
		}
	}
	own := float64(len(r.pings) + requestsPerReading)
	grants := float64(max(r.grants, 1))
	r.commands, r.reads = (to.commands-from.commands-own)/grants, (to.reads-from.reads-own)/grants
	r.perSecond = float64(r.grants) / to.at.Sub(from.at).Seconds()
	return r, nil
}

// ofFIFO is the longest wait as a multiple of the longest that one would have waited, had the same
// turns been served in the order of the calls. The mean turn would not do: who waits while the
// machine stalls meets all of it, in whatever order.
func (r result) ofFIFO() float64 { return quantile(r.waits, 1).Seconds() / r.inTurn.Seconds() }

// judge looks at the turns of so many waiters that were granted, or waited for, in a span of time.
func (r *result) judge(turns []turn, waiters int, from, to int64) {
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
			r.gaps = append(r.gaps, time.Duration(t.Granted-turns[n-1].Released))
		}
		if n >= waiters { // who gives back and calls again is served when all others have been
			r.inTurn = max(r.inTurn, time.Duration(t.Granted-turns[n-waiters].Released))
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

// pingEvery is how often each process makes a round trip: rare enough to be no load.
const pingEvery = 40 * time.Millisecond

// ping is a round trip of a process that waits: what one costs those that the load consists of.
type ping struct {
	At   int64 // when it was sent, as the times of a turn
	Took time.Duration
}

// requestsPerReading is what a reading adds to the counters.
const requestsPerReading = 2

// pings sends PINGs until ctx ends.
func pings(ctx context.Context, addr string) (all []ping, err error) {
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	for worker.Sleep(ctx, pingEvery) == nil {
		start := time.Now()
		switch err := client.Ping(ctx).Err(); {
		case ctx.Err() != nil:
			return all, nil
		case err != nil:
			return nil, err
		}
		all = append(all, ping{start.UnixNano(), time.Since(start)})
	}
	return all, nil
}

// reading is what Redis has done by some moment.
type reading struct {
	at       time.Time
	commands float64 // executed, those inside scripts included
	reads    float64 // of a socket: requests, except that a pipeline needs one for many
}

// readAfter lets that time pass before it reads.
func readAfter(ctx context.Context, client *redis.Client, d time.Duration) (reading, error) {
	if err := worker.Sleep(ctx, d); err != nil {
		return reading{}, err
	}
	commands, commandsErr := info(ctx, client, "commandstats", "cmdstat_*")
	reads, readsErr := info(ctx, client, "stats", "total_reads_processed")
	return reading{time.Now(), commands, reads}, errors.Join(commandsErr, readsErr)
}

// info adds up the numbers in a section of INFO whose names match a pattern. Of a command it is the
// number of calls.
func info(ctx context.Context, client *redis.Client, section, pattern string) (sum float64, err error) {
	sections, err := client.InfoMap(ctx, section).Result()
	for _, numbers := range sections {
		for name, value := range numbers {
			if fits, _ := path.Match(pattern, name); !fits {
				continue
			}
			value, _, _ := strings.Cut(strings.TrimPrefix(value, "calls="), ",")
			n, parseErr := strconv.ParseFloat(value, 64)
			sum, err = sum+n, errors.Join(err, parseErr)
		}
	}
	return sum, err
}

// quantile returns the value that a part of all do not exceed: of 0.5 the median; 0 if there are
// none.
func quantile[T cmp.Ordered](values []T, part float64) (q T) {
	if len(values) > 0 {
		q = slices.Sorted(slices.Values(values))[min(int(part*float64(len(values))), len(values)-1)]
	}
	return q
}

// inTurns lets entrants take turns, so that what the machine does hits all of them, and returns the
// rounds of each.
func inTurns[E, R any](rounds int, entrants []E, round func(E) (R, error)) ([][]R, error) {
	all := make([][]R, len(entrants))
	for range rounds {
		for n, e := range entrants {
			r, err := round(e)
			if err != nil {
				return nil, err
			}
			all[n] = append(all[n], r)
		}
	}
	return all, nil
}

// over is the quantile of what each round says.
func over[R any, T cmp.Ordered](rounds []R, part float64, of func(R) T) T {
	var values []T
	for _, r := range rounds {
		values = append(values, of(r))
	}
	return quantile(values, part)
}

// table writes columns of equal width. Each row is a line of words with tabs between.
func table(w io.Writer, rows ...string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, err := fmt.Fprint(t, strings.Join(rows, "\t\n")+"\t\n")
	return errors.Join(err, t.Flush())
}

func micro(d time.Duration) string { return d.Round(time.Microsecond).String() }

func milli(d time.Duration) string { return d.Round(100 * time.Microsecond).String() }

// processes is how many share the waiters.
const processes = 4

// crew is a load under way.
type crew []*worker.Process[record]

// hire starts the processes of a job and deals its waiters out to them. Those that did start are
// dismissed on error.
func hire(ctx context.Context, j job) (crew, error) {
	var c crew
	for n := range processes {
		part := j
		part.Waiters = (j.Waiters + n) / processes
		p, err := worker.Start[record](ctx, kind, part)
		if err != nil {
			_, _ = c.dismiss()
			return nil, err
		}
		c = append(c, p)
	}
	return c, nil
}

// dismiss ends the load and returns the records of all processes as one.
func (c crew) dismiss() (all record, err error) {
	for _, p := range c {
		p.EndOrders()
	}
	for _, p := range c {
		one, failed := p.Next(context.Background())
		p.Kill()
		err = errors.Join(err, failed)
		all.Turns, all.Pings = append(all.Turns, one.Turns...), append(all.Pings, one.Pings...)
	}
	return all, err
}

// kind is that of the workers.
const kind = "bench"

// job is what one process does: so many goroutines that wait for the lock, work, give it back and
// begin again.
type job struct {
	Lock     string
	Addr     string // of Redis
	Resource string
	Waiters  int
	Work     time.Duration
}

// turn is one round of one waiter, in nanoseconds of the machine's clock, which all processes
// share. Granted and Released are 0 for a waiter that still waited when the run ended.
type turn struct {
	Called   int64 // before it asked for the lock
	Granted  int64 // after it got it
	Released int64 // before it gave it back
}

// record is what a process, or a crew, has done.
type record struct {
	Turns []turn
	Pings []ping
}

// serve is the life of a process: it does the job until its orders end, and tells the record.
func serve(ctx context.Context, self *worker.Self) error {
	var j job
	if err := self.Config(&j); err != nil {
		return err
	}
	lock, err := locks[j.Lock](j.Addr)
	if err != nil {
		return err
	}
	self.Tell(record{}) // ready
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		var none any
		_ = self.Order(&none)
		stop()
	}()
	var done record
	each := make([][]turn, j.Waiters)
	all, ctx := errgroup.WithContext(ctx)
	for n := range each {
		all.Go(func() (err error) {
			each[n], err = wait(ctx, lock, j.Resource, j.Work)
			return err
		})
	}
	all.Go(func() (err error) {
		done.Pings, err = pings(ctx, j.Addr)
		return err
	})
	if err := all.Wait(); err != nil {
		return fmt.Errorf("%s: %w", j.Lock, err)
	}
	done.Turns = slices.Concat(each...)
	self.Tell(done)
	return nil
}

// wait is one waiter.
func wait(ctx context.Context, lock acquire, resource string, work time.Duration) (turns []turn, err error) {
	for {
		t := turn{Called: time.Now().UnixNano()}
		release, err := lock(ctx, resource)
		switch {
		case err != nil && ctx.Err() != nil:
			return append(turns, t), nil
		case err != nil:
			return nil, err
		}
		t.Granted = time.Now().UnixNano()
		time.Sleep(work)
		t.Released = time.Now().UnixNano()
		turns = append(turns, t)
		if err := release(); err != nil && ctx.Err() == nil { // at the end nobody waits for it
			return nil, err
		}
	}
}
