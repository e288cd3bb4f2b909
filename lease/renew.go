package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fencedb/fencedb/internal/protocol"
)

// Extend renews the lease for a full TTL from now, but not beyond [Config.MaxHold]. The issuer does
// this automatically; call Extend if renewal is off, or before a long step.
//
// It returns nil if ValidUntil has moved on, or if MaxHold allows no more. An error that is a cause
// of [Lease.Context], except [ErrUnreachable], means that the lease is over; after any other, it
// stays valid until ValidUntil. Extend ends with the lease at the latest, and never revives it.
// Cancelling ctx stops the waiting, not the request.
func (l *Lease) Extend(ctx context.Context) error {
	if err := l.granted(); err != nil {
		return err
	}
	e, err := l.beginRenewal(ctx, time.Now())
	if err != nil { // nothing is sent, but tracers learn that work goes on after its lease
		t := l.trace(ctx, OpExtend)
		t.end(0, fmt.Errorf("%w: %w", errNotSent, err))
	}
	if err != nil || e == nil {
		return err
	}
	// Once the lease is over, the answer does not matter.
	ctx, stop := context.WithCancelCause(e.trace.ctx)
	defer stop(nil)
	defer context.AfterFunc(l.ctx, func() { stop(context.Cause(l.ctx)) })()

	s := l.core.store
	return e.end(protocol.Ask(ctx, s.redis, l.core.cfg.TTL, s.extend(l.term, e.ttl), decodeExtend))
}

// renewal is one renewal of a lease: for ttl, from when the request is sent.
type renewal struct {
	lease *Lease
	ttl   time.Duration
	sent  time.Time
	trace tracing
}

// beginRenewal returns the renewal to send, or nil if MaxHold leaves nothing to gain. Each renewal
// that was begun must be ended.
func (l *Lease) beginRenewal(ctx context.Context, now time.Time) (*renewal, error) {
	ttl, err := l.gain(now)
	if err != nil || ttl == 0 {
		return nil, err
	}
	return &renewal{l, ttl, now, l.trace(ctx, OpExtend)}, nil
}

// gain is the TTL for a renewal at that time; 0 if MaxHold leaves nothing to gain.
func (l *Lease) gain(now time.Time) (time.Duration, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.check(now); err != nil {
		return 0, err
	}
	ttl := l.core.cfg.TTL
	if !l.holdEnd.IsZero() {
		ttl = min(ttl, l.holdEnd.Sub(now).Truncate(time.Millisecond))
	}
	if !l.core.trustedUntil(now, ttl).After(l.validUntil) {
		return 0, nil
	}
	return ttl, nil
}

// end ends the renewal with its answer. The trust window counts from when the request was sent: a
// slow answer must not stretch the lease. Once the lease is over, the answer changes nothing, so
// nothing waits for a renewal that is under way. In Redis a late renewal cannot touch another
// lease.
func (r *renewal) end(result outcome, err error) error {
	err = r.take(result, err)
	r.trace.end(time.Until(r.lease.ValidUntil()), err)
	return err
}

func (r *renewal) take(result outcome, err error) error {
	l := r.lease
	l.mu.Lock()
	defer l.mu.Unlock()
	over := l.check(time.Now())
	switch {
	case over != nil:
		return protocol.Latest(err, over)
	case err != nil && r.trace.ctx.Err() == context.Canceled,
		r.trace.ctx.Err() != nil && errors.Is(err, protocol.ErrUnasked):
		// The caller has cancelled, which says nothing about Redis.
		return byCaller(r.trace.ctx, err)
	case err != nil:
		l.lastFail = err
		l.core.watchdog.retry(l)
	case result != done:
		l.end(result.loss())
		return l.ended
	default:
		l.lastFail = nil
		l.core.watchdog.watch(l, r.sent)
		if until := l.core.trustedUntil(r.sent, r.ttl); until.After(l.validUntil) {
			l.validUntil = until
			l.expiry.Reset(time.Until(l.warnAt()))
		}
	}
	return err
}

