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

// acquisition is one call of the program that acquires one resource or several. From
// [Issuer.Acquire] to Redis, each of these functions calls the next:
//
//	acquire       begins and ends the call, for tracers and for Close; repeats it if the leases could
//	              not be sealed
//	obtain        asks for all resources in one step, or for each resource in a step of its own
//	wait          waits in the line of this process (lines.go), then in Redis's queue
//	ask           asks Redis: the answer is the leases, or who holds
//	protocol.Ask  makes attempts, until one has an answer
type acquisition struct {
	options
	core       *core
	caller     context.Context // of the call; its values go to the leases
	id         uuid.UUID       // of the leases, and of the waiter
	text       word            // id as a string
	resources  []string
	keys       []*protocol.Keys // of the resources, in their order
	step       *step            // the latest
	raised     int              // how often a last token was raised, because the fence was ahead of it
	background []*pending       // what the call gives back in the background
	open       openCall         // from the beginning of the call to its end
	endless    bool             // only Close ends its context, and waits for the call

	// For resources[from:to] Redis may have a place in the queue, or a grant whose reply was lost.
	from, to  int
	withdrawn atomic.Bool // withdraw has begun, so grants of late requests are withdrawn too

	room struct { // for the fields above, if there is one resource: saves allocations
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

// acquire is every acquisition, of one resource or of several in byte order. It has the leases
// sealed before it returns them. If Close begins meanwhile, the call fails and its leases are
// released. The tracing of the call ends in any case, even after a panic.
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
		if !returned { // a panic: the caller does not get the leases
			a.giveBack(a.caller, leases)
			a.withdraw()
		}
	}()
	defer func() {
		leases.endTracing(&t, err)
		returned = err != errPanicked
	}()
	a.endless = t.ctx.Done() == nil && a.patience == nil
	ctx, closed := i.registry.begin(t.ctx, &a.open)
	if closed != nil {
		return nil, a.failed(closed)
	}
	defer i.registry.ended(&a.open)
	asking, waiting, cancel := a.limit(ctx)
	defer cancel()
	var blocked error // why the leases could not be sealed the last time
	for pause := pollFirst; ; pause = min(2*pause, pollLast) {
		got, failed := a.obtain(asking, waiting)
		if failed != nil {
			err = protocol.Join(blocked, a.failed(failed))
			break
		}
		var again bool
		got, again, failed = a.seal(ctx, got)
		if !again || !a.givenBack(waiting) || !protocol.Sleep(waiting, protocol.Jitter(pause)) {
			leases, err = got, failed
			break
		}
		blocked = failed
	}
	if i.registry.closing() {
		a.giveBack(ctx, leases)
		leases, err = nil, a.failed(ErrClosed)
	}
	if err != nil {
		a.withdraw()
	}
	// If the caller's context has ended, it does not wait: thousands that are cancelled at once would
	// wait for each other's requests.
	if len(a.background) > 0 && ctx.Err() == nil {
		briefly, cancel := context.WithTimeout(ctx, protocol.Grace)
		defer cancel()
		a.givenBack(briefly)
	}
	return leases, err
}

// firstAnswer is how long Redis has at least for an answer, even if [WaitAtMost] is shorter.
const firstAnswer = 250 * time.Millisecond

// limit returns a context for the waiting, which [WaitAtMost] bounds, and one for the requests,
// which the greater of [WaitAtMost] and firstAnswer bounds.
func (a *acquisition) limit(ctx context.Context) (asking, waiting context.Context, cancel context.CancelFunc) {
	if a.patience == nil {
		return ctx, ctx, func() {}
	}
	waited := fmt.Errorf("waited %v: %w", *a.patience, context.DeadlineExceeded)
	asking, cancelAsking := context.WithTimeoutCause(ctx, max(*a.patience, firstAnswer), waited)
	waiting, cancelWaiting := context.WithTimeoutCause(asking, *a.patience, waited)
	return asking, waiting, func() { cancelWaiting(); cancelAsking() }
}

// obtain asks for all resources at once if one script can see them all. Otherwise, or if it has to
// wait, it takes one resource after the other, and gives all back if one is refused.
func (a *acquisition) obtain(asking, waiting context.Context) (Leases, error) {
	a.from = 0
	inOneScript := a.core.store.spans(a.keys)
	if len(a.resources) == 1 || inOneScript && a.noWait {
		return a.newStep(0, len(a.resources)).wait(asking, waiting)
	}
	var refused *HeldError // the answer about all resources
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
			a.giveBack(a.caller, leases)
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
		if refused != nil && over && !errors.Is(err, ErrHeld) { // refused is then the last answer of Redis
			refused.Cause = context.Cause(waiting)
			return nil, refused
		}
		return nil, err
	}
	whole = true
	return leases, nil
}

// giveBack releases leases that the call was granted and does not return, in the background.
func (a *acquisition) giveBack(ctx context.Context, leases Leases) {
	for _, l := range leases {
		o, begun := l.beginRelease(ctx, ErrReleased)
		if begun {
			o.goOn()
		}
		a.background = append(a.background, o)
	}
}

