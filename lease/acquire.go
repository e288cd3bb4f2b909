package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/fencedb/fencedb/internal/protocol"
)

// Option changes one acquisition.
type Option func(*options)

// LeaseID makes the acquisition one of the holder with that id. All acquisitions with one id are
// one holder, in every process: they hold at the same time, with one token, and the fence lets all
// of them write. So never use an id for two pieces of work. The release of one ends the lease for
// all: a lease of the same Issuer ends at once, with [ErrReleased], one of another at its next
// renewal, with [ErrLost].
//
// It is for a program that does not know the outcome of an acquisition, because it was restarted:
// it asks again with the id and gets the same lease and token, if that lease still holds. Do not
// ask while a release goes on behind the earlier call: that release would end the lease that the
// new call gets. Nor with a shorter TTL while an earlier request may hold: Redis keeps the lease
// for that of the latest.
//
// Without it each acquisition has a random id.
//
//nolint:revive // options have no With
func LeaseID(id uuid.UUID) Option { return func(o *options) { o.id, o.shared = id, true } }

// Barge lets [Issuer.TryAcquire] go ahead of waiters. Without it, a free resource with waiters is
// kept for them.
func Barge() Option { return func(o *options) { o.barge = true } }

// NoWait makes [Issuer.Acquire], [Issuer.AcquireAll], [Issuer.Do] and [Issuer.DoAll] try once, as
// [Issuer.TryAcquire] does: [ErrHeld] at once if another holds the resource, and then nothing was
// run.
func NoWait() Option { return func(o *options) { o.noWait = true } }

// WaitAtMost bounds the waiting of [Issuer.Acquire], and of [Issuer.Do] before the work begins. The
// error is then [ErrHeld] and [context.DeadlineExceeded]. The time must be positive: [NoWait] is
// for none.
//
// However short the time is, Redis is asked once and has at least a quarter of a second to answer,
// or half of a TTL below half a second, unless other callers of this process stand in line before
// this call. So a free resource is granted, and [ErrUnreachable] means that Redis did not answer.
func WaitAtMost(d time.Duration) Option { return func(o *options) { o.patience = &d } }

// options are what an [Option] changes.
type options struct {
	id       uuid.UUID
	shared   bool // other acquisitions may have the id too
	barge    bool
	noWait   bool
	patience *time.Duration // of WaitAtMost; nil: as long as the context allows
	lead     bool           // for [Issuer.Lead]
}

func (o *options) check() error {
	switch {
	case o.id == uuid.Nil:
		return protocol.Invalid("lease id is the zero UUID; use uuid.New()")
	case o.patience != nil && *o.patience <= 0:
		return protocol.Invalid("WaitAtMost(%v) must be positive; NoWait() tries once", *o.patience)
	case o.patience != nil && o.noWait:
		return protocol.Invalid("NoWait and WaitAtMost(%v) contradict each other", *o.patience)
	}
	return nil
}

// acquisition is one call of the program: of TryAcquire, Acquire, or one of those for several
// resources. It asks in steps.
type acquisition struct {
	options
	core      *core
	caller    context.Context // gives its values to the leases
	resources []string
	keys      []*protocol.Keys // of the resources, in their order
	text      any              // the lease id as requests take it
	first     context.Context  // of the first request, if that differs; nil behind it
	step      *step            // the latest
	raised    int              // how often the last token was, because it was behind the fence
	behind    behind           // what goes on behind the call
	open      debt             // from the beginning of the call to its end

	room struct { // of what is above, for one resource
		resource [1]string
		keys     [1]*protocol.Keys
		step     step
	}
}

func newAcquisition(ctx context.Context, c *core, resources []string, opts []Option) (*acquisition, error) {
	a := &acquisition{core: c, caller: ctx, options: options{id: uuid.New()}}
	a.resources, a.keys = append(a.room.resource[:0], resources...), a.room.keys[:0]
	for _, resource := range resources {
		a.keys = append(a.keys, c.keys(resource))
	}
	for _, opt := range opts {
		opt(&a.options)
	}
	if err := a.check(); err != nil {
		return nil, err
	}
	a.text = a.id.String()
	return a, nil
}

