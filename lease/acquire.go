package lease

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	protocol "github.com/fencedb/fencedb/lease/internal/redis"
)

// Option changes one acquisition.
type Option func(*acquisition)

// WithLeaseID gives the acquisition its lease id instead of a random one. A program that asks again with the id of an
// acquisition whose outcome it does not know gets that very lease, if it still holds, with its token. Never use one id for
// two pieces of work: both would hold.
func WithLeaseID(id uuid.UUID) Option { return func(a *acquisition) { a.id = id } }

// Barge lets [Issuer.TryAcquire] go ahead of those who wait. Without it a free resource that others wait for is held for them.
func Barge() Option { return func(a *acquisition) { a.barge = true } }

// acquisition is one call of TryAcquire, Acquire, or one of those for several resources.
type acquisition struct {
	issuer    *Issuer
	caller    context.Context // gives its values to the leases
	resources []string
	keys      []protocol.Keys // of the resources, in their order
	id        uuid.UUID
	call      *call
	barge     bool
	patience  *time.Duration // of WaitAtMost; nil: as long as the context allows
	noWait    bool
	first     context.Context // of the first request, if it differs from that of the waiting
	asked     bool            // a request may have reached Redis
	requests  int64           // sent
	standing  standing        // since the latest refusal
	waits     *tracing        // nil until the resource was found taken
}

// call is what one call of the program has of its own, and all requests of it have in common; a lease id may be shared
// by several. So a withdrawal ends what its own call was granted, and nothing else. The steps of one call share it.
type call struct {
	id        string
	unsure    atomic.Bool // a request may still be under way: it was sent and not answered
	withdrawn atomic.Bool // what the requests have left is being taken back

	*behind // what the call gives back
}

func newCall() *call { return (&call{behind: new(behind)}).again() }

// again is a call of another name that owes what this one does.
func (c *call) again() *call { return &call{id: fmt.Sprintf("%016x", rand.Uint64()), behind: c.behind} }

