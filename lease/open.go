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
	// releaseTime is how long a release is waited for. It goes on behind whoever waits.
	releaseTime = 5 * time.Second

	// minGiveBack is for leases that last so shortly that their end would leave no time for an answer.
	minGiveBack = 100 * time.Millisecond
)

// open is what an issuer has open: the calls that may be granted something, the leases that are held, and what is being
// given back behind a caller who has gone.
//
// Lock order: a lease's mu before this one's.
type open struct {
	closing context.Context // ends when Close begins, with ErrClosed
	close   context.CancelCauseFunc

	mu     sync.Mutex
	calls  int                 // guarded by mu
	leases map[*Lease]struct{} // guarded by mu
	owed   map[*debt]struct{}  // guarded by mu
	failed []Blocked           // what could not be given back since Close began; guarded by mu
	quiet  chan struct{}       // closed when there are no calls and debts, made anew by the next; guarded by mu
}

func newOpen() *open {
	o := &open{leases: make(map[*Lease]struct{}), owed: make(map[*debt]struct{})}
	o.closing, o.close = context.WithCancelCause(context.Background())
	return o
}

// begin counts a call that may be granted something. Its context ends with ctx and when Close begins.
func (o *open) begin(ctx context.Context) (_ context.Context, end func(), err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closing.Err() != nil {
		return nil, nil, ErrClosed
	}
	o.calls++
	o.disturb()
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(o.closing, func() { cancel(ErrClosed) })
	return ctx, func() {
		stop()
		cancel(nil)
		o.mu.Lock()
		defer o.mu.Unlock()
		o.calls--
		o.calm()
	}, nil
}

// disturb and calm keep quiet. The caller holds mu.
func (o *open) disturb() {
	if o.calls+len(o.owed) == 1 {
		o.quiet = make(chan struct{})
	}
}

func (o *open) calm() {
	if o.calls+len(o.owed) == 0 {
		close(o.quiet)
	}
}

// hold and let go follow the life of a lease. The caller holds the lease's mu.
func (o *open) hold(l *Lease) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.leases[l] = struct{}{}
}

func (o *open) letGo(l *Lease) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.leases, l)
}

// debt is something that is being given back.
type debt struct {
	resources []string
	until     time.Time // by then it has run out
	paid      chan struct{}

	mu   sync.Mutex
	last error // of the latest attempt; guarded by mu
}

// owe notes what has to be given back within bound. Every debt has to be settled.
func (o *open) owe(resources []string, bound time.Duration) *debt {
	d := &debt{resources: resources, until: time.Now().Add(bound), paid: make(chan struct{})}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.owed[d] = struct{}{}
	o.disturb()
	return d
}

func (o *open) settle(d *debt, err error) {
	d.note(err)
	close(d.paid)
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.owed, d)
	if err != nil && o.closing.Err() != nil {
		o.failed = append(o.failed, d.blocked()...)
	}
	o.calm()
}

// giveBack makes attempts, detached from the end of ctx, until one has an answer that counts or the debt has run out: a
// caller that was cancelled must give back all the more. It calls done before the debt is settled.
func (o *open) giveBack(ctx context.Context, resources []string, ttl time.Duration, attempt func(ctx context.Context) error, done func()) *debt {
	bound := max(ttl, minGiveBack)
	d := o.owe(resources, bound)
	go func() {
		ctx, cancel := protocol.Detached(ctx, bound)
		defer cancel()
		err := protocol.Insist(ctx, func(ctx context.Context) error {
			err := attempt(ctx)
			d.note(err)
			return err
		})
		done()
		o.settle(d, err)
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

// wait returns nil when the debt is settled, and otherwise why it was not waited for any longer: ctx has ended, or most
// has passed.
func (d *debt) wait(ctx context.Context, most time.Duration) error {
	waiting, cancel := protocol.Within(ctx, most)
	defer cancel()
	select {
	case <-d.paid:
		return nil
	case <-waiting.Done():
	}
	if ctx.Err() != nil {
		if _, settled := protocol.Await(ctx, d.paid); settled {
			return nil
		}
	}
	return context.Cause(waiting)
}

// behind is what one call gives back that got nothing, or less than it asked for.
type behind struct{ debts []*debt }

func (b *behind) giveBack(ctx context.Context, leases Leases) {
	for _, l := range leases {
		b.debts = append(b.debts, l.release(ctx).debt)
	}
}

// settled waits for all of it; false if ctx ends before. A call that goes on with its lease id waits, or it would get
// once more what is on its way back.
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

// await waits for all of it, but no longer than a call may whose time is over.
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

// Blocked is a resource that nobody can have before that time, on this process's clock, although nobody works on it.
type Blocked struct {
	Resource string
	Until    time.Time
	Err      error // of the latest attempt to give it back, nil if that is under way
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

// Close ends the issuer's work in good order, for a program that shuts down. Acquisitions fail with [ErrClosed] from
// now on, also those that wait; every lease that is held ends, with [ErrReleased], and is released; and what earlier
// calls have left to be given back is waited for. Nothing of the issuer runs on when it returns nil.
//
// When ctx ends first, the error is a [*NotGivenBackError] that names what could not be given back yet, and until when
// it stays blocked at most. Giving back goes on until then; calling Close again waits for it again. Close may be called
// by several at once. The client is left open: close it afterwards. Work that goes on under a lease has to end before
// Close, or is told so by the end of the lease's context.
func (i *Issuer) Close(ctx context.Context) error {
	if err := i.ready(); err != nil {
		return err
	}
	i.open.close(ErrClosed)
	for _, l := range i.open.held() {
		l.release(ctx)
	}
	for {
		quiet := i.open.unrest()
		if quiet == nil {
			break
		}
		select {
		case <-quiet:
		case <-ctx.Done():
			return i.open.left(context.Cause(ctx))
		}
	}
	i.lines.close()
	i.store.hush()
	return i.open.left(nil)
}

func (o *open) held() []*Lease {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Collect(maps.Keys(o.leases))
}

// unrest is closed when the calls and debts of now are over; nil if there are none.
func (o *open) unrest() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.calls+len(o.owed) == 0 {
		return nil
	}
	return o.quiet
}

// left is the error about what may be blocked still; nil if there is nothing.
func (o *open) left(cause error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := slices.Clone(o.failed)
	for d := range o.owed {
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
