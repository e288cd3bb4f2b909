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
	// releaseTime is how long a call waits for a release, which goes on behind it.
	releaseTime = 5 * time.Second

	// minGiveBack is for leases so short that their TTL leaves no time for an answer.
	minGiveBack = 100 * time.Millisecond
)

// registry lists what an issuer has to end: calls that may be granted something, leases that are
// held, and what it owes to Redis. However much it lists, its mutex is held for a short time only,
// except at the beginning of Close.
//
// Lock order: the mu of a lease before this one.
type registry struct {
	redis *protocol.Sender
	lasts time.Duration // for how long what is owed can matter: no lease lasts longer

	mu     sync.Mutex
	closed bool                   // Close has begun; guarded by mu
	calls  map[*openCall]struct{} // guarded by mu
	leases map[*Lease]struct{}    // guarded by mu
	owed   owed                   // the ring of those that can matter, the oldest behind it; guarded by mu
	many   int                    // in the ring; guarded by mu
	open   int                    // of those, without an outcome; guarded by mu
	first  []*owed                // whose first attempt is made together, in a millisecond; guarded by mu
	fewer  chan struct{}          // closed when nothing is left; nil until somebody waits; guarded by mu
}

func newRegistry(redis *protocol.Sender, ttl time.Duration) *registry {
	r := &registry{redis: redis, lasts: max(ttl, minGiveBack),
		calls: make(map[*openCall]struct{}), leases: make(map[*Lease]struct{})}
	r.owed.before, r.owed.after = &r.owed, &r.owed
	return r
}

// openCall is one that may be granted something.
type openCall struct{ cancel context.CancelCauseFunc }

// begin counts a call until the call ends. The context of the call ends with ctx and when Close
// begins.
func (r *registry) begin(ctx context.Context, call *openCall) (context.Context, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, ErrClosed
	}
	endless := protocol.Endless(ctx)
	ctx, call.cancel = context.WithCancelCause(ctx)
	if endless {
		ctx = protocol.Lasting(ctx)
	}
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

// close begins the end; it returns false if the end has begun before.
func (r *registry) close() (first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	first, r.closed = !r.closed, true
	for call := range r.calls {
		call.cancel(ErrClosed)
	}
	return first
}

// wait returns true when nothing is held and nothing that is owed can matter any more, or false
// when ctx ends before. What has expired does not matter any more, even if its request never ends.
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

// nothing is closed when nothing is held or owed; nil if that is so. Before that time all that is
// owed can matter.
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
	return r.fewer, r.owed.after.until
}

// done reports whether nothing is held, and nothing is asked for or being given back. The caller
// holds mu.
func (r *registry) done() bool { return len(r.calls) == 0 && len(r.leases) == 0 && r.open == 0 }

// lessened is called after something was taken out. The caller holds mu.
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

// hold and letGo follow the life of a lease. The caller holds the lease's mu.
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

// mostBlocked is how many resources an error names at most: Close returns soon after its context
// has ended, however much is left.
const mostBlocked = 100

// left is the error that names what may still be blocked, and what has not ended, when Close stops
// waiting because of cause; nil if there is nothing.
func (r *registry) left(cause error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forgetExpired()
	latest := make(map[string]Blocked) // by resource
	looked, now := 0, time.Now()
	for d := r.owed.after; d != &r.owed && looked < mostBlocked; d = d.after {
		looked++
		for _, resource := range d.resources {
			latest[resource] = Blocked{resource, d.until, d.last} // a later one reaches further
		}
	}
	for l := range r.leases { // those that Close has not come to
		if looked == mostBlocked {
			break
		}
		looked++
		latest[l.resource] = Blocked{Resource: l.resource, Until: now.Add(r.lasts)} // if it is renewed just now
	}
	switch {
	case len(latest) == 0 && (cause == nil || r.done()):
		return nil
	case len(latest) == 0: // a call is of no resources
		return protocol.Also(fmt.Errorf("lease: close: calls of this issuer have not ended yet: %s", protocol.WhyEnded(cause)), cause)
	}
	e := &NotGivenBackError{More: r.many + len(r.leases) - looked, Cause: cause}
	for _, resource := range slices.Sorted(maps.Keys(latest)) {
		e.Blocked = append(e.Blocked, latest[resource])
	}
	return e
}

