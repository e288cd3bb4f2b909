package booking

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
)

// Store keeps the bookings.
type Store interface {
	// Seal makes grant the oldest that can still save: every earlier one is refused from now on.
	Seal(ctx context.Context, grant fencedb.Grant) error

	// Find returns the booking of a table, and false if there is none.
	Find(ctx context.Context, table int, slot time.Time) (Booking, bool, error)

	// Save writes the booking over whatever is there, but only while grant is the newest for the table. Otherwise it fails with
	// [fencedb.ErrStale] and has written nothing.
	Save(ctx context.Context, grant fencedb.Grant, b Booking) error
}

// CardCheck asks the guest's bank whether the card is good; [ErrCardDeclined] if not. It charges nothing. It takes a
// moment, and that moment is why there is a lease: a transaction should not stay open across a call to a bank.
type CardCheck func(ctx context.Context, guest string) error

// Service takes reservations. It is safe for concurrent use.
type Service struct {
	leases    *lease.Issuer
	store     Store
	checkCard CardCheck
}

// New returns a service whose leases are made by cfg and sealed in the store.
//
// Sealing is what lets Reserve read before its transaction: once a holder knows that it holds, no earlier holder can write,
// and if a later one comes, the Save of this one is refused. So what was read is still true of what is saved.
func New(client redis.UniversalClient, cfg lease.Config, store Store, checkCard CardCheck) (*Service, error) {
	cfg.Seal = func(ctx context.Context, l *lease.Lease) error { return store.Seal(ctx, l) }
	leases, err := lease.New(client, cfg)
	if err != nil {
		return nil, err
	}
	return &Service{leases, store, checkCard}, nil
}

// Reserve books a table. The guest who has it already may change the size of the party by booking again.
//
// Nil means booked. [lease.ErrHeld] says that somebody is booking this table right now, and when to ask again. After any
// other error nothing is booked either, except that [fencedb.ErrCommitUnknown] leaves it open; booking again settles it.
func (s *Service) Reserve(ctx context.Context, b Booking) (err error) {
	if err := b.validate(); err != nil {
		return err
	}
	l, err := s.leases.TryAcquire(ctx, Resource(b.Table))
	if err != nil {
		return err
	}
	defer func() { err = giveBack(ctx, l, err) }()

	if err := s.refuseIfTaken(ctx, b); err != nil {
		return err
	}
	if err := s.checkCardUnder(ctx, l, b.Guest); err != nil {
		return err
	}
	// Under ctx, not under the lease's context: whether a late write may land is for Postgres to say, not for our clock.
	return s.store.Save(ctx, l, b)
}

func (s *Service) refuseIfTaken(ctx context.Context, b Booking) error {
	there, found, err := s.store.Find(ctx, b.Table, b.Slot)
	if err != nil {
		return err
	}
	if found && there.Guest != b.Guest {
		return ErrTaken
	}
	return nil
}

// checkCardUnder stops waiting for the bank when the lease ends: the answer would be of no use.
func (s *Service) checkCardUnder(ctx context.Context, l *lease.Lease, guest string) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(l.Context(), func() { stop(context.Cause(l.Context())) })()
	return s.checkCard(ctx, guest)
}

// giveBack releases the lease. That it was lost is worth telling only if nothing was booked; a booking that was let in stands.
func giveBack(ctx context.Context, l *lease.Lease, err error) error {
	lost := l.Release(ctx)
	if err == nil {
		return nil
	}
	return errors.Join(err, lost)
}
