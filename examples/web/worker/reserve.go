package worker

import (
	"context"
	"errors"
	"time"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
)

var errTaken = errors.New("the table is taken that evening")

// patience is for how many TTLs a guest waits for the lease.
const patience = 20

// reserve books an evening. Nil means booked; after any error nothing is.
func (w *worker) reserve(ctx context.Context, r Reservation) error {
	s := w.store(r)
	issuer, err := w.issuer(r.Pace.TTL, s)
	if err != nil {
		return err
	}
	l, err := issuer.Acquire(ctx, Resource, lease.WaitAtMost(patience*r.Pace.TTL))
	if err != nil {
		return err
	}
	defer func() { _ = l.Release(ctx) }() // one that is not answered runs out

	there, err := s.find(ctx, r.Evening)
	if err != nil {
		return err
	}
	if there != "" && there != r.Guest {
		return errTaken
	}
	w.checkCard(ctx, r)
	w.beforeNext.arm(func() { w.beforeWrite(ctx, r) })
	// Under ctx, not under the lease's context: whether a late write may land is for Postgres to say, not for our clock.
	return s.save(ctx, l, r.Evening, r.Guest)
}

// issuer makes leases that the store seals before their holder learns of them: what it reads from then on stays true of what it
// saves, or the save is refused.
func (w *worker) issuer(ttl time.Duration, s store) (*lease.Issuer, error) {
	return lease.New(w.redis, lease.Config{
		TTL:     ttl,
		Seal:    func(ctx context.Context, l *lease.Lease) error { return s.seal(ctx, l) },
		Tracers: []lease.Tracer{w.feed},
	})
}

// checkCard accepts every card. It does not stop when the lease ends, as many a client library would not.
func (w *worker) checkCard(ctx context.Context, r Reservation) {
	w.tell(Event{Step: Card})
	w.pass(ctx, r.Pace.Card)
}

// beforeWrite runs in the driver, after the last look at the lease that this side takes, and before anything is sent. A pause
// here is what no check can cover: garbage collection, a virtual machine that is moved, a slow disk.
func (w *worker) beforeWrite(ctx context.Context, r Reservation) {
	w.tell(Event{Step: Write})
	if !r.Hold {
		w.pass(ctx, r.Pace.Write)
		return
	}
	select {
	case <-w.goOn:
	case <-ctx.Done():
	}
}

func (*worker) pass(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// store is where the bookings are.
type store interface {
	seal(context.Context, fencedb.Grant) error
	find(ctx context.Context, evening int) (guest string, err error)
	save(ctx context.Context, grant fencedb.Grant, evening int, guest string) error
}

func (w *worker) store(r Reservation) store {
	if r.Fenced {
		return fencedStore{w.bookings, fencedb.Traced(w.bookings.db, w.feed)}
	}
	return plainStore{w.bookings}
}