// owed is what has to be given back: a lease, what an acquisition may have been granted, a place in
// the queue. Its requests are sent until they are answered or cannot matter any more.
type owed struct {
	registry *registry
	calls    []protocol.Call // one for each resource; none: a request of an acquisition has yet to end
	lease    *Lease          // that is released; nil: what was asked for is withdrawn
	trace    tracing         // of the release; its context gives its values to the attempts

	over error // why the lease was lost before; nil if its holder trusted it until a release
	err  error // what became of the release; set before it is settled
	done bool  // it was answered; set before it is settled

	// That of one of the requests of the latest attempt, a transient one if there is any; nil if all
	// were answered. For whoever makes the attempt.
	failed error

	resources     []string
	one           [1]string        // of resources
	oneCall       [1]protocol.Call // of calls
	until         time.Time        // by then it has expired
	before, after *owed            // in the ring; nil if it cannot matter any more; guarded by the registry's mu
	settled       bool             // guarded by the registry's mu
	waited        chan struct{}    // closed when it is settled; nil until somebody waits; guarded by the registry's mu
	last          error            // of the latest attempt; guarded by the registry's mu
}

// owe registers what has to be given back. All that is owed has to be settled.
func (r *registry) owe(o *owed, resources ...string) *owed {
	o.registry = r
	o.resources = append(o.one[:0], resources...)
	r.mu.Lock()
	defer r.mu.Unlock()
	o.until = time.Now().Add(r.lasts) // so the ring is in the order of that time
	o.before, o.after = r.owed.before, &r.owed
	o.before.after, r.owed.before = o, o
	r.many++
	r.open++
	return o
}

// forgetExpired takes out what cannot matter any more. The caller holds mu.
func (r *registry) forgetExpired() {
	for now := time.Now(); r.many > 0 && !r.owed.after.until.After(now); {
		r.forget(r.owed.after)
	}
}

// forget takes one out of the ring. The caller holds mu.
func (r *registry) forget(o *owed) {
	o.before.after, o.after.before = o.after, o.before
	o.before, o.after = nil, nil
	r.many--
	if !o.settled {
		r.open--
	}
	r.lessened()
}

// attempt sends the requests of all in one round trip, and notes in each what failed.
func (r *registry) attempt(ctx context.Context, all ...*owed) {
	calls := slices.Clip(all[0].calls)
	for _, o := range all[1:] {
		calls = append(calls, o.calls...)
	}
	answers := protocol.QueryAll(ctx, r.redis, calls, decodeGivenBack)
	for _, o := range all {
		o.failed = nil
		for _, answer := range answers[:len(o.calls)] {
			if answer.Err != nil && !protocol.Transient(o.failed) {
				o.failed = answer.Err
			}
		}
		if o.lease != nil {
			o.released(answers[0].Value, o.failed)
		}
		answers = answers[len(o.calls):]
	}
}

// attemptAll makes the first attempt for all. Those that need another make it on their own.
func (r *registry) attemptAll(ctx context.Context, all []*owed) {
	r.attempt(ctx, all...)
	for _, o := range all {
		if protocol.Transient(o.failed) {
			o.goOn()
		} else {
			o.end()
		}
	}
}

// gather has the first attempt made together with what else is gathered within a millisecond. So a
// thousand callers that are cancelled at once cost a few requests, however busy their process is.
func (r *registry) gather(o *owed) {
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
			go func() {
				ctx, cancel := protocol.Within(context.Background(), protocol.OneOfMany(r.lasts))
				defer cancel()
				r.attemptAll(ctx, some)
			}()
		}
	})
}

// goOn makes attempts in the background until one has an answer that counts or the time is over.
// The end of a caller's context does not stop it: a caller that was cancelled has to give back too.
func (o *owed) goOn() {
	go func() {
		err := o.failed                  // if there was an attempt before
		defer func() { o.settle(err) }() // also if the caller's code ends the goroutine
		err = protocol.Insist(context.WithoutCancel(o.trace.ctx), time.Until(o.until), err, func(ctx context.Context) error {
			o.registry.attempt(ctx, o)
			if o.failed != nil || o.last != nil { // which nobody else writes
				o.note(o.failed)
			}
			return o.failed
		})
		o.trace.end(0, o.err)
	}()
}

