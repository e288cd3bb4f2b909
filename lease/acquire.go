package lease

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/fencedb/fencedb/internal/protocol"
)

// Option changes one acquisition.
type Option func(*acquisition)

// LeaseID sets the lease id of the acquisition instead of a random one. A program that does not
// know the outcome of an acquisition asks again with its id and gets the same lease and token, if
// that lease still holds. Never use one id for two pieces of work: both would hold. Nor again while
// a release goes on behind its call: that release would end the lease that the new call gets. Nor
// with a shorter TTL while an earlier request of it may hold: Redis keeps the lease for that of the
// latest.
//
//nolint:revive // options have no With
func LeaseID(id uuid.UUID) Option { return func(a *acquisition) { a.id = id } }

// Barge lets [Issuer.TryAcquire] go ahead of waiters. Without it, a free resource with waiters is
// kept for them.
func Barge() Option { return func(a *acquisition) { a.barge = true } }

// NoWait makes [Issuer.Acquire], [Issuer.AcquireAll], [Issuer.Do] and [Issuer.DoAll] try once, as
// [Issuer.TryAcquire] does: [ErrHeld] at once if another holds the resource, and then nothing was
// run.
func NoWait() Option { return func(a *acquisition) { a.noWait = true } }

// WaitAtMost bounds the waiting of [Issuer.Acquire], and of [Issuer.Do] before the work begins. The
// error is then [ErrHeld] and [context.DeadlineExceeded]. The time must be positive: [NoWait] is
// for none.
//
// However short the time is, Redis is asked once and has at least a quarter of a second to answer,
// or half of a TTL below half a second, unless other callers of this process stand in line before
// this call. So a free resource is granted, and [ErrUnreachable] means that Redis did not answer.
func WaitAtMost(d time.Duration) Option { return func(a *acquisition) { a.patience = &d } }

// acquisition is one call of TryAcquire, Acquire, or one of those for several resources.
type acquisition struct {
	core      *core
	caller    context.Context // gives its values to the leases
	resources []string
	keys      []*protocol.Keys // of the resources, in their order
	id        uuid.UUID
	text      any // id as requests take it
	call      *call
	step      *acquisition // the latest of several
	behind    *behind      // what the call of the program gives back, in all its steps
	barge     bool
	patience  *time.Duration // of WaitAtMost; nil: as long as the context allows
	noWait    bool
	lead      bool            // for [Issuer.Lead]
	first     context.Context // of the first request, if that differs
	asked     bool            // a request may have reached Redis
	raised    int             // how often the last token was, because it was behind the fence
	waits     *tracing        // nil until the resource was found taken

	room struct { // of what is above, for one resource
		resource [1]string
		keys     [1]*protocol.Keys
		call     call
		behind   behind
	}
	open debt // from the beginning of the call to its end
}

// call identifies one call of the program in all its requests; several calls may share a lease id.
// So a withdrawal ends only what its own call was granted.
type call struct {
	of        *acquisition
	id        any         // its name, a string
	unsure    atomic.Bool // a request may still be under way: it was sent and not answered
	withdrawn atomic.Bool // what the requests were granted is being taken back
}

func (c *call) begin(a *acquisition) *call {
	c.of, c.id = a, protocol.NewCall(a.core.label)
	return c
}

func newAcquisition(ctx context.Context, c *core, resources []string, opts []Option) (*acquisition, error) {
	a := &acquisition{core: c, caller: ctx, id: uuid.New()}
	a.call = a.room.call.begin(a)
	a.resources, a.behind = append(a.room.resource[:0], resources...), &a.room.behind
	a.keys = a.room.keys[:0]
	for _, resource := range resources {
		a.keys = append(a.keys, c.keys(resource))
	}
	for _, opt := range opts {
		opt(a)
	}
	switch {
	case a.id == uuid.Nil:
		return nil, protocol.Invalid("lease id is the zero UUID; use uuid.New()")
	case a.patience != nil && *a.patience <= 0:
		return nil, protocol.Invalid("WaitAtMost(%v) must be positive; NoWait() tries once", *a.patience)
	case a.patience != nil && a.noWait:
		return nil, protocol.Invalid("NoWait and WaitAtMost(%v) contradict each other", *a.patience)
	}
	a.text = a.id.String()
	return a, nil
}

// part is the acquisition of the nth resource alone, as a step of the whole. It is a call of its
// own, because the whole may have been withdrawn before.
func (a *acquisition) part(n int) *acquisition {
	step := &acquisition{core: a.core, caller: a.caller, resources: a.resources[n : n+1], keys: a.keys[n : n+1],
		id: a.id, text: a.text, behind: a.behind, barge: a.barge, first: a.first}
	step.call = step.room.call.begin(step)
	a.first, a.step = nil, step
	return step
}

// run is the whole acquisition: what is granted is sealed before the holder learns that it holds.
func (a *acquisition) run(ctx context.Context) (Leases, error) {
	t := a.core.trace(ctx, TraceStart{Op: OpAcquire, Resource: a.resources[0], Resources: len(a.resources),
		LeaseID: a.id, Lead: a.lead})
	return a.begun(&t, func(ctx context.Context) (Leases, error) {
		waiting, cancel := a.limit(ctx)
		defer cancel()
		var blocked error // why the latest leases could not be sealed
		for {
			leases, err := a.obtain(ctx, waiting)
			if err != nil {
				return nil, protocol.Join(blocked, a.failed(err))
			}
			leases, again, err := a.seal(ctx, leases)
			if !again || !a.behind.settled(waiting) {
				return leases, err
			}
			blocked = err
			a.call, a.asked, a.waits = new(call).begin(a), false, nil
		}
	})
}

