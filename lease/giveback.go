package lease

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	protocol "github.com/fencedb/fencedb/lease/internal/redis"
)

const (
	// releaseTime is how long a call waits for a release, which goes on behind it.
	releaseTime = 5 * time.Second

	// minGiveBack is for leases so short that their TTL leaves no time for an answer.
	minGiveBack = 100 * time.Millisecond
)

// registry lists what an issuer has to end: calls that may be granted something, leases that are
// held, and releases that go on behind a caller that has gone.
//
// Lock order: the mu of a lease before this one.
type registry struct {
	mu     sync.Mutex
	closed bool                            // Close has begun; guarded by mu
	calls  map[any]context.CancelCauseFunc // guarded by mu
	leases map[*Lease]struct{}             // guarded by mu
	owed   map[*debt]struct{}              // guarded by mu
	failed []Blocked                       // what could not be given back since Close began; guarded by mu
	idle   chan struct{}                   // of busy: closed when there are no calls and debts; nil if nobody waits; guarded by mu
}

func newRegistry() *registry {
	return &registry{calls: make(map[any]context.CancelCauseFunc), leases: make(map[*Lease]struct{}), owed: make(map[*debt]struct{})}
}

// begin counts a call that may be granted something. Its context ends with ctx and when Close
// begins.
func (r *registry) begin(ctx context.Context, call any) (context.Context, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, ErrClosed
	}
	ctx, cancel := context.WithCancelCause(ctx)
	r.calls[call] = cancel
	return ctx, nil
}

// end ends the context of begin too.
func (r *registry) end(call any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls[call](nil)
	delete(r.calls, call)
	r.ended()
}

func (r *registry) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for _, cancel := range r.calls {
		cancel(ErrClosed)
	}
}

func (r *registry) closing() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.closed
}

// ended is called after a call or a debt was removed. The caller holds mu.
func (r *registry) ended() {
	if r.idle != nil && len(r.calls)+len(r.owed) == 0 {
		close(r.idle)
		r.idle = nil
	}
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
}

func (r *registry) allHeld() []*Lease {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.leases))
}

// busy is closed when the calls and debts of now are over; nil if there are none.
func (r *registry) busy() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.calls)+len(r.owed) == 0 {
		return nil
	}
	if r.idle == nil {
		r.idle = make(chan struct{})
	}
	return r.idle
}

// left is the error about what may be blocked still; nil if there is nothing.
func (r *registry) left(cause error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := slices.Clone(r.failed)
	for d := range r.owed {
		all = append(all, d.blocked()...)
	}
	now := time.Now()
	latest := make(map[string]Blocked)
	for _, b := range all {
		if b.Until.After(now) && b.Until.After(latest[b.Resource].Until) {
			latest[b.Resource] = b
		}
	}
	switch {
	case len(latest) == 0 && cause == nil:
		return nil
	case len(latest) == 0:
		return fmt.Errorf("lease: close: calls of this issuer have not returned yet: %w", cause)
	}
	e := &NotGivenBackError{Cause: cause}
	for _, resource := range slices.Sorted(maps.Keys(latest)) {
		e.Blocked = append(e.Blocked, latest[resource])
	}
	return e
}

// debt is something that is being given back: a lease, a grant, a place in the queue.
type debt struct {
	resources []string
	one       [1]string // of resources
	until     time.Time // by then it has expired
	paid      chan struct{}

	mu   sync.Mutex
	last error // of the latest attempt; guarded by mu
}

// owe registers what has to be given back within bound. Every debt has to be settled.
func (r *registry) owe(bound time.Duration, resources ...string) *debt {
	d := &debt{until: time.Now().Add(bound), paid: make(chan struct{})}
	d.resources = append(d.one[:0], resources...)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.owed[d] = struct{}{}
	return d
}

func (r *registry) settle(d *debt, err error) {
	d.note(err)
	close(d.paid)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.owed, d)
	if err != nil && r.closed {
		r.failed = append(r.failed, d.blocked()...)
	}
	r.ended()
}

