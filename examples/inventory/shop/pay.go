package shop

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/fencedb/fencedb/fencedb"
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
	l, err := s.Leases.TryAcquire(ctx, cartResource(id))
	if err != nil {
		return err
	}
	// A payer that was overtaken has no lease to release. Postgres has decided by then whether it
	// has sold.
	defer func() { _ = l.Release(ctx) }()

	var cents int64 // written down before the bank is asked
	err = s.repo.Write(ctx, l, func(t Tables) error {
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
	// If Redis has gone backwards, the next token must be higher.
	if stale, is := errors.AsType[*fencedb.StaleError](err); is {
		_, raiseErr := s.Leases.Raise(ctx, stale.Resource, stale.Stored)
		err = errors.Join(err, raiseErr)
	}
	if err != nil {
		return err
	}
	bound, unbind := l.Bind(ctx) // when the lease ends we stop waiting, and say so; the money may have been taken by then
	defer unbind()
	if err := s.Bank.Charge(bound, id, cents); err != nil {
		return errors.Join(err, context.Cause(bound))
	}
	// Not bounded by the lease's time: a payment that comes late, while nobody has taken the cart
	// over, is as good as one in time. Postgres knows who has: the fence of the cart has their
	// token. So the cart is still RESERVED if this commits.
	grant := fencedb.NewGrant(l.Resource(), l.Token(), l.LeaseID(), fencedb.NoEnd)
	return s.repo.Write(ctx, grant, func(t Tables) error {
		_, err := t.Sell(ctx, id)
		return err
	})
}

// Sweep ends reservations that nobody has paid in time, and refunds money that was taken for them.
// One process sweeps at a time; in the others it returns at once. What is left to do is in
// Postgres: should the sweeper die, the next one goes on.
//
// An error says that something was left for the next time.
func (s *Shop) Sweep(ctx context.Context) error {
	l, err := s.Leases.TryAcquire(ctx, "sweeper")
	if errors.Is(err, lease.ErrHeld) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = l.Release(ctx) }() // two sweepers at once cost time, nothing else

	return errors.Join(s.Each(ctx, Overdue, s.expire), s.Each(ctx, RefundsDue, s.refund))
}

// expire puts the units of a cart back. Not while it is being paid: then the payer has the lease on
// it. Nobody begins to pay it any more.
func (s *Shop) expire(ctx context.Context, id uuid.UUID) error {
	payer, err := s.Leases.Inspect(ctx, cartResource(id))
	if err != nil || payer.Token != 0 {
		return err
	}
	c, err := s.Cart(ctx, id)
	if err != nil {
		return err
	}
	return s.alone(ctx, append(skuResources(c.Lines), cartResource(id)), func(ctx context.Context, t Tables) error {
		expired, err := t.Expire(ctx, id)
		if err != nil || !expired {
			return err
		}
		levels, err := t.Levels(ctx, SKUs(c.Lines))
		if err != nil {
			return err
		}
		return t.SetLevels(ctx, PutBack(levels, c.Lines))
	})
}

// refund tells the bank first: if that is all that happens, it is told again.
func (s *Shop) refund(ctx context.Context, id uuid.UUID) error {
	if err := s.Bank.Refund(ctx, id); err != nil {
		return err
	}
	return s.alone(ctx, []string{cartResource(id)}, func(ctx context.Context, t Tables) error {
		return t.Refunded(ctx, id)
	})
}

// Each does one thing for all carts that a statement finds, [Overdue] or [RefundsDue], some at a
// time. A cart that is busy is left for the next time.
func (s *Shop) Each(ctx context.Context, find string, do func(context.Context, uuid.UUID) error) error {
	rows, _ := s.DB.Query(ctx, find)
	carts, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return err
	}
	const atOnce, most = 8, 30 * time.Second // for one cart; one that hangs must not keep it from the others
	var all errgroup.Group
	all.SetLimit(atOnce)
	for _, id := range carts {
		all.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, most)
			defer cancel()
			if err := do(ctx, id); err != nil && !errors.Is(err, lease.ErrHeld) && !errors.Is(err, fencedb.ErrStale) {
				return fmt.Errorf("cart %s: %w", id, err)
			}
			return nil
		})
	}
	return all.Wait()
}

// ErrVoid: the charge was refused, because it had been given back before. No money has moved.
var ErrVoid = errors.New("shop: the charge was given back")

// PretendBank stands for a payment provider: slow, not ours, and not fenced.
//
// It has the two properties that a provider must have for this to come out right: a key that makes
// asking twice the same as asking once, and a refund that also stops a charge which has not arrived
// yet. Not every API for plain charges has the second. Its books are in the same Postgres, so that
// several processes can share them; the shop never looks at them. It is safe for concurrent use.
type PretendBank struct {
	db    *pgxpool.Pool
	delay func() time.Duration
}

// NewPretendBank returns a bank that needs that long to answer to a charge. db stays the caller's.
func NewPretendBank(db *pgxpool.Pool, delay func() time.Duration) *PretendBank {
	return &PretendBank{db, delay}
}

// Charge takes the money, once for each key, however often it is called. When ctx ends, that may
// have happened or not.
func (b *PretendBank) Charge(ctx context.Context, key uuid.UUID, cents int64) error {
	var state string
	err := b.db.QueryRow(ctx, `
		INSERT INTO bank.charges AS c (key, cents, state) VALUES ($1, $2, 'CHARGED')
		ON CONFLICT (key) DO UPDATE SET state = c.state
		RETURNING state`, key, cents).Scan(&state)
	if err != nil {
		return err
	}
	// The money has moved by now; the answer takes its time.
	select {
	case <-time.After(b.delay()):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if state != "CHARGED" {
		return ErrVoid
	}
	return nil
}

// Refund gives the money back, or refuses the charge should it come later. Again is as good as
// once.
func (b *PretendBank) Refund(ctx context.Context, key uuid.UUID) error {
	_, err := b.db.Exec(ctx, `
		INSERT INTO bank.charges AS c (key, cents, state) VALUES ($1, 0, 'VOID')
		ON CONFLICT (key) DO UPDATE SET state = CASE c.state WHEN 'CHARGED' THEN 'REFUNDED' ELSE c.state END`, key)
	return err
}
