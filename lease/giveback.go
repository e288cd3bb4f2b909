package lease

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fencedb/fencedb/internal/protocol"
)

const (
	// releaseTime is how long Release waits for an outcome. The release goes on in the background.
	releaseTime = 5 * time.Second

	// minGiveBack is how long a release is tried at least. It is for a TTL that is too short for an
	// answer.
	minGiveBack = 100 * time.Millisecond
)

// registry lists what an issuer has to end: calls that may be granted something, leases that are
// held, and leases and waiters that have to be given back to Redis. However long the lists are, its
// mutex is held for a short time only, except at the beginning of Close.
//
// Lock order: the mu of a lease before that of the registry.
type registry struct {
	redis *protocol.Sender
	lasts time.Duration // how long anything that has to be given back lasts in Redis at most

	mu     sync.Mutex
	closed bool                   // Close has begun; guarded by mu
	calls  map[*openCall]struct{} // guarded by mu
	leases map[*Lease]struct{}    // guarded by mu
	ring   pending                // the head of a ring of those that have not expired, the oldest first; guarded by mu
	many   int                    // how many are in the ring; guarded by mu
	open   int                    // how many in the ring are not finished; guarded by mu
	first  []*pending             // these wait a millisecond for a first attempt together; guarded by mu
	fewer  chan struct{}          // closed when nothing is left to end; nil until somebody waits; guarded by mu
}

func newRegistry(redis *protocol.Sender, ttl time.Duration) *registry {
	r := &registry{redis: redis, lasts: max(ttl, minGiveBack),
		calls: make(map[*openCall]struct{}), leases: make(map[*Lease]struct{})}
	r.ring.before, r.ring.after = &r.ring, &r.ring
	return r
}

// openCall is a call that may be granted something.
type openCall struct{ cancel context.CancelCauseFunc }

// begin lists a call until ended is called for it. It returns the context of the call, which ends
// with ctx or when Close begins.
func (r *registry) begin(ctx context.Context, call *openCall) (context.Context, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, ErrClosed
	}
	ctx, call.cancel = context.WithCancelCause(ctx)
	r.calls[call] = struct{}{}
	return ctx, nil
}

func (r *registry) ended(call *openCall) {
	call.cancel(nil)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.calls, call)
	r.lessened()
}

// close ends the context of every call, and refuses new calls. It returns false if it was called
// before.
func (r *registry) close() (first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	first, r.closed = !r.closed, true
	for call := range r.calls {
		call.cancel(ErrClosed)
	}
	return first
}

// wait returns true when no call and no lease is left, and everything was given back or has expired
// in Redis. It returns false if ctx ends before. It does not wait for a request about a lease that
// has expired.
func (r *registry) wait(ctx context.Context) bool {
	for {
		nothing, expires := r.nothing()
		if nothing == nil {
			return true
		}
		timer := time.NewTimer(time.Until(expires))
		select {
		case <-nothing:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return false
		}
		timer.Stop()
	}
}

// nothing returns a channel that is closed when nothing is left to end, nil if that is so now; and
// a time before which nothing pending expires.
func (r *registry) nothing() (closed <-chan struct{}, expires time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forgetExpired()
	if r.done() {
		return nil, expires
	}
	if r.fewer == nil {
		r.fewer = make(chan struct{})
	}
	if r.many == 0 {
		return r.fewer, time.Now().Add(time.Hour)
	}
	return r.fewer, r.ring.after.until
}

// done reports whether there is no call, no lease, and nothing that has to be given back. The
// caller holds mu.
func (r *registry) done() bool { return len(r.calls) == 0 && len(r.leases) == 0 && r.open == 0 }

// lessened is called after something was removed. The caller holds mu.
func (r *registry) lessened() {
	if r.fewer != nil && r.done() {
		close(r.fewer)
		r.fewer = nil
	}
}

func (r *registry) closing() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.closed
}

// hold lists a lease, and letGo removes it when it ends. The caller holds the lease's mu.
func (r *registry) hold(l *Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leases[l] = struct{}{}
}

func (r *registry) letGo(l *Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.leases, l)
	r.lessened()
}

func (r *registry) allHeld() []*Lease {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.leases))
}

// mostBlocked is how many resources an error names at most. With a bound, Close returns soon after
// its context has ended, however many are left.
const mostBlocked = 100

