// Package tally knows what goes on now in one process and which resources fail again and again.
// observe/prom and observe/otel share it: each adds its own series to a [Row].
package tally

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
)

// What can fail for one resource again and again. For writes, the outcomes and StaleHeld.
const (
	Held        = "held"        // acquisitions, because another holds it
	HeldByOne   = "held_by_one" // acquisitions, each time because of the same holder
	Unreachable = "unreachable" // acquisitions, because Redis does not answer
	Refused     = "refused"     // acquisitions, because Redis refuses
	NotSealed   = "not_sealed"  // acquisitions, because the data store does not seal
	Failed      = "error"       // acquisitions, otherwise
	NotRenewed  = "not_renewed" // renewals
	Lost        = "lost"        // leases: each ends before it is released
	NotOwned    = "not_owned"   // releases: each finds the lease gone, taken or revoked
	Raised      = "raised"      // last tokens: they have to be raised

	// Entered is the outcome of an Enter that succeeded.
	Entered = "entered"

	StaleHeld = "stale_held" // writes that are refused as stale although this process holds the lease
)

// LeaseFailures and WriteFailures are all of them.
var (
	LeaseFailures = []string{Held, HeldByOne, Unreachable, Refused, NotSealed, Failed, NotRenewed, Lost, NotOwned, Raised}
	WriteFailures = append(slices.DeleteFunc(fencedb.Outcomes(), func(word string) bool { return word == "committed" }), StaleHeld)
)

// Buckets in seconds. A grant takes a round trip to Redis, a write takes a few to Postgres; waiting
// and holding take as long as the work.
var (
	RequestBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
	WorkBuckets    = []float64{.001, .01, .05, .1, .5, 1, 5, 10, 30, 60, 300, 900, 3600}
)

// MaxTypes bounds the types of resources, unless they are listed, and the namespaces.
const MaxTypes = 50

// notOwned are the outcomes of renewals and releases that came after the end of their lease.
var notOwned = []string{"over", "lost", "gone", "taken", "revoked"}

// types are the types of resources that have rows of their own; none: the first MaxTypes.
type types []string

// other is the name for all above the limit.
const other = "other"

// of returns the type of a resource.
func (t types) of(resource string) string {
	name, _, typed := strings.Cut(resource, ":")
	if len(t) > 0 {
		typed = slices.Contains(t, name)
	}
	if !typed || name == "" {
		return other
	}
	return name
}

// Row is what is known of one type of resources, with the series S of prom or otel. Failing has all
// words and is never changed.
type Row[S any] struct {
	Type          string
	Held, Waiting *Ages // of leases
	Failing       map[string]*Failures
	Series        S
}

// Tally has the rows of one process. L are the series of leases of a type, W those of writes. It is
// safe for concurrent use.
type Tally[L, W any] struct {
	types  types
	leases *Table[*Row[L]]
	writes *Table[*Row[W]]
}

// New makes a tally that calls leases and writes once for each type, to make its series. The types
// that are listed are the only ones; without a list, the first MaxTypes are.
func New[L, W any](listed []string, leases func(*Row[L]) L, writes func(*Row[W]) W) *Tally[L, W] {
	limit := MaxTypes
	if len(listed) > 0 {
		limit = math.MaxInt // the list is the limit
	}
	return &Tally[L, W]{
		types:  listed,
		leases: NewTable(limit, rows(LeaseFailures, leases)),
		writes: NewTable(limit, rows(WriteFailures, writes)),
	}
}

func rows[S any](words []string, series func(*Row[S]) S) func(name string) *Row[S] {
	return func(name string) *Row[S] {
		r := &Row[S]{Type: name, Held: newAges(), Waiting: newAges(), Failing: make(map[string]*Failures, len(words))}
		for _, word := range words {
			r.Failing[word] = &Failures{all: make(map[place]failing)}
		}
		if raised := r.Failing[Raised]; raised != nil {
			raised.needed = 3 // one comes before each raise, and one after it
		}
		r.Series = series(r)
		return r
	}
}

// Lease returns the row of an operation. Permits have their kind in front.
func (t *Tally[L, W]) Lease(s lease.TraceStart) *Row[L] {
	name := t.types.of(s.Resource)
	if s.Kind != "lease" {
		name = s.Kind + "/" + name
	}
	return t.leases.Row(name)
}

// Write returns the row of a write to that resource.
func (t *Tally[L, W]) Write(resource string) *Row[W] { return t.writes.Row(t.types.of(resource)) }

// Rows calls leases and writes for each of their rows.
func (t *Tally[L, W]) Rows(leases func(*Row[L]), writes func(*Row[W])) {
	t.leases.each(leases)
	t.writes.each(writes)
}

// ageKey is the key in a context of the age that the operation has begun.
type ageKey struct {
	tally any
	op    lease.Op
}

// LeaseStart notes what goes on from now.
func (t *Tally[L, W]) LeaseStart(ctx context.Context, s lease.TraceStart) context.Context {
	switch s.Op {
	case lease.OpWait:
		return context.WithValue(ctx, ageKey{t, s.Op}, t.Lease(s).Waiting.begin(leaseName{}))
	case lease.OpHold:
		row, at := t.Lease(s), place{s.Namespace, s.Resource}
		row.Failing[Held].succeeded(at)
		row.Failing[HeldByOne].succeeded(at)
		return context.WithValue(ctx, ageKey{t, s.Op}, row.Held.begin(leaseName{s.LeaseID, s.Token}))
	}
	return ctx
}

