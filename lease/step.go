package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/internal/protocol"
)

// step asks for one resource of an acquisition, or for all of them together.
type step struct {
	of        *acquisition
	core      *core
	from, to  int // of its resources
	resources []string
	keys      []*protocol.Keys
	waits     *tracing // nil until the resource was found taken
}

// all is the step that asks for all resources.
func (a *acquisition) all() *step { return a.newStep(0, len(a.resources)) }

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

// try asks without waiting.
func (s *step) try(ctx context.Context) (Leases, error) {
	return s.ask(ctx, modeTry, s.core.cfg.TTL)
}

// wait stands in this process's line and then in Redis's queue. It is for one resource.
func (s *step) wait(asking, waiting context.Context) (leases Leases, err error) {
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
	return s.queue(asking, waiting, l, came)
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

// queue asks whenever it is woken, and after the retry-after of the latest refusal.
func (s *step) queue(asking, waiting context.Context, l *line, came time.Time) (Leases, error) {
	ttl := s.core.cfg.TTL
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
		leases, err := s.ask(asking, modeWait, left)
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
	d := s.core.registry.owe(new(debt), s.resources...)
	return func() {
		if s.of.withdrawn.Load() {
			s.of.takeBack(s.from, s.to)
		}
		d.settle(nil)
	}
}