// left is the error of a Close that stops waiting because of cause. It names the resources that may
// still be blocked, or reports that calls have not ended; nil if nothing is left.
func (r *registry) left(cause error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forgetExpired()
	latest := make(map[string]Blocked) // by resource
	looked, now := 0, time.Now()
	for d := r.ring.after; d != &r.ring && looked < mostBlocked; d = d.after {
		looked++
		for _, resource := range d.resources {
			latest[resource] = Blocked{resource, d.until, d.last} // the ring is in the order of until
		}
	}
	for l := range r.leases { // the leases that Close has not yet ended
		if looked == mostBlocked {
			break
		}
		looked++
		latest[l.resource] = Blocked{Resource: l.resource, Until: now.Add(r.lasts)} // it may just have been renewed
	}
	switch {
	case len(latest) == 0 && (cause == nil || r.done()):
		return nil
	case len(latest) == 0: // only calls are left, whose resources are not listed
		return protocol.Also(fmt.Errorf("lease: close: calls of this issuer have not ended yet: %s", protocol.WhyEnded(cause)), cause)
	}
	e := &NotGivenBackError{More: r.many + len(r.leases) - looked, Cause: cause}
	for _, resource := range slices.Sorted(maps.Keys(latest)) {
		e.Blocked = append(e.Blocked, latest[resource])
	}
	return e
}

// pending is something that has to be given back to Redis: a lease, or what an acquisition may have
// got, a lease or a place in the queue. Its requests are sent until they are answered or it has
// expired in Redis.
type pending struct {
	registry *registry
	calls    []protocol.Call // one for each resource; empty: a request of an acquisition is still under way
	lease    *Lease          // the lease to release; nil: an acquisition is withdrawn
	trace    tracing         // of the release; its context gives its values to the attempts

	over error // why the lease was lost before the release; nil if it was not
	gone error // the answer to the release, if Redis no longer had the lease; set before it is finished

	// failed is the error of one request of the latest attempt, a transient error if there is any;
	// nil if all were answered. Only the goroutine that makes the attempt uses it.
	failed error

	resources     []string
	one           [1]string        // room for resources
	oneCall       [1]protocol.Call // room for calls
	until         time.Time        // when it has expired in Redis
	before, after *pending         // in the ring; nil outside of it; guarded by the registry's mu
	finished      chan struct{}    // closed, under the registry's mu, when no more attempts are made
	last          error            // of the latest attempt, nil if it was answered; guarded by the registry's mu
}

// add registers something that has to be given back. The caller sees to it that it is finished.
func (r *registry) add(o *pending, resources ...string) *pending {
	o.registry, o.finished = r, make(chan struct{})
	o.resources = append(o.one[:0], resources...)
	r.mu.Lock()
	defer r.mu.Unlock()
	o.until = time.Now().Add(r.lasts) // with mu held, so the ring is in the order of until
	o.before, o.after = r.ring.before, &r.ring
	o.before.after, r.ring.before = o, o
	r.many++
	r.open++
	return o
}

// forgetExpired removes from the ring what has expired in Redis. The caller holds mu.
func (r *registry) forgetExpired() {
	for now := time.Now(); r.many > 0 && !r.ring.after.until.After(now); {
		r.forget(r.ring.after)
	}
}

// forget removes one from the ring. The caller holds mu.
func (r *registry) forget(o *pending) {
	o.before.after, o.after.before = o.after, o.before
	o.before, o.after = nil, nil
	r.many--
	if !o.isFinished() {
		r.open--
	}
	r.lessened()
}

// attempt sends the requests of all in one round trip, and sets failed in each.
func (r *registry) attempt(ctx context.Context, a protocol.Attempt, all ...*pending) {
	calls := slices.Clip(all[0].calls)
	for _, o := range all[1:] {
		calls = append(calls, o.calls...)
	}
	answers := protocol.QueryAll(ctx, r.redis, a, calls, decodeGivenBack)
	for _, o := range all {
		o.failed = nil
		for _, answer := range answers[:len(o.calls)] {
			if answer.Err != nil && !protocol.Transient(o.failed) {
				o.failed = answer.Err
			}
		}
		if o.lease != nil {
			o.released(answers[0])
		}
		answers = answers[len(o.calls):]
	}
}

// attemptAll makes the first attempt for all. Each that needs more attempts makes them by itself.
func (r *registry) attemptAll(ctx context.Context, all []*pending) {
	ctx, cancel := protocol.Within(ctx, protocol.OneOfMany(r.lasts))
	defer cancel()
	r.attempt(ctx, protocol.Attempt{}, all...)
	for _, o := range all {
		if protocol.Transient(o.failed) {
			o.goOn()
		} else {
			o.end()
		}
	}
}

