package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/internal/protocol"
)

// step asks for one resource of an acquisition, or for all of them together. It is a call of the
// protocol: its name is in all its requests and in its withdrawal, so that this ends only what the
// step was granted, also where others share its lease id.
type step struct {
	*acquisition
	resources []string
	keys      []*protocol.Keys
	name      any         // of the call, a string
	asked     bool        // a request may have reached Redis
	unsure    atomic.Bool // a request may still be under way: it was sent and not answered
	withdrawn atomic.Bool // what the requests were granted is being taken back
	waits     *tracing    // nil until the resource was found taken
}

func (s *step) begin(a *acquisition, resources []string, keys []*protocol.Keys) *step {
	s.acquisition, s.resources, s.keys, s.name = a, resources, keys, protocol.NewCall(a.core.label)
	a.step = s
	return s
}

// try asks without waiting.
func (s *step) try(ctx context.Context) (Leases, error) {
	mode := any(try)
	if s.barge {
		mode = barge
	}
	leases, err := s.attempt(ctx, mode, s.core.cfg.TTL)
	switch {
	case errors.Is(err, ErrHeld) && !s.unsure.Load(): // it left no trace
	case err != nil: // also if an earlier request may arrive when the holder has gone
		s.withdraw()
	}
	return leases, err
}

// wait stands in this process's line and then in Redis's queue. It is for one resource.
func (s *step) wait(ctx context.Context) (leases Leases, err error) {
	defer func() { s.waited(leases, err) }()
	came := time.Now()
	l, err := s.core.lines.join(ctx, s.keys[0].Channel.(string), s.waiting)
	if err != nil {
		return nil, &HeldError{Resource: s.resources[0], Cause: err, permit: s.core.cfg.permits > 0}
	}
	defer l.leave()
	leases, err = s.queue(ctx, l, came)
	if err != nil {
		s.withdraw()
	}
	return leases, err
}

// waiting notes that the resource was found taken.
func (s *step) waiting(ctx context.Context) {
	if s.waits == nil {
		t := s.core.trace(ctx, TraceStart{Op: OpWait, Resource: s.resources[0], LeaseID: s.id})
		s.waits = &t
	}
}

// waited notes that the waiting is over, if there was any.
func (s *step) waited(leases Leases, err error) {
	if s.waits != nil {
		if l := leases.first(); l != nil {
			s.waits.start.LeaseID, s.waits.start.Token = l.term.id, l.term.token
		}
		s.waits.end(0, byCaller(s.waits.ctx, err))
	}
}

// queue asks whenever it is woken, and after the retry-after of the latest refusal.
func (s *step) queue(ctx context.Context, l *line, came time.Time) (Leases, error) {
	var last *HeldError
	if s.waits != nil { // the callers in front of it have found it taken
		last = &HeldError{Resource: s.resources[0], permit: s.core.cfg.permits > 0}
	}
	for backoff := pollFirst; ; backoff = min(2*backoff, pollLast) {
		l.subscription.listenFor(s.name.(string))
		left := l.silence.left(came, s.core.cfg.TTL)
		if left <= 0 {
			return nil, cmp.Or(l.silence.why, error(protocol.NoAnswer(s.core.cfg.TTL)))
		}
		leases, err := s.attempt(s.asking(ctx), wait, left)
		err = l.silence.note(ctx, err)
		refused, held := errors.AsType[*HeldError](err)
		switch {
		case err == nil:
			return leases, nil
		case held:
			s.waiting(ctx)
			last = refused
			s.sleep(ctx, l, last.RetryAfter, backoff)
			if err = l.subscription.told().refused; err != nil {
				return nil, err
			}
		case protocol.Transient(err) && !errors.Is(err, redis.ErrClosed): // which no waiting ends
			left = l.silence.left(came, s.core.cfg.TTL)
			if protocol.Sleep(ctx, min(protocol.Jitter(backoff), max(left/2, pollFirst))) && left > 0 {
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
func (s *step) sleep(ctx context.Context, l *line, held, backoff time.Duration) {
	woken := l.woken(s.name.(string))
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

// attempt asks until there is an answer, all leases or a [HeldError], or until bound has passed.
func (s *step) attempt(ctx context.Context, mode any, bound time.Duration) (Leases, error) {
	return protocol.Persist(ctx, bound, func(ctx context.Context) (Leases, error) { return s.once(ctx, mode) })
}

// once asks one time. An answer that arrives after its own trust window counts as none.
func (s *step) once(ctx context.Context, mode any) (Leases, error) {
	core := s.core
	s.asked = s.asked || ctx.Err() == nil
	sent := time.Now()
	answer, err := core.store.acquire(ctx, ask{s.keys, s.text, s.name, mode, s})
	if errors.Is(err, ErrUnreachable) {
		s.unsure.Store(true)
	}
	switch {
	case err != nil:
		return nil, err
	case answer.tokens == nil:
		return nil, &HeldError{Resource: s.resources[answer.index], RetryAfter: answer.wait, Holder: answer.holder,
			permit: core.cfg.permits > 0}
	case !time.Now().Before(core.trustedUntil(sent, core.cfg.TTL)):
		return nil, errTooLate
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