// giveBack makes attempts until one has an answer that counts or the bound is over. The end of ctx
// does not stop it: a caller that was cancelled has to give back too. of is the release that this
// is, nil if it is none; it ends before the debt is settled.
func (r *registry) giveBack(ctx context.Context, ttl time.Duration, attempt func(context.Context) error, of *release, resources ...string) *debt {
	bound := max(ttl, minGiveBack)
	d := r.owe(bound, resources...)
	go func() {
		err := protocol.Insist(context.WithoutCancel(ctx), bound, func(ctx context.Context) error {
			err := attempt(ctx)
			d.note(err)
			return err
		})
		if of != nil {
			of.ended()
		}
		r.settle(d, err)
	}()
	return d
}

func (d *debt) note(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last = protocol.Latest(d.last, err)
}

func (d *debt) latest() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.last
}

func (d *debt) blocked() []Blocked {
	all := make([]Blocked, len(d.resources))
	for n, resource := range d.resources {
		all[n] = Blocked{resource, d.until, d.latest()}
	}
	return all
}

// wait returns nil when the debt is settled, and otherwise why it stopped waiting: ctx has ended,
// or most has passed.
func (d *debt) wait(ctx context.Context, most time.Duration) error {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-d.paid:
		return nil
	case <-timer.C:
		return protocol.NoAnswer(most)
	case <-ctx.Done():
	}
	if _, settled := protocol.Await(ctx, d.paid); settled {
		return nil
	}
	return context.Cause(ctx)
}

// behind is what goes on behind one call: it gives back what the call was granted but does not
// return.
type behind struct{ debts []*debt }

func (b *behind) giveBack(ctx context.Context, leases ...*Lease) {
	for _, l := range leases {
		b.debts = append(b.debts, l.release(ctx, ErrReleased).debt)
	}
}

// settled waits for all of it; false if ctx ends before. A call that goes on with its lease id has
// to wait, or it would get once more what it is giving back.
func (b *behind) settled(ctx context.Context) bool {
	for _, d := range b.debts {
		select {
		case <-d.paid:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// await waits for all of it, but no longer than protocol.Grace.
func (b *behind) await() {
	if len(b.debts) == 0 {
		return
	}
	timer := time.NewTimer(protocol.Grace)
	defer timer.Stop()
	for _, d := range b.debts {
		select {
		case <-d.paid:
		case <-timer.C:
			return
		}
	}
}

// Blocked is a resource that nobody can acquire before that time, on this process's clock, although
// nobody works on it.
type Blocked struct {
	Resource string
	Until    time.Time
	Err      error // of the latest attempt to release it, nil if that is under way
}

// NotGivenBackError is what [Issuer.Close] could not give back in time.
type NotGivenBackError struct {
	Blocked []Blocked // by resource
	Cause   error     // why Close did not wait any longer; nil if there was nothing left to wait for
}

func (e *NotGivenBackError) Error() string {
	const most = 10
	var text strings.Builder
	fmt.Fprintf(&text, "lease: close: %d resources may stay blocked", len(e.Blocked))
	for n, b := range e.Blocked {
		if n == most {
			text.WriteString(", ...")
			break
		}
		fmt.Fprintf(&text, "%s %q until %s", map[bool]string{true: ":", false: ","}[n == 0], b.Resource, b.Until.Format(time.RFC3339Nano))
		if b.Err != nil {
			fmt.Fprintf(&text, " (%v)", b.Err)
		}
	}
	if e.Cause != nil {
		fmt.Fprintf(&text, ": %v", e.Cause)
	}
	return text.String()
}

// Unwrap gives the cause and what the attempts have failed with.
func (e *NotGivenBackError) Unwrap() []error {
	all := make([]error, 0, 1+len(e.Blocked))
	if e.Cause != nil {
		all = append(all, e.Cause)
	}
	for _, b := range e.Blocked {
		if b.Err != nil {
			all = append(all, b.Err)
		}
	}
	return all
}