// begun wraps everything that may be granted something: Close ends it, and takes its leases back.
// It ends the tracing, after a panic too.
func (a *acquisition) begun(t *tracing, ask func(context.Context) (Leases, error)) (leases Leases, err error) {
	err = errPanicked
	returned := false
	defer func() {
		if !returned { // but panicked: nobody gets what was granted
			a.behind.giveBack(a.caller, leases...)
			a.withdraw()
			if a.step != nil {
				a.step.withdraw()
			}
		}
	}()
	defer func() {
		leases.endTracing(t, err)
		returned = err != errPanicked
	}()
	registry := a.core.registry
	ctx, closed := registry.begin(t.ctx, &a.open)
	if closed != nil {
		return nil, a.failed(closed)
	}
	defer a.open.settle(nil)
	defer a.open.cancel(nil)
	leases, err = ask(ctx)
	if registry.closing() {
		a.behind.giveBack(ctx, leases...)
		leases, err = nil, a.failed(ErrClosed)
	}
	a.behind.await()
	return leases, err
}

// obtain asks for the leases, in one of three ways.
func (a *acquisition) obtain(ctx, waiting context.Context) (Leases, error) {
	if a.noWait {
		return a.tryAll(ctx)
	}
	if len(a.resources) == 1 {
		return a.wait(waiting)
	}
	return a.waitAll(waiting)
}

// try asks without waiting.
func (a *acquisition) try(ctx context.Context) (Leases, error) {
	mode := any(try)
	if a.barge {
		mode = barge
	}
	leases, err := a.attempt(ctx, mode, a.core.cfg.TTL)
	switch {
	case errors.Is(err, ErrHeld) && !a.call.unsure.Load(): // it left no trace
	case err != nil: // also if an earlier request may arrive when the holder has gone
		a.withdraw()
	}
	return leases, err
}

// tryAll asks once for everything where one script can see it, and otherwise for one resource after
// the other.
func (a *acquisition) tryAll(ctx context.Context) (Leases, error) {
	if a.core.store.spans(a.keys) {
		return a.try(ctx)
	}
	return a.stepByStep(func(step *acquisition) (Leases, error) { return step.try(ctx) })
}

// stepByStep acquires one after the other, and releases all if one is refused.
func (a *acquisition) stepByStep(acquire func(step *acquisition) (Leases, error)) (Leases, error) {
	var leases Leases
	whole := false
	defer func() {
		if !whole { // also after a panic
			a.behind.giveBack(a.caller, leases...)
		}
	}()
	for n := range a.resources {
		l, err := acquire(a.part(n))
		if err == nil {
			leases = append(leases, l...)
			err = leases.lost() // waiting may have taken longer than an earlier one lasts
		}
		if err != nil {
			return nil, err
		}
	}
	whole = true
	return leases, nil
}

// attempt asks until there is an answer, all leases or a [HeldError], or until bound has passed.
func (a *acquisition) attempt(ctx context.Context, mode any, bound time.Duration) (Leases, error) {
	return protocol.Persist(ctx, bound, func(ctx context.Context) (Leases, error) { return a.once(ctx, mode) })
}

// once asks one time. An answer that arrives after its own trust window counts as none.
func (a *acquisition) once(ctx context.Context, mode any) (Leases, error) {
	core := a.core
	a.asked = a.asked || ctx.Err() == nil
	sent := time.Now()
	c := a.call
	answer, err := core.store.acquire(ctx, ask{a.keys, a.text, c.id, mode, c})
	if errors.Is(err, ErrUnreachable) {
		c.unsure.Store(true)
	}
	switch {
	case err != nil:
		return nil, err
	case answer.tokens == nil:
		return nil, &HeldError{Resource: a.resources[answer.index], RetryAfter: answer.wait, Holder: answer.holder,
			permit: core.cfg.permits > 0}
	case !time.Now().Before(core.trustedUntil(sent, core.cfg.TTL)):
		return nil, errTooLate
	}
	leases := make(Leases, len(a.keys))
	for n, token := range answer.tokens {
		leases[n] = a.newLease(n, token, sent)
	}
	return leases, nil
}

var errTooLate = fmt.Errorf("%w: the answer took longer than the lease lasts", ErrUnreachable)

// withdraw removes what a failed acquisition may have left in Redis: a waiter, or a grant whose
// reply was lost.
func (a *acquisition) withdraw() {
	if a.asked {
		a.call.withdrawn.Store(true)
		a.behind.owes(a.takeBack(a.call))
	}
}

// takeBack withdraws what that call of this acquisition was granted.
func (a *acquisition) takeBack(c *call) *debt {
	calls := make([]protocol.Call, len(a.keys))
	for n, k := range a.keys {
		calls[n] = a.core.store.withdrawal(term{keys: k, id: a.id, text: a.text, call: c.id, unsure: c.unsure.Load()})
	}
	return a.core.withdrawals.add(a.caller, calls, a.resources)
}

// Abandoned implements [protocol.Caller]. When the request that was cut short has ended after all,
// its result is withdrawn once more: it may have waited for a connection and reached Redis long
// after the withdrawal, which would leave a waiter or a holder without a caller.
func (c *call) Abandoned() (ended func()) {
	a := c.of
	c.unsure.Store(true)
	d := a.core.registry.owe(new(debt), a.core.cfg.TTL, a.resources...)
	return func() {
		if c.withdrawn.Load() {
			a.takeBack(c)
		}
		d.settle(nil)
	}
}

func (a *acquisition) failed(err error) error {
	if errors.Is(err, ErrHeld) {
		return err
	}
	if len(a.resources) > 1 {
		return fmt.Errorf("lease: acquire %d resources from %q: %w", len(a.resources), a.resources[0], err)
	}
	return fmt.Errorf("lease: acquire %q: %w", a.resources[0], err)
}
