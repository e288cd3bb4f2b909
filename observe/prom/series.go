package prom

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// other is the label for all values above the limit.
const other = "other"

// table has a row for each value of a label, up to a limit. It creates rows when they are needed
// and keeps them.
type table[R any] struct {
	limit int
	make  func(value string) R

	mu   sync.RWMutex
	rows map[string]R // guarded by mu; at most limit, and other
}

func newTable[R any](limit int, make func(value string) R) *table[R] {
	return &table[R]{limit: limit, make: make, rows: map[string]R{}}
}

func (t *table[R]) row(value string) R {
	if r, ok := t.known(value); ok {
		return r
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.rows[value]; !ok && len(t.rows) >= t.limit {
		value = other
	}
	if _, ok := t.rows[value]; !ok {
		t.rows[value] = t.make(value)
	}
	return t.rows[value]
}

func (t *table[R]) known(value string) (R, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	r, ok := t.rows[value]
	return r, ok
}

// typeOf returns the type of a resource.
func (c Config) typeOf(resource string) string {
	name, _, typed := strings.Cut(resource, ":")
	if len(c.Types) > 0 {
		typed = slices.Contains(c.Types, name)
	}
	if !typed || name == "" {
		return other
	}
	return name
}

// ages are what goes on now: leases that are held, or calls that wait.
type ages struct {
	mu  sync.Mutex
	all map[*age]struct{} // guarded by mu
}

// age is one of them. It is in the context from its start to its end.
type age struct {
	since time.Time
	of    leaseName
	in    *ages
}

// leaseName tells leases apart, those too that were acquired together.
type leaseName struct {
	id    uuid.UUID
	token int64
}

func newAges() *ages { return &ages{all: make(map[*age]struct{})} }

func (g *ages) begin(of leaseName) *age {
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

// has looks through all, for what is rare.
func (g *ages) has(of leaseName) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for a := range g.all {
		if a.of == of {
			return true
		}
	}
	return false
}

func (g *ages) count(time.Time) float64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return float64(len(g.all))
}

func (g *ages) oldest(now time.Time) float64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	var oldest time.Duration
	for a := range g.all {
		oldest = max(oldest, now.Sub(a.since))
	}
	return oldest.Seconds()
}

// failures are the resources of one type for which one thing fails again and again, with no success
// in between. A rate over all resources of a type hides one of them that is stuck among many that
// are not; the age of its failures does not.
type failures struct {
	some atomic.Bool // all is not empty: a success costs no lock where nothing fails

	needed int // how many successes in a row end it: more than come between two failures

	mu    sync.Mutex
	all   map[place]failing // guarded by mu; at most mostFailing
	swept time.Time         // guarded by mu
}

// place is a resource; those of the same name in several namespaces are told apart.
type place struct{ namespace, resource string }

type failing struct {
	since, latest time.Time
	patience      time.Duration // of the latest caller
	successes     int           // since the latest
}

const (
	mostFailing = 1000
	// A resource that nobody asks for any more is forgotten after that time, or twice the patience
	// of the last caller.
	quiet = 5 * time.Minute
)

func (f failing) over(now time.Time) bool { return now.Sub(f.latest) > max(quiet, 2*f.patience) }

// failed notes a failure that took that long.
func (f *failures) failed(at place, took time.Duration) {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	r, known := f.all[at]
	switch {
	case !known && len(f.all) >= mostFailing && (now.Sub(f.swept) < time.Second || f.sweep(now) >= mostFailing):
		return
	case !known || r.over(now):
		r.since = now
	}
	f.all[at] = failing{since: r.since, latest: now, patience: took}
	f.some.Store(true)
}

// follow notes a success, one of the failures, or nothing.
func (f *failures) follow(at place, outcome, success string, failures ...string) {
	switch {
	case outcome == success:
		f.succeeded(at)
	case slices.Contains(failures, outcome):
		f.failed(at, 0)
	}
}

func (f *failures) succeeded(at place) { f.success(at, f.needed) }

// success is succeeded where so many in a row are needed.
func (f *failures) success(at place, needed int) {
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
func (f *failures) sweep(now time.Time) int {
	for at, r := range f.all {
		if r.over(now) {
			delete(f.all, at)
		}
	}
	f.swept = now
	f.some.Store(len(f.all) > 0)
	return len(f.all)
}

// longest is the time from the first to the latest failure of the resource for which that is
// longest, in seconds. One failure alone is 0.
func (f *failures) longest(now time.Time) float64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sweep(now)
	var longest time.Duration
	for _, r := range f.all {
		longest = max(longest, r.latest.Sub(r.since))
	}
	return longest.Seconds()
}
