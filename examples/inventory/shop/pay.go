package shop

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/lease"
)

// Pay charges the bank and makes the cart SOLD. While the bank takes its time the lease on the cart
// is renewed, and keeps Sweep away even when the reservation is over. Paying a cart that is SOLD
// does nothing.
//
// Nil means sold. [lease.ErrHeld] says that the cart is being paid or swept right now. [ErrExpired]
// means not sold, and nothing was asked of the bank. [ErrDeclined] means not sold.
// [fencedb.ErrStale] means that this call has sold nothing, because someone took the cart over
// while the bank was asked: Sweep, and then the money goes back, or another call of Pay, for which
// the same charge counts. After any other error pay again: the bank takes the money once. If nobody
// does, the reservation runs out and the money goes back.
func (s *Shop) Pay(ctx context.Context, id uuid.UUID) error {
	return done(s.desk.Do(ctx, cartResource(id), func(held context.Context, h *guard.Holder) error {
		var cents int64 // written down before the bank is asked
		err := s.repo.Write(ctx, h, func(t Tables) (err error) {
			cents, err = t.BeginPayment(ctx, id)
			return err
		})
		if errors.Is(err, pgx.ErrNoRows) {
			c, err := s.Cart(ctx, id)
			if err == nil && c.State != Sold {
				err = ErrExpired
			}
			return err
		}
		if err != nil {
			return err
		}
		// When the lease ends we stop waiting, and say so; the money may have been taken by then.
		if err := s.bank.Charge(held, id, cents); err != nil {
			return err
		}
		// Not bounded by the lease's time: a payment that comes late, while nobody has taken the
		// cart over, is as good as one in time. Postgres knows who has: the fence of the cart has
		// their token. So the cart is still RESERVED if this commits.
		grant := fencedb.NewGrant(h.Resource(), h.Token(), h.LeaseID(), fencedb.NoEnd)
		return s.repo.Write(ctx, grant, func(t Tables) error {
			_, err := t.Sell(ctx, id)
			return err
		})
	}, lease.NoWait()))
}

// Sweep ends reservations that nobody has paid in time, and refunds money that was taken for them.
// One process sweeps at a time; in the others it returns at once. What is left to do is in
// Postgres: should the sweeper die, the next one goes on.
//
// An error says that something was left for the next time.
func (s *Shop) Sweep(ctx context.Context) error {
	// This lease only saves work: two sweepers at once cost time, nothing else.
	err := s.leases.Do(ctx, "sweeper", func(ctx context.Context, _ *lease.Lease) error {
		return errors.Join(s.Each(ctx, Overdue, s.expire), s.Each(ctx, RefundsDue, s.refund))
	}, lease.NoWait())
	if errors.Is(err, lease.ErrHeld) {
		return nil
	}
	return done(err)
}

// expire puts the units of a cart back. Not while it is being paid: then the payer has the lease on
// it. Nobody begins to pay it any more.
func (s *Shop) expire(ctx context.Context, id uuid.UUID) error {
	payer, err := s.leases.Inspect(ctx, cartResource(id))
	if err != nil || payer.Token != 0 {
		return err
	}
	c, err := s.Cart(ctx, id)
	if err != nil {
		return err
	}
	skus := SKUs(c.Lines)
	return s.alone(ctx, resources(skus, cartResource(id)), func(t Tables) error {
		expired, err := t.Expire(ctx, id)
		if err != nil || !expired {
			return err
		}
		levels, err := t.Levels(ctx, skus)
		if err != nil {
			return err
		}
		return t.SetLevels(ctx, PutBack(levels, c.Lines))
	})
}

// refund tells the bank first: if that is all that happens, it is told again.
func (s *Shop) refund(ctx context.Context, id uuid.UUID) error {
	if err := s.bank.Refund(ctx, id); err != nil {
		return err
	}
	return s.alone(ctx, []string{cartResource(id)}, func(t Tables) error { return t.Refunded(ctx, id) })
}

// Each does one thing for all carts that a statement finds, [Overdue] or [RefundsDue], some at a
// time. A cart that is busy is left for the next time.
func (s *Shop) Each(ctx context.Context, find string, do func(context.Context, uuid.UUID) error) error {
	var carts []uuid.UUID
	err := s.repo.Read(ctx, func(t Tables) (err error) {
		carts, err = t.find(ctx, find)
		return err
	})
	const atOnce, most = 8, 30 * time.Second // for one cart; one that hangs must not keep it from the others
	var all errgroup.Group
	all.SetLimit(atOnce)
	for _, id := range carts {
		all.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, most)
			defer cancel()
			if err := do(ctx, id); err != nil && !lease.IsLost(err) {
				return fmt.Errorf("cart %s: %w", id, err)
			}
			return nil
		})
	}
	return errors.Join(err, all.Wait())
}