// end is called after the last attempt.
func (o *owed) end() {
	defer o.settle(o.failed) // also if a tracer panics
	o.trace.end(0, o.err)
}

func (o *owed) settle(err error) {
	r := o.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	o.last = protocol.Latest(o.last, err)
	switch {
	case o.after == nil: // it has expired
	case err != nil && r.closed: // Close says what became of it
		r.open--
		r.lessened()
	default:
		r.forget(o)
	}
	o.settled = true
	if o.waited != nil {
		close(o.waited)
	}
}

// whenSettled is closed when it is settled.
func (o *owed) whenSettled() <-chan struct{} {
	o.registry.mu.Lock()
	defer o.registry.mu.Unlock()
	if o.waited == nil {
		o.waited = make(chan struct{})
		if o.settled {
			close(o.waited)
		}
	}
	return o.waited
}

func (o *owed) note(err error) {
	o.registry.mu.Lock()
	defer o.registry.mu.Unlock()
	o.last = protocol.Latest(o.last, err)
}

func (o *owed) latest() error {
	o.registry.mu.Lock()
	defer o.registry.mu.Unlock()
	return o.last
}

func (o *owed) isSettled() bool {
	o.registry.mu.Lock()
	defer o.registry.mu.Unlock()
	return o.settled
}

// wait returns nil when it is settled, and otherwise why it stopped waiting: ctx has ended, or most
// has passed.
func (o *owed) wait(ctx context.Context, most time.Duration) error {
	if o.isSettled() {
		return nil
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-o.whenSettled():
		return nil
	case <-timer.C:
		return protocol.NoAnswer(most)
	case <-ctx.Done():
	}
	if _, settled := protocol.Await(ctx, o.whenSettled()); settled {
		return nil
	}
	return context.Cause(ctx)
}

// behind is the work of one call in the background: it gives back what the call was granted but
// does not return.
type behind struct{ all []*owed }

// owes adds one, and forgets those that are settled.
func (b *behind) owes(o *owed) {
	b.all = append(slices.DeleteFunc(b.all, (*owed).isSettled), o)
}

func (b *behind) giveBack(ctx context.Context, leases ...*Lease) {
	for _, l := range leases {
		o, begun := l.beginRelease(ctx, ErrReleased)
		if begun {
			o.goOn()
		}
		b.owes(o)
	}
}

// wait waits for all; it returns false if ctx ends before. A call that goes on with its lease
// id has to wait, or it would get once more what it is giving back.
func (b *behind) wait(ctx context.Context) bool {
	for _, o := range b.all {
		select {
		case <-o.whenSettled():
		case <-ctx.Done():
			return false
		}
	}
	return ctx.Err() == nil
}

// waitBriefly waits for all, but no longer than protocol.Grace, and not for a caller whose
// context has ended: thousands that are cancelled at once would wait for each other's requests.
func (b *behind) waitBriefly(ctx context.Context) {
	if len(b.all) > 0 && ctx.Err() == nil {
		ctx, cancel := context.WithTimeout(ctx, protocol.Grace)
		defer cancel()
		b.wait(ctx)
	}
}

// Blocked is a resource that nobody can acquire before Until, on this process's clock, although
// nobody works on it.
type Blocked struct {
	Resource string
	Until    time.Time
	Err      error // of the latest attempt to release it, nil if that is under way
}

// NotGivenBackError is what [Issuer.Close] could not give back in time.
type NotGivenBackError struct {
	Blocked []Blocked // by resource, of a hundred leases and requests
	More    int       // leases and requests beside those
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
	if len(e.Blocked)+e.More > most {
		all = append(all, "...")
	}
	text := fmt.Sprintf("lease: close: %d resources may stay blocked: %s", len(e.Blocked)+e.More, strings.Join(all, ", "))
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
