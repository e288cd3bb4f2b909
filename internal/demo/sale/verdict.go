package sale

import (
	"context"
	"errors"
	"fmt"

	"github.com/fencedb/fencedb/examples/inventory/shop"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
)

// Outcomes count how requests ended, each once.
type Outcomes struct {
	Done    int
	Refused int // by Postgres or in view of its limits: too late, nothing written
	Late    int // noticed by the buyer itself: too late, nothing written
	Busy    int // did not get its turn in time
	Over    int // sold out, or not reserved any more
	Unknown int // committed or not, nobody knows
	Failed  int // anything else
}

// Tally is what buyers were told.
type Tally struct {
	Reserve, Pay Outcomes
	LongPaid     int // of those paid: how many took longer than a lease lasts
	StoppedWrote int // stopped between reading and writing, and reserved afterwards
	StoppedNot   int // the same, and did not reserve
}

func (o *Outcomes) count(err error) {
	switch {
	case err == nil:
		o.Done++
	case errors.Is(err, fencedb.ErrCommitUnknown):
		o.Unknown++
	case errors.Is(err, fencedb.ErrStale), errors.Is(err, fencedb.ErrLeaseOver), errors.Is(err, fencedb.ErrBusy):
		o.Refused++
	case errors.Is(err, lease.ErrExpired), errors.Is(err, lease.ErrLost), errors.Is(err, lease.ErrUnreachable):
		o.Late++
	case errors.Is(err, lease.ErrHeld), errors.Is(err, context.DeadlineExceeded):
		o.Busy++
	case errors.Is(err, shop.ErrSoldOut), errors.Is(err, shop.ErrExpired), errors.Is(err, shop.ErrVoid):
		o.Over++
	default:
		o.Failed++
	}
}

func (o *Outcomes) add(p Outcomes) {
	o.Done += p.Done
	o.Refused += p.Refused
	o.Late += p.Late
	o.Busy += p.Busy
	o.Over += p.Over
	o.Unknown += p.Unknown
	o.Failed += p.Failed
}

func (t *Tally) add(u Tally) {
	t.Reserve.add(u.Reserve)
	t.Pay.add(u.Pay)
	t.LongPaid += u.LongPaid
	t.StoppedWrote += u.StoppedWrote
	t.StoppedNot += u.StoppedNot
}

// Problems says what is wrong with a sale, in sentences. A sale under a lock alone that has lost
// nothing is wrong too: then the load was too light to show anything.
func (r Result) Problems() (problems []string) {
	says := func(when bool, format string, args ...any) {
		if when {
			problems = append(problems, fmt.Sprintf("%s: ", r.Mode)+fmt.Sprintf(format, args...))
		}
	}
	stops := r.Told.StoppedWrote + r.Told.StoppedNot
	says(stops != r.Load.Pauses, "%d buyers were stopped instead of %d", stops, r.Load.Pauses)
	says(r.Told.Reserve.Done == 0 || r.Told.Pay.Done == 0, "nothing was sold")
	half := max(r.Closing.Half, r.Settled.Half)
	says(half > 0, "%d carts are half reserved", half)
	says(r.Settled.Misplaced > 0, "%d charges do not fit to the carts", r.Settled.Misplaced)
	settled := r.Settled
	says(settled.Payments != settled.Charged+settled.Refunded, "%d payments were begun, %d kept and %d given "+
		"back", settled.Payments, settled.Charged, settled.Refunded)
	if r.Mode == Lock {
		says(r.Load.Pauses > 0 && r.Emptied.Oversold == 0, "nothing was oversold, so the control shows nothing; "+
			"use more buyers or longer stops")
		return problems
	}
	for _, b := range []struct {
		when string
		Books
	}{{"closing", r.Closing}, {"emptied", r.Emptied}, {"settled", r.Settled}} {
		says(!b.Balanced(), "%s: %d units oversold, %d too many, %d too few", b.when, b.Oversold, b.TooMany, b.TooFew)
	}
	says(!r.told(r.Told.Reserve, r.Closing.Carts), "%d buyers were told reserved, and there are %d carts",
		r.Told.Reserve.Done, r.Closing.Carts)
	says(!r.told(r.Told.Pay, r.Closing.CartsSold), "%d buyers were told sold, and %d carts are",
		r.Told.Pay.Done, r.Closing.CartsSold)
	says(r.Mode == Fenced && r.Told.StoppedWrote > 0, "%d buyers who were stopped before they wrote have "+
		"written", r.Told.StoppedWrote)
	return problems
}

// told is whether there are as many rows as buyers know of. Behind the fence every error says
// whether the write committed, or that it is unknown; elsewhere a buyer that gave up while
// committing does not know.
func (r Result) told(o Outcomes, rows int64) bool {
	doubts := o.Unknown
	if r.Mode != Fenced {
		doubts += o.Busy
	}
	return int64(o.Done) <= rows && rows <= int64(o.Done+doubts)
}
