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

// waitAll asks for everything where one script can see it, and if that is refused, waits for one
// resource after the other.
func (a *acquisition) waitAll(waiting context.Context) (Leases, error) {
	inTurn := func(step *acquisition) (Leases, error) { return step.wait(waiting) }
	if !a.core.store.spans(a.keys) {
		return a.stepByStep(inTurn)
	}
	leases, err := a.try(a.asking(waiting))
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

// wait stands in this process's line and then in Redis's queue. It is for one resource.
func (a *acquisition) wait(ctx context.Context) (leases Leases, err error) {
	defer func() { a.waited(leases, err) }()
	came := time.Now()
	l, err := a.core.lines.join(ctx, a.keys[0].Channel.(string), a.waiting)
	if err != nil {
		return nil, &HeldError{Resource: a.resources[0], Cause: err, permit: a.core.cfg.permits > 0}
	}
	defer l.leave()
	leases, err = a.queue(ctx, l, came)
	if err != nil {
		a.withdraw()
	}
	return leases, err
}

// waiting notes that the resource was found taken.
func (a *acquisition) waiting(ctx context.Context) {
	if a.waits == nil {
		t := a.core.trace(ctx, TraceStart{Op: OpWait, Resource: a.resources[0], LeaseID: a.id})
		a.waits = &t
	}
}

// waited notes that the waiting is over, if there was any.
func (a *acquisition) waited(leases Leases, err error) {
	if a.waits != nil {
		if l := leases.first(); l != nil {
			a.waits.start.LeaseID, a.waits.start.Token = l.term.id, l.term.token
		}
		a.waits.end(0, byCaller(a.waits.ctx, err))
	}
}

// queue asks whenever it is woken, and after the retry-after of the latest refusal.
func (a *acquisition) queue(ctx context.Context, l *line, came time.Time) (Leases, error) {
	var last *HeldError
	if a.waits != nil { // the callers in front of it have found it taken
		last = &HeldError{Resource: a.resources[0], permit: a.core.cfg.permits > 0}
	}
	for backoff := pollFirst; ; backoff = min(2*backoff, pollLast) {
		l.subscription.listenFor(a.call.id.(string))
		left := l.silence.left(came, a.core.cfg.TTL)
		if left <= 0 {
			return nil, cmp.Or(l.silence.why, error(protocol.NoAnswer(a.core.cfg.TTL)))
		}
		leases, err := a.attempt(a.asking(ctx), wait, left)
		err = l.silence.note(ctx, err)
		refused, held := errors.AsType[*HeldError](err)
		switch {
		case err == nil:
			return leases, nil
		case held:
			a.waiting(ctx)
			last = refused
			a.sleep(ctx, l, last.RetryAfter, backoff)
			if err = l.subscription.told().refused; err != nil {
				return nil, err
			}
		case protocol.Transient(err) && !errors.Is(err, redis.ErrClosed): // which no waiting ends
			left = l.silence.left(came, a.core.cfg.TTL)
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
func (a *acquisition) sleep(ctx context.Context, l *line, held, backoff time.Duration) {
	woken := l.woken(a.call.id.(string))
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
