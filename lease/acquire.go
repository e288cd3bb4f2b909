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
//	wait, queue   the line in this process, then Redis's queue (step.go, lines.go)
//	ask           what is granted, or who holds (step.go)
//	protocol.Ask  attempts, until one has an answer
type acquisition struct {
	options
	core      *core
	caller    context.Context // gives its values to the leases
	id        uuid.UUID       // of the leases, and of the waiter
	text      word            // the same
	resources []string
	keys      []*protocol.Keys // of the resources, in their order
	step      *step            // the latest
	raised    int              // how often the last token was, because it was behind the fence
	behind    behind           // what goes on behind the call
	open      openCall         // from its beginning to its end

	// Redis may have a place in the queue, or a grant that was not heard, for resources[from:to].
	from, to  int
	withdrawn atomic.Bool // what the requests were granted is being taken back

	room struct { // of what is above, for one resource
		resource [1]string
		keys     [1]*protocol.Keys
		step     step
	}
}

func newAcquisition(ctx context.Context, c *core, resources []string, opts []Option) (*acquisition, error) {
	a := &acquisition{core: c, caller: ctx, id: protocol.NewID()}
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
			a.withdraw()
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
	defer registry.ended(&a.open)
	leases, err = a.obtainSealed(ctx)
	if registry.closing() {
		a.behind.giveBack(ctx, leases...)
		leases, err = nil, a.failed(ErrClosed)
	}
	if err != nil {
		a.withdraw()
	}
	a.behind.waitBriefly(ctx)
	return leases, err
}

// obtainSealed obtains the leases and has them sealed before their holder learns that it holds.
func (a *acquisition) obtainSealed(ctx context.Context) (Leases, error) {
	asking, waiting, cancel := a.limit(ctx)
	defer cancel()
	var blocked error // why the latest leases could not be sealed
	for pause := pollFirst; ; pause = min(2*pause, pollLast) {
		leases, err := a.obtain(asking, waiting)
		if err != nil {
			return nil, protocol.Join(blocked, a.failed(err))
		}
		leases, again, err := a.seal(ctx, leases)
		if !again || !a.behind.wait(waiting) || !protocol.Sleep(waiting, protocol.Jitter(pause)) {
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
	a.from = 0
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
	if waiting.Err() == nil {
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

// withdraw removes what a failed acquisition may have left in Redis: a place in the queue, or a
// grant whose reply was lost.
func (a *acquisition) withdraw() {
	a.withdrawn.Store(true)
	if a.from < a.to {
		a.behind.owes(a.takeBack(a.from, a.to))
	}
}

func (a *acquisition) takeBack(from, to int) *debt {
	var calls []protocol.Call
	for _, k := range a.keys[from:to] {
		calls = append(calls, a.core.store.withdraw(k, a.text))
	}
	return a.core.withdrawals.add(a.caller, calls, a.resources[from:to])
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