// LeaseEnd notes what has ended, and what has failed. It returns false for a renewal that was under
// way when its holder released: that does not count.
func (t *Tally[L, W]) LeaseEnd(ctx context.Context, e lease.TraceEnd) bool {
	if e.Op == lease.OpExtend && errors.Is(e.Err, lease.ErrReleased) {
		return false
	}
	if a, ok := ctx.Value(ageKey{t, e.Op}).(*age); ok {
		a.end()
	}
	failing, outcome, at := t.Lease(e.TraceStart).Failing, e.Outcome(), place{e.Namespace, e.Resource}
	switch e.Op {
	case lease.OpAcquire:
		t.acquired(failing, outcome, e)
	case lease.OpHold:
		switch outcome {
		case "released":
			failing[Lost].succeeded(at)
		case "expired", "unreachable", "lost":
			failing[Lost].failed(at, e.Took) // the next one may come after as long a hold
		}
	case lease.OpExtend:
		failing[NotRenewed].follow(at, outcome, "extended", "unreachable", "error")
		failing[NotOwned].follow(at, outcome, "", notOwned...)
	case lease.OpRelease:
		failing[NotOwned].follow(at, outcome, "released", notOwned...)
	case lease.OpRaise: // once for each resource is what a loss of data costs
		failing[Raised].follow(at, outcome, "", "done")
	}
	return true
}

// FoundNotOwned reports whether a renewal or a release came when the lease was over, gone, taken or
// revoked.
func FoundNotOwned(e lease.TraceEnd) bool {
	return (e.Op == lease.OpExtend || e.Op == lease.OpRelease) && slices.Contains(notOwned, e.Outcome())
}

// FoundTaken reports whether an acquisition found the resource taken and did not wait; one that
// waits has an OpWait.
func FoundTaken(e lease.TraceEnd) bool {
	by := (*lease.HeldError)(nil)
	return e.Op == lease.OpAcquire && errors.As(e.Err, &by) && by.Cause == nil
}

func (t *Tally[L, W]) acquired(failing map[string]*Failures, outcome string, e lease.TraceEnd) {
	at := place{e.Namespace, e.Resource}
	failures := []string{Unreachable, Refused, NotSealed, Failed}
	if slices.Contains(failures, outcome) {
		failing[outcome].failed(at, e.Took)
		return
	}
	if outcome == "cancelled" { // which says nothing about the resource
		return
	}
	for _, word := range failures {
		failing[word].succeeded(at)
	}
	by := (*lease.HeldError)(nil)
	if !errors.As(e.Err, &by) {
		failing[Raised].succeeded(at)
		return
	}
	if !e.Lead { // followers are refused for as long as somebody leads
		held := e.TraceStart
		held.Resource = by.Resource // of several
		row, at := t.Lease(held), place{held.Namespace, by.Resource}
		row.Failing[Held].failed(at, e.Took)
		row.Failing[HeldByOne].failedBy(at, e.Took, by.Holder)
	}
}

// WriteEnd notes what has failed. It returns the row of the lease if another overtook it while this
// process held it, otherwise nil. A transaction of the application counts at [fencedb.OpEnter], and
// once more if its outcome is asked for.
func (t *Tally[L, W]) WriteEnd(e fencedb.TraceEnd) (overtaken *Row[L]) {
	if e.Op == fencedb.OpCommit { // counts with its write
		return nil
	}
	result := e.Outcome()
	if result == "committed" {
		for _, g := range e.Grants {
			t.wrote(g.Resource(), e.Op == fencedb.OpEnter)
		}
		return nil
	}
	about, stored := e.Subject()
	at := place{resource: about.Resource()}
	failing := t.Write(at.resource).Failing
	failing[result].failed(at, e.Took)
	if result != "stale" {
		return nil
	}
	leases, known := t.leases.known(t.types.of(at.resource))
	if !known {
		leases, known = t.leases.known(other)
	}
	if !known {
		return nil
	}
	since, held := leases.Held.since(leaseName{about.LeaseID(), about.Token()})
	if held {
		failing[StaleHeld].failed(at, e.Took)
	}
	if held && issuedSince(since, about.Token(), stored) {
		return leases
	}
	return nil
}

// issuedSince reports whether the stored token was issued to another while the lease with token was
// held. Tokens are times in microseconds. A stored token later than now is from before Redis went
// back; one directly after token was entered by a role that takes over.
func issuedSince(since time.Time, token, stored int64) bool {
	after := time.Duration(stored-token) * time.Microsecond
	return after >= time.Millisecond && after <= time.Since(since)+time.Second
}

// wrote notes a success. Enter ends failures to enter; other failures end at the second Enter
// without a failure in between.
func (t *Tally[L, W]) wrote(resource string, onlyEntered bool) {
	for word, f := range t.Write(resource).Failing {
		needed := f.needed
		if onlyEntered {
			needed = 2
			if slices.Contains([]string{"stale", StaleHeld, "busy", "unsealed", "invalid_grant"}, word) {
				needed = 1
			}
		}
		f.success(place{resource: resource}, needed)
	}
}

// Table has a row for each value of a label, up to a limit. It creates rows when they are needed
// and keeps them.
type Table[R any] struct {
	limit int
	make  func(value string) R

	mu   sync.RWMutex
	rows map[string]R // guarded by mu; at most limit, and other
}

// NewTable makes a table whose rows make makes.
func NewTable[R any](limit int, make func(value string) R) *Table[R] {
	return &Table[R]{limit: limit, make: make, rows: map[string]R{}}
}

// Row returns that of value, or of all values above the limit.
func (t *Table[R]) Row(value string) R {
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

func (t *Table[R]) known(value string) (R, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	r, ok := t.rows[value]
	return r, ok
}

func (t *Table[R]) each(call func(R)) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, r := range t.rows {
		call(r)
	}
}