// givenBack waits until all is given back; it returns false if ctx ends before. A call that asks
// again with its lease id has to wait, or Redis would grant it the very lease that it gives back.
func (a *acquisition) givenBack(ctx context.Context) bool {
	for _, o := range a.background {
		select {
		case <-o.finished:
		case <-ctx.Done():
			return false
		}
	}
	a.background = nil
	return ctx.Err() == nil
}

// withdraw removes, in the background, what a failed acquisition may have left in Redis: a place in
// the queue, or a grant whose reply was lost.
func (a *acquisition) withdraw() {
	a.withdrawn.Store(true)
	if a.from < a.to {
		a.background = append(a.background, a.takeBack(a.from, a.to))
	}
}

func (a *acquisition) takeBack(from, to int) *pending {
	o := &pending{trace: tracing{ctx: a.caller}}
	o.calls = o.oneCall[:0]
	for _, k := range a.keys[from:to] {
		o.calls = append(o.calls, a.core.store.withdraw(k, a.text))
	}
	a.core.registry.add(o, a.resources[from:to]...)
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
	from, to  int // the step is for of.resources[from:to]
	resources []string
	keys      []*protocol.Keys
	waits     *tracing // nil until the resource was found taken
}

// newStep begins a step for the resources from n to m-1.
func (a *acquisition) newStep(n, m int) *step {
	s := &a.room.step
	if a.step != nil { // a late request of an earlier step may still use the room
		s = new(step)
	}
	*s = step{of: a, core: a.core, from: n, to: m, resources: a.resources[n:m], keys: a.keys[n:m]}
	a.step = s
	return s
}

// wait waits in the line of this process, and then in Redis's queue. There it asks, and asks again
// whenever it is woken, and after the retry-after of the latest refusal. With NoWait it asks once,
// for any number of resources. Otherwise the step has one resource.
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
			held.silent = fmt.Errorf("in line after a caller of this process: %w", held.silent)
		}
		return nil, held
	}
	defer l.leave()
	var last *HeldError
	if s.waits != nil { // it has waited in the line, so the resource was taken
		last = s.held(0)
	}
	for backoff := pollFirst; ; backoff = min(2*backoff, pollLast) {
		l.listenFor(s.of.text.(string))
		l.asks()
		since, why := l.silent(came)
		left := ttl - time.Since(since)
		if left <= 0 {
			return nil, cmp.Or(why, protocol.NoAnswer(ttl))
		}
		leases, err = s.ask(asking, modeWait, left)
		if asking.Err() != nil {
			<-waiting.Done() // waiting ends a moment after asking
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
		case protocol.Transient(err) && !errors.Is(err, redis.ErrClosed): // a closed client stays closed
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

// still is the refusal of a step whose waiting has ended. If Redis does not answer the front of the
// line, it is not known who holds, and the refusal says which server is silent.
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

// held is the refusal of the nth resource, without a holder.
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

// endWait notes that the waiting is over, if the resource was found taken.
func (s *step) endWait(leases Leases, err error) {
	if s.waits != nil {
		if l := leases.first(); l != nil {
			s.waits.start.LeaseID, s.waits.start.Token = l.id, l.term.token
		}
		s.waits.end(0, byCaller(s.waits.ctx, err))
	}
}

// sleep returns when the waiter is woken to ask, or when it is time to ask by itself: after held,
// or after the time in the latest "look" message.
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
			news := l.subscription.latest()
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

// The first and the longest pause of an acquisition that is not woken: after a request that failed,
// after a seal that failed, or without a subscription.
const (
	pollFirst = 10 * time.Millisecond
	pollLast  = time.Second
)

// ask asks until there is an answer, which is all leases or a [HeldError], or until bound has
// passed. A grant that arrives after the trust window of its leases does not count.
func (s *step) ask(ctx context.Context, how mode, bound time.Duration) (Leases, error) {
	core := s.core
	if ctx.Err() == nil { // otherwise nothing is sent
		s.of.to = max(s.of.to, s.to)
	}
	call := core.store.acquire(s.keys, s.of.text, how)
	call.Caller, call.Here = s, s.of.endless
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
		if how == modeTry && !answer.again { // such a request leaves no trace in Redis
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

// Abandoned implements [protocol.Caller]. The abandoned request may have waited for a connection
// and reached Redis after the withdrawal, and so have left a waiter or a holder without a caller.
// So the acquisition is withdrawn once more when the request has ended. Only a request that reaches
// Redis after the client, too, has given it up blocks the resource, for one TTL at most.
func (s *step) Abandoned() (ended func()) {
	o := s.core.registry.add(new(pending), s.resources...)
	return func() {
		if s.of.withdrawn.Load() {
			s.of.takeBack(s.from, s.to)
		}
		o.finish(nil)
	}
}
