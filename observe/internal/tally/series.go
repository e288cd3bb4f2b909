package tally

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// Ages are the ages of what goes on now: leases that are held, or calls that wait.
type Ages struct {
	mu  sync.Mutex
	all map[*age]struct{} // guarded by mu
}

// age is one of them. It is in the context from its start to its end.
type age struct {
	since time.Time
	of    leaseName
	in    *Ages
}

// leaseName distinguishes leases, also those that were acquired together.
type leaseName struct {
	id    uuid.UUID
	token int64
}

func newAges() *Ages { return &Ages{all: make(map[*age]struct{})} }

func (g *Ages) begin(of leaseName) *age {
	a := &age{time.Now(), of, g}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all[a] = struct{}{}
	return a
}

func (a *age) end() {
	a.in.mu.Lock()
	defer a.in.mu.Unlock()
	delete(a.in.all, a)
}

// since looks through all; it is rarely called.
func (g *Ages) since(of leaseName) (since time.Time, there bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for a := range g.all {
		if a.of == of {
			return a.since, true
		}
	}
	return time.Time{}, false
}

// Count returns how many there are.
func (g *Ages) Count(time.Time) float64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return float64(len(g.all))
}

// Oldest returns the age of the oldest, in seconds, 0 if there is none.
func (g *Ages) Oldest(now time.Time) float64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	var oldest time.Duration
	for a := range g.all {
		oldest = max(oldest, now.Sub(a.since))
	}
	return oldest.Seconds()
}

// Failures are the resources of one type for which one thing fails again and again, with no success
// in between.
type Failures struct {
	some atomic.Bool // all is not empty: a success costs no lock where nothing fails

	needed int // how many successes in a row end the failures: more than come between two of them

	mu    sync.Mutex
	all   map[place]failing // guarded by mu; at most mostFailing
	swept time.Time         // guarded by mu
}

// place is a resource in a namespace.
type place struct{ namespace, resource string }

type failing struct {
	since, latest time.Time
	patience      time.Duration // of the latest caller
	successes     int           // since the latest
	by            string        // the label of the holder in the way; "": not known
}

const (
	mostFailing = 1000
	// A resource that nobody asks for any more is forgotten after that time, or twice the patience
	// of the last caller.
	quiet = 5 * time.Minute
)

func (f failing) over(now time.Time) bool { return now.Sub(f.latest) > max(quiet, 2*f.patience) }

// failed notes a failure that took that long.
func (f *Failures) failed(at place, took time.Duration) { f.failedBy(at, took, "") }

// failedBy begins anew if another holder was in the way before.
func (f *Failures) failedBy(at place, took time.Duration, by string) {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	r, known := f.all[at]
	switch {
	case !known && len(f.all) >= mostFailing && (now.Sub(f.swept) < time.Second || f.sweep(now) >= mostFailing):
		return
	case !known || r.over(now) || by != "" && r.by != "" && by != r.by:
		r.since = now
	}
	f.all[at] = failing{since: r.since, latest: now, patience: took, by: cmp.Or(by, r.by)}
	f.some.Store(true)
}

func (f *Failures) follow(at place, outcome, success string, failures ...string) {
	switch {
	case outcome == success:
		f.succeeded(at)
	case slices.Contains(failures, outcome):
		f.failed(at, 0)
	}
}

func (f *Failures) succeeded(at place) { f.success(at, f.needed) }

// success notes a success. As many as needed, in a row, end the failures.
func (f *Failures) success(at place, needed int) {
	if !f.some.Load() {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	r, known := f.all[at]
	if r.successes++; known && r.successes < needed {
		f.all[at] = r
		return
	}
	delete(f.all, at)
	f.some.Store(len(f.all) > 0)
}

// sweep forgets what is over, and returns how many are left. The caller holds mu.
func (f *Failures) sweep(now time.Time) int {
	for at, r := range f.all {
		if r.over(now) {
			delete(f.all, at)
		}
	}
	f.swept = now
	f.some.Store(len(f.all) > 0)
	return len(f.all)
}

// Longest returns the longest time from the first to the latest failure of a resource, in seconds.
// One failure alone is 0.
func (f *Failures) Longest(now time.Time) float64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sweep(now)
	var longest time.Duration
	for _, r := range f.all {
		longest = max(longest, r.latest.Sub(r.since))
	}
	return longest.Seconds()
}
