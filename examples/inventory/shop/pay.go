package shop

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/fencedb/fencedb/examples/inventory/store"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
)

// Pay charges the bank and makes the cart SOLD. While the bank takes its time the lease on the cart is renewed, and keeps
// Sweep away even when the reservation is over. Paying a cart that is SOLD does nothing.
//
// Nil means sold. [lease.ErrHeld] says that the cart is being paid or swept right now. [ErrExpired] means not sold, and nothing was
// asked of the bank. [fencedb.ErrStale] means that this call has sold nothing, because someone took the cart over while the bank was
// asked: Sweep, and then the money goes back, or another call of Pay, for which the same charge counts. After any other
// error pay again: the bank takes the money once. If nobody does, the reservation runs out and the money goes back.
func (s *Shop) Pay(ctx context.Context, id uuid.UUID) error {
	l, err := s.Leases.TryAcquire(ctx, cartResource(id))
	if err != nil {
		return err
	}
	// A payer that was overtaken holds nothing that could be given back; whether it has sold, Postgres has said by then.
	defer func() { _ = l.Release(ctx) }()

	cents, err := s.beginPayment(ctx, l, id)
	if err != nil || cents == 0 {
		return err
	}
	if err := s.charge(ctx, l, id, cents); err != nil {
		return err
	}
	// Not bounded by the lease's time: a payment that comes late, while nobody has taken the cart over, is as good as one in time.
	// Who has, Postgres knows: the fence of the cart has their token. So the cart is still RESERVED if this is let in, and there are no
	// rows to count.
	grant := fencedb.NewGrant(l.Resource(), l.Token(), l.LeaseID(), time.Time{})
	_, err = fencedb.Exec(ctx, s.DB, grant, store.Sell, id)
	return err
}

// beginPayment writes down what the bank will be asked for. It returns 0 if that is nothing, because the cart is SOLD.
func (s *Shop) beginPayment(ctx context.Context, l *lease.Lease, id uuid.UUID) (cents int64, err error) {
	err = fencedb.QueryRow(ctx, s.DB, l, store.BeginPayment, id).Scan(&cents)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, s.whyNotPayable(ctx, id)
	}
	return cents, err
}

// whyNotPayable is nil for a cart that is SOLD.
func (s *Shop) whyNotPayable(ctx context.Context, id uuid.UUID) error {
	c, err := s.Cart(ctx, id)
	if err != nil || c.State == store.Sold {
		return err
	}
	return ErrExpired
}

// charge stops waiting for the bank when the lease ends, and says so. The money may have been taken by then.
func (s *Shop) charge(ctx context.Context, l *lease.Lease, id uuid.UUID, cents int64) error {
	ctx, unbind := l.Bind(ctx)
	defer unbind()
	err := s.Bank.Charge(ctx, id, cents)
	if err != nil && ctx.Err() != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	return err
}
