package lease

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/fencedb/fencedb/internal/protocol"
)

// renewal is an extension that was begun.
type renewal struct {
	lease *Lease
	extension
	sent  time.Time
	trace tracing
}

// watchdog renews the leases of one issuer, those that are due at about the same time in one
// request.
//
// Lock order: a lease's mu before the watchdog's. So the watchdog never calls a lease while it
// holds its own.
type watchdog struct {
	store *store
	cfg   Config

	mu      sync.Mutex
	batches []*batch // those with room for more; guarded by mu
	spare   *batch   // that has none, and whose timer is stopped; nil: none; guarded by mu
}

// batch are leases that one request renews.
type batch struct {
	at, last time.Time   // when the first and the last of them are due; guarded by the watchdog's mu
	timer    *time.Timer // renews them when the first is due
	leases   []*Lease    // guarded by the watchdog's mu; none once the renewal has begun
}

const (
	batchLimit = 256 // renewals in one request
	// A batch is gathered from what is due within this part of the interval, whatever comes first. If
	// only those joined that are due later, each that is due earlier would begin a batch of its own,
	// and there would be two or three times as many requests.
	batchWindow = 16
)

// watch schedules the next renewal of a lease that was granted or renewed by a request sent at that
// time. The caller holds the lease's mu, and the lease is not over.
func (w *watchdog) watch(l *Lease, sent time.Time) {
	w.schedule(l, sent.Add(protocol.Jitter(w.cfg.RenewEvery)))
}

// retry schedules the next attempt for a lease whose renewal failed. The caller holds the lease's
// mu, and the lease is not over.
func (w *watchdog) retry(l *Lease) {
	w.schedule(l, time.Now().Add(protocol.Jitter(w.cfg.RenewEvery/4)))
}

// schedule puts the lease into a batch that is due at about that time, or into a new one. None is
// renewed later than it is due. The caller holds the lease's mu.
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
		b.timer.Reset(time.Until(at)) // if it has fired already, it fires once more, for nothing
	}
	if at.After(b.last) {
		b.last = at
	}
	b.leases, l.due = append(b.leases, l), b
	if len(b.leases) == batchLimit {
		w.remove(b)
	}
}

// forget cancels the renewal of a lease that is over, or not sealed yet.
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

// remove lets nobody join a batch any more. The caller holds mu.
func (w *watchdog) remove(b *batch) {
	w.batches = slices.DeleteFunc(w.batches, func(other *batch) bool { return other == b })
}

// renew sends one request for all leases of the batch that are still alive, and makes their next
// appointments.
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
	var asked []extension
	var begun []*renewal
	for _, l := range leases {
		if r, _ := l.beginRenewal(l.ctx, now); r != nil { // the error is why there is none
			asked, begun = append(asked, r.extension), append(begun, r)
		}
	}
	if len(asked) == 0 {
		return
	}
	ctx, cancel := protocol.Within(context.Background(), w.cfg.RenewTimeout)
	defer cancel()
	for i, answer := range w.store.extend(ctx, asked) {
		_ = begun[i].end(answer)
	}
}