// run is the whole acquisition. Close ends it, and takes its leases back. It ends its tracing,
// after a panic too.
func (a *acquisition) run(ctx context.Context) (leases Leases, err error) {
	t := a.core.trace(ctx, TraceStart{Op: OpAcquire, Resource: a.resources[0], Resources: len(a.resources),
		LeaseID: a.id, Lead: a.lead})
	err = errPanicked
	returned := false
	defer func() {
		if !returned { // but panicked: nobody gets what was granted
			a.behind.giveBack(a.caller, leases...)
			if a.step != nil {
				a.step.withdraw()
			}
		}
	}()
	defer func() {
		leases.endTracing(&t, err)
		returned = err != errPanicked
	}()
	registry := a.core.registry
	ctx, closed := registry.begin(t.ctx, &a.open)
	if closed != nil {
		return nil, a.failed(closed)
	}
	defer a.open.settle(nil)
	defer a.open.cancel(nil)
	leases, err = a.sealed(ctx)
	if registry.closing() {
		a.behind.giveBack(ctx, leases...)
		leases, err = nil, a.failed(ErrClosed)
	}
	a.behind.await()
	return leases, err
}

// sealed obtains the leases and has them sealed before their holder learns that it holds.
func (a *acquisition) sealed(ctx context.Context) (Leases, error) {
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
	}
}

// obtain asks for everything at once where one script can see it, and otherwise for one resource
// after the other. It also waits for one resource after the other.
func (a *acquisition) obtain(ctx, waiting context.Context) (Leases, error) {
	together := a.core.store.spans(a.keys)
	switch {
	case a.noWait && together:
		return a.all().try(ctx)
	case a.noWait:
		return a.stepByStep(func(s *step) (Leases, error) { return s.try(ctx) })
	case len(a.resources) == 1:
		return a.all().wait(waiting)
	}
	inTurn := func(s *step) (Leases, error) { return s.wait(waiting) }
	if !together {
		return a.stepByStep(inTurn)
	}
	leases, err := a.all().try(a.asking(waiting))
	held, refused := errors.AsType[*HeldError](err)
	if !refused {
		return leases, err
	}
	if a.behind.settled(waiting) {
		leases, err = a.stepByStep(inTurn)
		switch {
		case waiting.Err() == nil, err == nil, errors.Is(err, ErrHeld): // which names what is held now
			return leases, err
		case !errors.Is(err, ErrUnreachable) && !errors.Is(err, context.Cause(waiting)): // of another reason
			return leases, err
		}
	}
	held.Cause = context.Cause(waiting) // the last answer
	return nil, held
}

// all is the step that asks for all resources.
func (a *acquisition) all() *step {
	s := &a.room.step
	if a.step != nil { // a late request of a step before may still use it
		s = new(step)
	}
	return s.begin(a, a.resources, a.keys)
}

// stepByStep acquires one after the other, and releases all if one is refused.
func (a *acquisition) stepByStep(acquire func(s *step) (Leases, error)) (Leases, error) {
	var leases Leases
	whole := false
	defer func() {
		if !whole { // also after a panic
			a.behind.giveBack(a.caller, leases...)
		}
	}()
	for n := range a.resources {
		l, err := acquire(new(step).begin(a, a.resources[n:n+1], a.keys[n:n+1]))
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

// firstAnswer is how long Redis has for the first answer if a caller waits for less.
const firstAnswer = 250 * time.Millisecond

// limit bounds the waiting as [WaitAtMost] says. The first request has firstAnswer at least.
func (a *acquisition) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	if a.patience == nil || a.noWait {
		return ctx, func() {}
	}
	waited := fmt.Errorf("waited %v: %w", *a.patience, context.DeadlineExceeded)
	waiting, cancel := context.WithTimeoutCause(ctx, *a.patience, waited)
	if *a.patience >= firstAnswer {
		return waiting, cancel
	}
	var cancelFirst context.CancelFunc
	a.first, cancelFirst = context.WithTimeoutCause(ctx, firstAnswer, waited)
	return waiting, func() { cancel(); cancelFirst() }
}

// asking is the context of the next request of a waiter in ctx.
func (a *acquisition) asking(ctx context.Context) context.Context {
	if first := a.first; first != nil {
		a.first = nil
		return first
	}
	return ctx
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
