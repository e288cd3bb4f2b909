package worker

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencedb/fencedb/examples/booking/booking"
	"github.com/fencedb/fencedb/examples/booking/store"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
)

const (
	patience = 20 // for how many TTLs a guest waits for the lease
	noKey    = "" // each request is sent once
)

// reserve wires the booking service up as any program would, with a bank that is as slow as was ordered.
func (w *worker) reserve(ctx context.Context, r Reservation) error {
	service, err := booking.New(w.redis, booking.Config{
		Lease:     lease.Config{TTL: r.Pace.TTL, Tracers: []lease.Tracer{w.feed}},
		Wait:      patience * r.Pace.TTL,
		Store:     w.store(r),
		CheckCard: w.bank(ctx, r),
	})
	if err != nil {
		return err
	}
	_, err = service.Reserve(ctx, noKey, booking.Booking{Table: Table, Slot: Slot(r.Evening), Guest: r.Guest, Party: 2})
	return err
}

func (w *worker) store(r Reservation) booking.Store {
	fenced := store.New(w.db, w.feed)
	if r.Fenced {
		return fenced
	}
	return plainStore{fenced, w.db}
}

// bank accepts every card. It does not look at the context it is given, which ends with the lease, as many a client library does
// not.
func (w *worker) bank(life context.Context, r Reservation) booking.CardCheck {
	return func(context.Context, string) error {
		w.tell(Event{Step: Card})
		pass(life, r.Pace.Card)
		w.beforeNext.Arm(func() { w.beforeWrite(life, r) })
		return nil
	}
}

// beforeWrite runs in the driver, after the last look at the lease that this side takes, and before anything is sent. A pause
// here is what no check can cover: garbage collection, a virtual machine that is moved, a slow disk.
func (w *worker) beforeWrite(life context.Context, r Reservation) {
	select {
	case <-w.goOn: // the word was for nobody: whoever wakes a worker sends it
	default:
	}
	w.tell(Event{Step: Write})
	if !r.Hold {
		pass(life, r.Pace.Write)
		return
	}
	select {
	case <-w.goOn:
	case <-life.Done():
	}
}

func pass(life context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-life.Done():
	}
}

// outcome puts the answer of the service in the protocol's words.
func outcome(err error) Outcome {
	switch {
	case err == nil:
		return Booked
	case errors.Is(err, booking.ErrTaken):
		return Taken
	case errors.Is(err, fencedb.ErrStale):
		return Stale
	case errors.Is(err, fencedb.ErrLeaseOver), errors.Is(err, lease.ErrExpired), errors.Is(err, lease.ErrLost):
		return LeaseOver
	case isNoToken(err):
		return NoToken
	}
	return Failed
}

// isNoToken asks the error of a statement that did not go through package fencedb, which would have made it ErrNoToken.
func isNoToken(err error) bool {
	const noToken = "FN002"
	var refused *pgconn.PgError
	return errors.As(err, &refused) && refused.Code == noToken
}