// watchdog renews the leases of one issuer. Leases that are due at about the same time are renewed
// in one request.
//
// Lock order: the mu of a lease before that of the watchdog. So the watchdog never calls a lease
// while it holds its own mu.
type watchdog struct {
	store *store
	cfg   Config

	mu    sync.Mutex
	due   map[*Lease]time.Time // when each lease is renewed next, at the latest; guarded by mu
	first time.Time            // the first of these times; guarded by mu
	timer *time.Timer          // calls tick at first; nil until there is a lease; guarded by mu
}

const (
	batchLimit = 256 // renewals in one request
	// What is due within RenewEvery/batchWindow is renewed with what is due now.
	batchWindow = 16
)

// watch schedules the next renewal of a lease. sent is when the request was sent that acquired or
// renewed it. The caller holds the lease's mu, and the lease is not over.
func (w *watchdog) watch(l *Lease, sent time.Time) {
	w.schedule(l, sent.Add(protocol.Jitter(w.cfg.RenewEvery)))
}

// retry schedules the next attempt for a lease whose renewal failed. The caller holds the lease's
// mu, and the lease is not over.
func (w *watchdog) retry(l *Lease) {
	w.schedule(l, time.Now().Add(protocol.Jitter(w.cfg.RenewEvery/4)))
}

// schedule has the lease renewed at that time, unless it is scheduled already. The caller holds the
// lease's mu.
func (w *watchdog) schedule(l *Lease, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, known := w.due[l]; known || l.unsealed || w.cfg.RenewEvery == Never {
		return
	}
	w.due[l] = at
	if len(w.due) == 1 || at.Before(w.first) {
		w.wakeAt(at)
	}
}

// wakeAt sets the timer. The caller holds mu.
func (w *watchdog) wakeAt(at time.Time) {
	w.first = at
	if w.timer == nil {
		w.timer = time.AfterFunc(time.Until(at), w.tick)
	} else {
		w.timer.Reset(time.Until(at))
	}
}

// forget cancels the next renewal of a lease that is over, or not sealed yet.
func (w *watchdog) forget(l *Lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.due, l)
	if len(w.due) == 0 && w.timer != nil {
		w.timer.Stop()
	}
}

// tick renews what is due.
func (w *watchdog) tick() {
	w.mu.Lock()
	soon := time.Now().Add(w.cfg.RenewEvery / batchWindow)
	var due []*Lease
	var next time.Time
	for l, at := range w.due {
		if !at.After(soon) {
			due = append(due, l)
			delete(w.due, l)
		} else if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	if !next.IsZero() {
		w.wakeAt(next)
	}
	w.mu.Unlock()
	slices.SortFunc(due, func(a, b *Lease) int { return strings.Compare(a.resource, b.resource) })
	for some := range slices.Chunk(due, batchLimit) {
		go w.renew(some)
	}
}

// renew renews all of the leases that are not over, in one request. The answers schedule their next
// renewals.
func (w *watchdog) renew(leases []*Lease) {
	now := time.Now()
	var begun []*renewal
	for _, l := range leases {
		if r, _ := l.beginRenewal(l.ctx, now); r != nil { // an error means that the lease is over
			begun = append(begun, r)
		}
	}
	if len(begun) == 0 {
		return
	}
	// This context can end, so another goroutine sends the requests: a hook, a dialer or a
	// credentials provider of the client that hangs must not hold up the next renewals.
	ctx, cancel := protocol.Within(context.Background(), w.cfg.RenewTimeout)
	defer cancel()
	calls := make([]protocol.Call, len(begun))
	for n, r := range begun {
		calls[n] = w.store.extend(r.lease.term, r.ttl)
	}
	for n, answer := range protocol.QueryAll(ctx, w.store.redis, protocol.Attempt{}, calls, decodeExtend) {
		_ = begun[n].end(answer.Value, answer.Err)
	}
}
