package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/internal/protocol"
)

// acquisition is one call of the program, for one resource or several. It asks in steps. On the way
// from [Issuer.Acquire] to Redis and back one calls the other:
//
//	acquire       begins and ends the call, for tracers and for Close, and begins anew where the data
//	              store does not take the leases
//	obtain        in one step, or one step for each resource
//	wait          the line in this process (lines.go), then Redis's queue
//	ask           what is granted, or who holds
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

// acquire is every acquisition, of one resource, or of several in the byte order that all keep. It
// has the leases sealed before their holder learns that it holds. Close ends it, and takes its
// leases back. It ends its tracing, after a panic too.
func (i *Issuer) acquire(ctx context.Context, resources []string, opts []Option) (leases Leases, err error) {
	if err := i.ready(resources...); err != nil {
		return nil, err
	}
	a, err := newAcquisition(ctx, i.core, resources, slices.Concat(i.opts, opts))
	if err != nil {
		return nil, err
	}
	t := i.trace(ctx, TraceStart{Op: OpAcquire, Resource: resources[0], Resources: len(resources),
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
	ctx, closed := i.registry.begin(t.ctx, &a.open)
	if closed != nil {
		return nil, a.failed(closed)
	}
	defer i.registry.ended(&a.open)
	asking, waiting, cancel := a.limit(ctx)
	defer cancel()
	var blocked error // why the latest leases could not be sealed
	for pause := pollFirst; ; pause = min(2*pause, pollLast) {
		got, failed := a.obtain(asking, waiting)
		if failed != nil {
			err = protocol.Join(blocked, a.failed(failed))
			break
		}
		var again bool
		got, again, failed = a.seal(ctx, got)
		if !again || !a.behind.wait(waiting) || !protocol.Sleep(waiting, protocol.Jitter(pause)) {
			leases, err = got, failed
			break
		}
		blocked = failed
	}
	if i.registry.closing() {
		a.behind.giveBack(ctx, leases...)
		leases, err = nil, a.failed(ErrClosed)
	}
	if err != nil {
		a.withdraw()
	}
	a.behind.waitBriefly(ctx)
	return leases, err
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
// after the other. It also waits for one resource after the other. It gives all back if one is
// refused.
func (a *acquisition) obtain(asking, waiting context.Context) (Leases, error) {
	a.from = 0
	inOneScript := a.core.store.spans(a.keys)
	if len(a.resources) == 1 || inOneScript && a.noWait {
		return a.newStep(0, len(a.resources)).wait(asking, waiting)
	}
	var refused *HeldError // by an answer about all
	if inOneScript {
		all, err := a.newStep(0, len(a.resources)).ask(asking, modeTry, a.core.cfg.TTL)
		held, is := errors.AsType[*HeldError](err)
		if !is {
			return all, err
		}
		if refused = held; waiting.Err() != nil {
			refused.Cause = context.Cause(waiting)
			return nil, refused
		}
	}
	var leases Leases
	whole := false
	defer func() {
		if !whole { // also after a panic
			a.behind.giveBack(a.caller, leases...)
		}
	}()
	for n := range a.resources {
		one, err := a.newStep(n, n+1).wait(asking, waiting)
		if err == nil {
			leases = append(leases, one...)
			err = leases.lost() // waiting may have taken longer than an earlier one lasts
		}
		if err == nil {
			continue
		}
		over := waiting.Err() != nil && (errors.Is(err, ErrUnreachable) || errors.Is(err, context.Cause(waiting)))
		if refused != nil && over && !errors.Is(err, ErrHeld) { // that was the last answer
			refused.Cause = context.Cause(waiting)
			return nil, refused
		}
		return nil, err
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

func (a *acquisition) takeBack(from, to int) *owed {
	o := &owed{trace: tracing{ctx: a.caller}}
	o.calls = o.oneCall[:0]
	for _, k := range a.keys[from:to] {
		o.calls = append(o.calls, a.core.store.withdraw(k, a.text))
	}
	a.core.registry.owe(o, a.resources[from:to]...)
	a.core.registry.gather(o)
	return o
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

// step asks for one resource of an acquisition, or for all of them together.
type step struct {
	of        *acquisition
	core      *core
	from, to  int // of its resources
	resources []string
	keys      []*protocol.Keys
	waits     *tracing // nil until the resource was found taken
}

// newStep begins a step for the resources from n up to m.
func (a *acquisition) newStep(n, m int) *step {
	s := &a.room.step
	if a.step != nil { // a late request of a step before may still use it
		s = new(step)
	}
	*s = step{of: a, core: a.core, from: n, to: m, resources: a.resources[n:m], keys: a.keys[n:m]}
	a.step = s
	return s
}

// wait asks when its turn comes: it stands in this process's line and then in Redis's queue. There
// it asks whenever it is woken, and after the retry-after of the latest refusal. Where the call
// does not wait, it asks once. It is for one resource otherwise.
func (s *step) wait(asking, waiting context.Context) (leases Leases, err error) {
	ttl := s.core.cfg.TTL
	if s.of.noWait {
		return s.ask(asking, modeTry, ttl)
	}
	defer func() { s.endWait(leases, err) }()
	came := time.Now()
	l, err := s.core.lines.join(waiting, s.keys[0].Channel.(string), s.beginWait)
	if err != nil {
		held := s.still(waiting, l, came, s.held(0))
		if held.silent != nil {
			held.silent = fmt.Errorf("in line behind a caller of this process: %w", held.silent)
		}
		return nil, held
	}
	defer l.leave()
	var last *HeldError
	if s.waits != nil { // the callers in front of it have found it taken
		last = s.held(0)
	}
	for backoff := pollFirst; ; backoff = min(2*backoff, pollLast) {
		l.listenFor(s.of.text.(string))
		l.asks()
		since, why := l.silent(came)
		left := ttl - time.Since(since)
		if left <= 0 {
			return nil, cmp.Or(why, error(protocol.NoAnswer(ttl)))
		}
		leases, err = s.ask(asking, modeWait, left)
		if asking.Err() != nil {
			<-waiting.Done() // which ends with asking, a moment later
		}
		err = l.note(waiting, err)
		refused, held := errors.AsType[*HeldError](err)
		switch {
		case err == nil:
			return leases, nil
		case held:
			s.beginWait(waiting)
			last = refused
			s.sleep(waiting, l, last.RetryAfter, backoff)
			err = l.refused()
		case protocol.Transient(err) && !errors.Is(err, redis.ErrClosed): // which no waiting ends
			left = ttl - time.Since(since)
			if left > 0 && protocol.Sleep(waiting, min(protocol.Jitter(backoff), max(left/2, pollFirst))) {
				err = nil
			}
		}
		switch {
		case waiting.Err() != nil && last != nil:
			return nil, s.still(waiting, l, came, last)
		case err != nil:
			return nil, protocol.Ended(waiting, err)
		}
	}
}

// still is the refusal of a step whose waiting has ended. It says who does not answer the front of
// the line, if that is so: then nobody knows who holds.
func (s *step) still(waiting context.Context, l *line, came time.Time, refused *HeldError) *HeldError {
	refused.Cause = context.Cause(waiting)
	since, why := l.silent(came)
	switch {
	case time.Since(since) <= protocol.Grace:
	case errors.Is(why, ErrRefused):
		refused.silent = protocol.Ended(waiting, why)
	default:
		refused.silent = protocol.Latest(why, s.core.store.redis.Unanswered(waiting, s.keys[0].Owner.(string), since))
	}
	return refused
}

// held is the refusal of the nth resource, whoever holds it.
func (s *step) held(n int) *HeldError {
	return &HeldError{Resource: s.resources[n], permit: s.core.cfg.permits > 0}
}

// beginWait notes that the resource was found taken.
func (s *step) beginWait(ctx context.Context) {
	if s.waits == nil {
		t := s.core.trace(ctx, TraceStart{Op: OpWait, Resource: s.resources[0], LeaseID: s.of.id})
		s.waits = &t
	}
}

// endWait notes that the waiting is over, if there was any.
func (s *step) endWait(leases Leases, err error) {
	if s.waits != nil {
		if l := leases.first(); l != nil {
			s.waits.start.LeaseID, s.waits.start.Token = l.id, l.term.token
		}
		s.waits.end(0, byCaller(s.waits.ctx, err))
	}
}

// sleep returns when the waiter is woken, or should have been.
func (s *step) sleep(ctx context.Context, l *line, held, backoff time.Duration) {
	woken := l.woken(s.of.text.(string))
	if woken == nil {
		held = min(held, backoff/2+protocol.Below(backoff))
	}
	timer := time.NewTimer(spread(held))
	defer timer.Stop()
	for {
		select {
		case <-woken:
			news := l.subscription.told()
			if news.ask {
				return
			}
			timer.Reset(spread(news.look))
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// spread makes d a little longer, so that not all waiters ask at once.
func spread(d time.Duration) time.Duration { return d + protocol.Below(d/20+time.Millisecond) }

// How often to ask a store that cannot wake waiters.
const (
	pollFirst = 10 * time.Millisecond
	pollLast  = time.Second
)

// ask asks until there is an answer, all leases or a [HeldError], or until bound has passed. An
// answer that arrives after its own trust window counts as none.
func (s *step) ask(ctx context.Context, how mode, bound time.Duration) (Leases, error) {
	core := s.core
	if ctx.Err() == nil { // or nothing is sent
		s.of.to = max(s.of.to, s.to)
	}
	call := core.store.acquire(s.keys, s.of.text, how)
	call.Caller = s
	answer, err := protocol.Ask(ctx, core.store.redis, bound, call, func(r protocol.Reply) (acquired, error) {
		answer, err := core.store.decodeAcquire(r, len(s.keys))
		if answer.tokens != nil && !time.Now().Before(core.trustedUntil(r.Sent, core.cfg.TTL)) {
			err = errTooLate
		}
		return answer, err
	})
	switch {
	case err != nil:
		return nil, err
	case answer.tokens == nil:
		if how == modeTry && !answer.again { // which leaves no trace in Redis
			s.of.to = s.from
		}
		held := s.held(answer.index)
		held.RetryAfter, held.Holder = answer.wait, answer.holder
		return nil, held
	}
	leases := make(Leases, len(s.keys))
	for n, token := range answer.tokens {
		leases[n] = s.newLease(n, token, answer.sent)
	}
	s.of.from = s.to
	return leases, nil
}

var errTooLate = fmt.Errorf("%w: the answer took longer than the lease lasts", ErrUnreachable)

// Abandoned implements [protocol.Caller]. When the request that was cut short has ended after all,
// its result is withdrawn once more: it may have waited for a connection and reached Redis long
// after the withdrawal, which would leave a waiter or a holder without a caller. Only one that
// arrives when the client has given it up too blocks the resource, for one TTL at most.
func (s *step) Abandoned() (ended func()) {
	o := s.core.registry.owe(new(owed), s.resources...)
	return func() {
		if s.of.withdrawn.Load() {
			s.of.takeBack(s.from, s.to)
		}
		o.settle(nil)
	}
}
