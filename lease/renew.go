package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

	mu      sync.Mutex
	batches []*batch // the batches that leases may still join; guarded by mu
	spare   *batch   // an empty batch with a stopped timer, to be used again, or nil; guarded by mu
}

// batch is a set of leases that one request renews.
type batch struct {
	at, last time.Time   // when its first and its last lease are due; guarded by the watchdog's mu
	timer    *time.Timer // renews all when the first is due
	leases   []*Lease    // guarded by the watchdog's mu; nil once the renewal has begun
}

const (
	batchLimit = 256 // renewals in one request
	// All leases of a batch are due within this fraction of RenewEvery: RenewEvery/batchWindow. A
	// lease may also join if it is due before the others. If it began a new batch instead, there
	// would be two or three times as many requests.
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

// schedule puts the lease into a batch that is due at about that time, or into a new one. A batch
// is renewed when its first lease is due, so no renewal is late. The caller holds the lease's mu.
func (w *watchdog) schedule(l *Lease, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l.due != nil || l.unsealed || w.cfg.RenewEvery == Never {
		return
	}
	window := w.cfg.RenewEvery / batchWindow
	fits := func(b *batch) bool { return at.Sub(b.at) <= window && b.last.Sub(at) <= window }
	var b *batch
	if n := slices.IndexFunc(w.batches, fits); n >= 0 {
		b = w.batches[n]
	} else {
		if b, w.spare = w.spare, nil; b != nil {
			b.timer.Reset(time.Until(at))
		} else {
			b = new(batch)
			b.timer = time.AfterFunc(time.Until(at), func() { w.renew(b) })
		}
		b.at, b.last = at, at
		w.batches = append(w.batches, b)
	}
	if at.Before(b.at) {
		b.at = at
		b.timer.Reset(time.Until(at)) // a timer that has fired already fires once more, to no effect
	}
	if at.After(b.last) {
		b.last = at
	}
	b.leases, l.due = append(b.leases, l), b
	if len(b.leases) == batchLimit {
		w.remove(b)
	}
}

// forget cancels the next renewal of a lease that is over, or not sealed yet.
func (w *watchdog) forget(l *Lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := l.due
	if b == nil {
		return
	}
	n := slices.Index(b.leases, l)
	b.leases, l.due = slices.Delete(b.leases, n, n+1), nil
	if len(b.leases) == 0 {
		if b.timer.Stop() {
			w.spare = b
		}
		w.remove(b)
	}
}

// remove closes a batch, so no lease joins it any more. The caller holds mu.
func (w *watchdog) remove(b *batch) {
	w.batches = slices.DeleteFunc(w.batches, func(other *batch) bool { return other == b })
}

// renew renews all leases of the batch that are not over, in one request. The answers schedule
// their next renewals.
func (w *watchdog) renew(b *batch) {
	w.mu.Lock()
	leases := b.leases
	b.leases = nil
	for _, l := range leases {
		l.due = nil
	}
	w.remove(b)
	w.mu.Unlock()

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
	most := w.cfg.RenewTimeout
	ctx, cancel := context.WithTimeoutCause(context.Background(), most, protocol.NoAnswer(most))
	defer cancel()
	calls := make([]protocol.Call, len(begun))
	for n, r := range begun {
		calls[n] = w.store.extend(r.lease.term, r.ttl)
	}
	for n, answer := range protocol.QueryAll(ctx, w.store.redis, calls, decodeExtend) {
		_ = begun[n].end(answer.Value, answer.Err)
	}
}
