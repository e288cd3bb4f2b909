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

// acquisition is one call of the program, for one resource or several. It asks in steps. On the way
// from [Issuer.Acquire] to Redis and back one calls the other:
//
//	run           begins and ends the call, for tracers and for Close
//	obtainSealed  begins anew where the data store does not take the leases
//	obtain        in one step, or one step for each resource
//	wait, queue   the line in this process, then Redis's queue (wait.go)
//	ask           requests, until one has an answer
//	store.acquire the words of one request (store.go)
type acquisition struct {
	options
	core      *core
	caller    context.Context // gives its values to the leases
	resources []string
	keys      []*protocol.Keys // of the resources, in their order
	text      word             // the lease id
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
	if a.shared { // also with one that was acquired before
		c.registry.shares.Store(true)
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
	leases, err = a.obtainSealed(ctx)
	if registry.closing() {
		a.behind.giveBack(ctx, leases...)
		leases, err = nil, a.failed(ErrClosed)
	}
	a.behind.waitBriefly(ctx)
	return leases, err
}

// obtainSealed obtains the leases and has them sealed before their holder learns that it holds.
func (a *acquisition) obtainSealed(ctx context.Context) (Leases, error) {
	asking, waiting, cancel := a.limit(ctx)
	defer cancel()
	var blocked error // why the latest leases could not be sealed
	for {
		leases, err := a.obtain(asking, waiting)
		if err != nil {
			return nil, protocol.Join(blocked, a.failed(err))
		}
		leases, again, err := a.seal(ctx, leases)
		if !again || !a.behind.wait(waiting) {
			return leases, err
		}
		blocked = err
	}
}

// firstAnswer is how long Redis has for an answer if a caller waits for less.
const firstAnswer = 250 * time.Millisecond

// limit bounds the waiting as [WaitAtMost] says, and requests by the same time or firstAnswer,
// whichever is later.
func (a *acquisition) limit(ctx context.Context) (asking, waiting context.Context, cancel context.CancelFunc) {
	if a.patience == nil {
		return ctx, ctx, func() {}
	}
	waited := fmt.Errorf("waited %v: %w", *a.patience, context.DeadlineExceeded)
	asking, cancelAsking := context.WithTimeoutCause(ctx, max(*a.patience, firstAnswer), waited)
	waiting, cancelWaiting := context.WithTimeoutCause(asking, *a.patience, waited)
	return asking, waiting, func() { cancelWaiting(); cancelAsking() }
}

// obtain asks for everything at once where one script can see it, and otherwise for one resource
// after the other. It also waits for one resource after the other.
func (a *acquisition) obtain(asking, waiting context.Context) (Leases, error) {
	inOneScript := a.core.store.spans(a.keys)
	inTurn := func(s *step) (Leases, error) { return s.wait(asking, waiting) }
	switch {
	case a.noWait && inOneScript:
		return a.all().try(asking)
	case a.noWait:
		return a.stepByStep(func(s *step) (Leases, error) { return s.try(asking) })
	case len(a.resources) == 1:
		return inTurn(a.all())
	case !inOneScript:
		return a.stepByStep(inTurn)
	}
	leases, err := a.all().try(asking)
	held, refused := errors.AsType[*HeldError](err)
	if !refused {
		return leases, err
	}
	if a.behind.wait(waiting) {
		leases, err = a.stepByStep(inTurn)
		silent := errors.Is(err, ErrUnreachable) || errors.Is(err, context.Cause(waiting))
		if waiting.Err() == nil || !silent || errors.Is(err, ErrHeld) {
			return leases, err
		}
	}
	held.Cause = context.Cause(waiting) // the time is over, and this was the last answer
	return nil, held
}

// stepByStep acquires one after the other, and gives all back if one is refused.
func (a *acquisition) stepByStep(acquire func(s *step) (Leases, error)) (Leases, error) {
	var leases Leases
	whole := false
	defer func() {
		if !whole { // also after a panic
			a.behind.giveBack(a.caller, leases...)
		}
	}()
	for n := range a.resources {
		l, err := acquire(a.newStep(n, n+1))
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

func (a *acquisition) failed(err error) error {
	if errors.Is(err, ErrHeld) {
		return err
	}
	if len(a.resources) > 1 {
		return fmt.Errorf("lease: acquire %d resources from %q: %w", len(a.resources), a.resources[0], err)
	}
	return fmt.Errorf("lease: acquire %q: %w", a.resources[0], err)
}

// step asks for one resource of an acquisition, or for all of them together. It is a call of the
// protocol: its name is in all its requests and in its withdrawal, so that this ends only what the
// step was granted, also where others share its lease id.
type step struct {
	*acquisition
	resources []string
	keys      []*protocol.Keys
	name      word        // of the call
	asked     bool        // a request may have reached Redis
	unsure    atomic.Bool // a request may still be under way: it was sent and not answered
	withdrawn atomic.Bool // what the requests were granted is being taken back
	waits     *tracing    // nil until the resource was found taken
}

// all is the step that asks for all resources.
func (a *acquisition) all() *step { return a.newStep(0, len(a.resources)) }

// newStep begins a step for the resources from n up to m.
func (a *acquisition) newStep(n, m int) *step {
	s := &a.room.step
	if a.step != nil { // a late request of a step before may still use it
		s = new(step)
	}
	s.acquisition, s.resources, s.keys, s.name = a, a.resources[n:m], a.keys[n:m], protocol.NewCall(a.core.label)
	a.step = s
	return s
}

// try asks without waiting.
func (s *step) try(ctx context.Context) (Leases, error) {
	how := modeTry
	if s.barge {
		how = modeBarge
	}
	leases, err := s.ask(ctx, how, s.core.cfg.TTL)
	switch {
	case errors.Is(err, ErrHeld) && !s.unsure.Load(): // it left no trace
	case err != nil: // also if an earlier request may arrive when the holder has gone
		s.withdraw()
	}
	return leases, err
}

// ask asks until there is an answer, all leases or a [HeldError], or until bound has passed. An
// answer that arrives after its own trust window counts as none.
func (s *step) ask(ctx context.Context, how mode, bound time.Duration) (Leases, error) {
	core := s.core
	var sent time.Time
	answer, err := protocol.Persist(ctx, bound, func(ctx context.Context) (acquired, error) {
		s.asked = s.asked || ctx.Err() == nil
		sent = time.Now()
		answer, err := core.store.acquire(ctx, request{s.keys, s.text, s.name, how, s})
		switch {
		case errors.Is(err, ErrUnreachable):
			s.unsure.Store(true)
		case answer.tokens != nil && !time.Now().Before(core.trustedUntil(sent, core.cfg.TTL)):
			err = errTooLate
		}
		return answer, err
	})
	switch {
	case err != nil:
		return nil, err
	case answer.tokens == nil:
		return nil, &HeldError{Resource: s.resources[answer.index], RetryAfter: answer.wait, Holder: answer.holder,
			permit: core.cfg.permits > 0}
	}
	leases := make(Leases, len(s.keys))
	for n, token := range answer.tokens {
		leases[n] = s.newLease(n, token, sent)
	}
	return leases, nil
}

var errTooLate = fmt.Errorf("%w: the answer took longer than the lease lasts", ErrUnreachable)

// withdraw removes what a failed step may have left in Redis: a waiter, or a grant whose reply was
// lost.
func (s *step) withdraw() {
	if s.asked {
		s.withdrawn.Store(true)
		s.behind.owes(s.takeBack())
	}
}

// takeBack withdraws what the step was granted.
func (s *step) takeBack() *debt {
	calls := make([]protocol.Call, len(s.keys))
	for n, k := range s.keys {
		calls[n] = s.core.store.withdrawal(k, s.text, s.name)
	}
	return s.core.withdrawals.add(s.caller, calls, s.resources)
}

// Abandoned implements [protocol.Caller]. When the request that was cut short has ended after all,
// its result is withdrawn once more: it may have waited for a connection and reached Redis long
// after the withdrawal, which would leave a waiter or a holder without a caller. Only one that
// arrives when the client has given it up too blocks the resource, for one TTL at most.
func (s *step) Abandoned() (ended func()) {
	s.unsure.Store(true)
	d := s.core.registry.owe(new(debt), s.core.cfg.TTL, s.resources...)
	return func() {
		if s.withdrawn.Load() {
			s.takeBack()
		}
		d.settle(nil)
	}
}