func (i *Issuer) acquisition(ctx context.Context, resources []string, opts []Option) (*acquisition, error) {
	if err := i.ready(); err != nil {
		return nil, err
	}
	a := &acquisition{issuer: i, caller: ctx, resources: resources, id: uuid.New(), call: newCall()}
	for _, resource := range resources {
		if err := checkResource(resource); err != nil {
			return nil, err
		}
		a.keys = append(a.keys, i.keys(resource))
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
	return a, nil
}

// part is the acquisition of the nth resource alone, as a step of the whole.
func (a *acquisition) part(n int) *acquisition {
	return &acquisition{issuer: a.issuer, caller: a.caller, resources: a.resources[n : n+1], keys: a.keys[n : n+1],
		id: a.id, call: a.call, barge: a.barge}
}

// name is what errors call the resources.
func (a *acquisition) name() string {
	if len(a.resources) == 1 {
		return strconv.Quote(a.resources[0])
	}
	return fmt.Sprintf("%d resources from %q", len(a.resources), a.resources[0])
}

// TryAcquire asks once and does not wait: [ErrHeld] with the time after which to ask again, if another holds the resource.
//
// A request that goes unanswered is sent again, twice at most and within one TTL, with the same lease id; so an answer
// that was lost does no harm. Cancelling ctx ends the attempt at once; what it may have been granted is given back
// behind the call, for as long as that can matter, and [Issuer.Close] waits for it. After the return ctx has no
// influence on the lease. Every error means that this call holds nothing, except that after [ErrUnreachable] the
// resource may stay blocked for up to one TTL.
func (i *Issuer) TryAcquire(ctx context.Context, resource string, opts ...Option) (*Lease, error) {
	a, err := i.acquisition(ctx, []string{resource}, opts)
	if err != nil {
		return nil, err
	}
	leases, err := a.run(ctx, a.try)
	return leases.first(), err
}

// run is round every acquisition: what ask gets is sealed before the holder learns that it holds.
func (a *acquisition) run(ctx context.Context, ask func(context.Context) (Leases, error)) (Leases, error) {
	t := a.issuer.trace(ctx, TraceStart{Op: OpAcquire, Resource: a.resources[0], Resources: len(a.resources), LeaseID: a.id})
	leases, err := a.begun(t.ctx, func(ctx context.Context) (Leases, error) {
		leases, err := ask(ctx)
		if err != nil {
			return nil, a.failed(err)
		}
		return a.seal(ctx, leases)
	})
	t.granted(leases.first()).end(leases.first(), err)
	return leases, err
}

// begun is round everything that may be granted something: Close ends it, and leaves nobody with a lease.
func (a *acquisition) begun(ctx context.Context, ask func(context.Context) (Leases, error)) (Leases, error) {
	open := a.issuer.open
	ctx, end, err := open.begin(ctx)
	if err != nil {
		return nil, a.failed(err)
	}
	defer end()
	leases, err := ask(ctx)
	if open.closing.Err() != nil {
		a.call.giveBack(ctx, leases)
		leases, err = nil, a.failed(ErrClosed)
	}
	a.call.await()
	return leases, err
}

// try asks without waiting.
func (a *acquisition) try(ctx context.Context) (Leases, error) {
	m := try
	if a.barge {
		m = barge
	}
	leases, refused, err := a.attempt(ctx, m, a.issuer.cfg.TTL)
	if err != nil {
		a.withdraw()
		return nil, err
	}
	if refused != nil {
		return nil, refused
	}
	return leases, nil
}

// Acquire waits until it is its turn: first come, first served. Waiters of one process stand in a line there, and the
// first of each line stands in Redis's queue; a release grants to the first of that who listens. News that is lost
// costs at most five seconds. A waiter that has died costs nobody more than half a second, one that is stopped a
// second.
//
// The context bounds the waiting, and [WaitAtMost] does. When it ends, the error is [ErrHeld] as well as the reason why
// it ended, if the last that was heard is that another holds the resource; the waiter leaves the queue behind the call.
// An outage of Redis, such as a fail-over or a server that hangs, is sat out for one TTL from the first request that it
// leaves without an answer, and no longer. Otherwise Acquire is like [Issuer.TryAcquire].
func (i *Issuer) Acquire(ctx context.Context, resource string, opts ...Option) (*Lease, error) {
	a, err := i.acquisition(ctx, []string{resource}, opts)
	if err != nil {
		return nil, err
	}
	if a.noWait {
		leases, err := a.run(ctx, a.try)
		return leases.first(), err
	}
	leases, err := a.run(ctx, func(ctx context.Context) (Leases, error) {
		waiting, cancel := a.limit(ctx)
		defer cancel()
		return a.wait(waiting)
	})
	return leases.first(), err
}

// NoWait makes [Issuer.Acquire], [Issuer.AcquireAll], [Issuer.Do] and [Issuer.DoAll] try once, as [Issuer.TryAcquire]
// does: [ErrHeld] at once if another holds the resource, and then nothing was run.
func NoWait() Option { return func(a *acquisition) { a.noWait = true } }

// WaitAtMost bounds the waiting of [Issuer.Acquire], and of [Issuer.Do] before the work begins. The error is then
// [ErrHeld] and [context.DeadlineExceeded]. The time must be positive: [NoWait] is for none.
//
// Redis is asked once however short the time is, unless others of this process stand in line before this call, and has
// a quarter of a second at least for that answer. So a free resource is granted, and [ErrUnreachable] means what it
// says.
func WaitAtMost(d time.Duration) Option {
	return func(a *acquisition) { a.patience = &d }
}

// firstAnswer is how long Redis has for the first answer when a caller waits for less.
const firstAnswer = 250 * time.Millisecond

// limit bounds the waiting as [WaitAtMost] says. The first request has firstAnswer at least.
func (a *acquisition) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	if a.patience == nil {
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

// asking is the context of the next request of one that waits in ctx.
func (a *acquisition) asking(ctx context.Context) context.Context {
	if first := a.first; first != nil {
		a.first = nil
		return first
	}
	return ctx
}

// wait stands in this process's line and then in Redis's queue. It is for one resource.
func (a *acquisition) wait(ctx context.Context) (leases Leases, err error) {
	defer func() { a.waited(leases, err) }()
	came := time.Now()
	t, err := a.issuer.lines.join(ctx, a.keys[0].Channel, a.waiting)
	if err != nil {
		return nil, &HeldError{Resource: a.resources[0], Cause: err}
	}
	defer t.leave()
	leases, err = a.queue(ctx, t, came)
	if err != nil {
		a.withdraw()
	}
	return leases, err
}

// waiting notes that the resource was found taken.
func (a *acquisition) waiting(ctx context.Context) {
	if a.waits == nil {
		t := a.issuer.trace(ctx, TraceStart{Op: OpWait, Resource: a.resources[0], LeaseID: a.id})
		a.waits = &t
	}
}

// waited notes that the waiting is over, if there was any.
func (a *acquisition) waited(leases Leases, err error) {
	if a.waits != nil {
		a.waits.granted(leases.first()).end(nil, err)
	}
}

// queue asks whenever it is woken, and when the time is over after which Redis said that asking is worthwhile.
func (a *acquisition) queue(ctx context.Context, t *turn, came time.Time) (Leases, error) {
	var last *HeldError
	if a.waits != nil { // those in front of it in the line have heard so
		last = &HeldError{Resource: a.resources[0]}
	}
	for backoff := pollFirst; ; backoff = min(2*backoff, pollLast) {
		t.listenFor(a.call.id)
		left := t.line.silence.left(came, a.issuer.cfg.TTL)
		if left <= 0 {
			return nil, t.line.silence.why
		}
		leases, refused, err := a.attempt(a.asking(ctx), wait, left)
		if !protocol.Transient(err) {
			t.line.silence = silence{}
		} else if ctx.Err() == nil { // else the error is about this caller
			t.line.silence.why = protocol.Latest(t.line.silence.why, err)
		}
		switch {
		case leases != nil:
			return leases, nil
		case refused != nil:
			a.waiting(ctx)
			last = refused
			a.sleep(ctx, t, refused.RetryAfter, backoff)
			if leases = a.handedOver(ctx, t); leases != nil {
				return leases, nil
			}
			if err = t.refusal(); err != nil {
				return nil, err
			}
		case protocol.Transient(err):
			left = t.line.silence.left(came, a.issuer.cfg.TTL)
			if protocol.Sleep(ctx, min(protocol.Jitter(backoff), left)) && left > 0 {
				continue
			}
		}
		switch {
		case ctx.Err() != nil && last != nil:
			last.Cause = context.Cause(ctx)
			return nil, last
		case err != nil:
			return nil, protocol.Ended(ctx, err)
		}
	}
}

// sleep returns when the waiter is woken, or should have been.
func (a *acquisition) sleep(ctx context.Context, t *turn, held, backoff time.Duration) {
	woken := t.woken(a.call.id)
	if woken == nil {
		held = min(held, backoff/2+rand.N(backoff)) // far apart, or rivals for a majority split it again and again
	}
	timer := time.NewTimer(spread(held))
	defer timer.Stop()
	for {
		select {
		case <-woken:
			look := t.lookAfter()
			if look == 0 {
				return
			}
			timer.Reset(spread(look))
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// spread makes it a little longer, so that not all ask at once.
func spread(d time.Duration) time.Duration { return d + rand.N(d/20+time.Millisecond) }

// How often to ask a store that wakes nobody.
const (
	pollFirst = 10 * time.Millisecond
	pollLast  = time.Second
)

// attempt asks until there is an answer, all leases or a refusal, or until bound has passed.
func (a *acquisition) attempt(ctx context.Context, m mode, bound time.Duration) (leases Leases, refused *HeldError, err error) {
	err = protocol.Persist(ctx, bound, func(ctx context.Context) error {
		leases, refused, err = a.once(ctx, m)
		return err
	})
	return leases, refused, err
}

// once asks one time. An answer that comes when its trust window is over already is as good as none.
func (a *acquisition) once(ctx context.Context, m mode) (Leases, *HeldError, error) {
	i := a.issuer
	if _, votes := i.store.(*quorum); votes && a.call.unsure.Load() { // what takes back the last vote may reach a member after the next
		a.withdraw()
		a.call = a.call.again()
	}
	a.asked = a.asked || ctx.Err() == nil
	a.requests++
	sent := time.Now()
	c := a.call
	abandoned := func() func() { return a.abandoned(c) }
	answer, err := i.store.acquire(ctx, ask{a.keys, a.id, c.id, a.requests, m, i.cfg.TTL, i.cfg.FenceRetention, abandoned})
	if answer.unsure || errors.Is(err, ErrUnreachable) {
		c.unsure.Store(true)
	}
	switch {
	case err != nil:
		return nil, nil, err
	case answer.tokens == nil:
		a.standing = standing{sent, a.requests}
		return nil, &HeldError{Resource: a.resources[answer.index], RetryAfter: answer.wait}, nil
	case !time.Now().Before(i.trustedUntil(sent, i.cfg.TTL)):
		return nil, nil, errTooLate
	}
	leases := make(Leases, len(a.keys))
	for n, k := range a.keys {
		leases[n] = newLease(a.caller, i, a.resources[n], a.term(k, answer.tokens[n]), sent, sent)
	}
	return leases, nil, nil
}

// term is the lease with that token.
func (a *acquisition) term(k protocol.Keys, token int64) term {
	return term{k, a.id, token, a.call.id, a.call.unsure.Load()}
}

var errTooLate = fmt.Errorf("%w: the answer took longer than the lease lasts", ErrUnreachable)

// withdraw leaves nothing behind of an acquisition that failed: no waiter, and no grant whose reply was lost.
func (a *acquisition) withdraw() {
	if a.asked {
		a.call.withdrawn.Store(true)
		a.call.debts = append(a.call.debts, a.takeBack(a.call))
	}
}

func (a *acquisition) takeBack(c *call) *debt {
	left := a.keys
	return a.issuer.open.giveBack(a.caller, a.resources, a.issuer.cfg.TTL, func(ctx context.Context) error {
		for ; len(left) > 0; left = left[1:] {
			t := term{keys: left[0], id: a.id, call: c.id, unsure: c.unsure.Load()}
			if err := a.issuer.store.withdraw(ctx, t, a.issuer.cfg.FenceRetention); err != nil {
				return err
			}
		}
		return nil
	}, func() {})
}

// abandoned is called when a request was cut short. When it has come to its end, after all, what it has left is
// withdrawn once more: it may have waited for a connection and reached Redis long after the withdrawal, which would
// leave a waiter, or a holder, that nobody stands for.
func (a *acquisition) abandoned(c *call) (ended func()) {
	c.unsure.Store(true)
	d := a.issuer.open.owe(a.resources, a.issuer.cfg.TTL)
	return func() {
		if c.withdrawn.Load() {
			a.takeBack(c)
		}
		a.issuer.open.settle(d, nil)
	}
}

func (a *acquisition) failed(err error) error {
	if errors.Is(err, ErrHeld) {
		return err
	}
	return fmt.Errorf("lease: acquire %s: %w", a.name(), err)
}

// seal runs Config.Seal for all, before the holder learns that it holds. If it fails, all are given back.
func (a *acquisition) seal(ctx context.Context, leases Leases) (Leases, error) {
	for _, l := range leases {
		if err := a.issuer.seal(ctx, l); err != nil {
			a.call.giveBack(ctx, leases)
			return nil, fmt.Errorf("lease: seal %q: %w", l.resource, err)
		}
	}
	return leases, nil
}

func (i *Issuer) seal(ctx context.Context, l *Lease) error {
	if i.cfg.Seal == nil {
		return nil
	}
	if err := i.cfg.Seal(ctx, l); err != nil {
		return err
	}
	return l.Err()
}