// gather makes the first attempt together for all that is gathered within a millisecond. So a
// thousand callers that are cancelled at once cost a few requests, however busy their process is.
func (r *registry) gather(o *pending) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.first = append(r.first, o); len(r.first) > 1 {
		return
	}
	time.AfterFunc(time.Millisecond, func() {
		r.mu.Lock()
		all := r.first
		r.first = nil
		r.mu.Unlock()
		for some := range slices.Chunk(all, batchLimit) {
			go r.attemptAll(context.Background(), some)
		}
	})
}

// goOn makes attempts in the background until one has an answer that is not transient, or until has
// passed. The end of the caller's context does not stop it: a cancelled call has to give back too.
func (o *pending) goOn() {
	go func() {
		err := protocol.NoAnswer(0) // if code of the caller ends the goroutine
		defer func() { o.finish(err) }()
		ctx := context.WithoutCancel(o.trace.ctx)
		err = protocol.Insist(ctx, time.Until(o.until), o.failed, func(a protocol.Attempt) error {
			o.registry.attempt(ctx, a, o)
			if o.failed != nil || o.last != nil { // only this goroutine writes last now, so it reads without mu
				o.note(o.failed)
			}
			return o.failed
		})
		o.trace.end(0, o.outcome(err))
	}()
}

// end finishes it after the last attempt.
func (o *pending) end() {
	defer o.finish(o.failed) // also if a tracer panics
	o.trace.end(0, o.outcome(o.failed))
}

func (o *pending) finish(err error) {
	r := o.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	o.last = protocol.Latest(o.last, err)
	switch {
	case o.after == nil: // it has expired, and is not in the ring
	case err != nil && r.closed: // it stays in the ring, for the error of Close
		r.open--
		r.lessened()
	default:
		r.forget(o)
	}
	close(o.finished)
}

func (o *pending) note(err error) {
	o.registry.mu.Lock()
	defer o.registry.mu.Unlock()
	o.last = protocol.Latest(o.last, err)
}

func (o *pending) latest() error {
	o.registry.mu.Lock()
	defer o.registry.mu.Unlock()
	return o.last
}

func (o *pending) isFinished() bool {
	select {
	case <-o.finished:
		return true
	default:
		return false
	}
}

// wait returns nil when it is finished. Otherwise it returns why it stopped waiting: ctx has ended,
// or most has passed.
func (o *pending) wait(ctx context.Context, most time.Duration) error {
	if o.isFinished() {
		return nil
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-o.finished:
		return nil
	case <-timer.C:
		return protocol.NoAnswer(most)
	case <-ctx.Done():
	}
	if _, finished := protocol.Await(ctx, o.finished); finished {
		return nil
	}
	return context.Cause(ctx)
}

// Blocked is a resource that may stay blocked until Until, on this process's clock, although nobody
// works on it.
type Blocked struct {
	Resource string
	Until    time.Time
	Err      error // of the latest attempt to release it; nil if that is still under way
}

// NotGivenBackError is the error of an [Issuer.Close] that did not release everything.
type NotGivenBackError struct {
	Blocked []Blocked // sorted by resource; from a hundred leases and requests at most
	More    int       // how many leases and requests there are beside these
	Cause   error     // why Close did not wait any longer; nil if there was nothing left to wait for
}

func (e *NotGivenBackError) Error() string {
	const most = 10
	var all []string
	for _, b := range e.Blocked[:min(len(e.Blocked), most)] {
		each := fmt.Sprintf("%q until %s", b.Resource, b.Until.Format(time.RFC3339Nano))
		if b.Err != nil {
			each += fmt.Sprintf(" (%v)", b.Err)
		}
		all = append(all, each)
	}
	if more := len(e.Blocked) + e.More - len(all); more > 0 {
		all = append(all, fmt.Sprintf("and %d more", more))
	}
	text := "lease: close: may stay blocked: " + strings.Join(all, ", ")
	if e.Cause != nil {
		text += ": " + protocol.WhyEnded(e.Cause)
	}
	return text
}

// Unwrap returns the cause and the errors of the attempts.
func (e *NotGivenBackError) Unwrap() []error {
	all := []error{e.Cause}
	for _, b := range e.Blocked {
		all = append(all, b.Err)
	}
	return slices.DeleteFunc(all, func(err error) bool { return err == nil })
}
