package sale

import (
	"context"
	"errors"

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
	case errors.Is(err, shop.ErrSoldOut), errors.Is(err, shop.ErrExpired):
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
