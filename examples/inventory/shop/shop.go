// Package shop is a flash sale: many buyers, few units, carts that are reserved all or none.
//
//	Reserve ──▶ RESERVED ──Pay──▶ SOLD       the lease on the cart is kept while the bank takes its time
//	               │
//	               └──Sweep──▶ EXPIRED       units go back, and money that the bank has taken
//
// # What protects each write
//
// Everything is written under leases, on each SKU and on the cart, and behind the fences of their
// tokens:
//
//   - the levels of the stock and the new cart, by [Shop.Reserve]: one transaction with the grants
//     of all SKUs and of the cart;
//   - the start of a payment and the sale, by [Shop.Pay]: a statement each, with the grant of the
//     cart;
//   - the end of a reservation, by [Shop.Sweep]: one transaction like that of Reserve, and a
//     statement for the refund.
//
// The leases keep others waiting outside, without a connection to Postgres. They cannot stop a
// process that was paused for longer than its lease lasts and then goes on. Its tokens can: as soon
// as someone else has been there, Postgres refuses them.
//
// # Money
//
// The bank is not behind the fence. So what will be asked of it is written down first, and
// everything asked of it can be asked again: the id of the cart is the key of its charge and of its
// refund. The sweep that takes a cart over from a lost payer notes in the same transaction
// that a refund is due. It needs no message from the lost payer.
package shop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/lease"
)

var (
	// ErrInvalid: the request makes no sense, and the message says why. Nothing was reserved.
	ErrInvalid = errors.New("shop: invalid request")

	// ErrSoldOut: there are not enough units left of one of the SKUs. Nothing was reserved.
	ErrSoldOut = errors.New("shop: sold out")

	// ErrNoCart: there is no such cart.
	ErrNoCart = errors.New("shop: no such cart")

	// ErrExpired: the cart was not paid in time. What the bank has taken for it, if anything, is
	// given back.
	ErrExpired = errors.New("shop: the reservation is over")

	// ErrDeclined: the bank refuses to pay. No money was taken, and the cart can still be paid.
	ErrDeclined = errors.New("shop: declined by the bank")
)

// Bank is a payment provider. Its methods may end with ctx: what it does is asked for again.
type Bank interface {
	// Charge takes the money, once for each key. ErrDeclined says that none was taken, and the key
	// can be tried again. After any other error it may have been taken or not. A provider that
	// repeats a refusal to the same key, or cannot refund what it has not seen, needs an object for
	// each key: made with the key, confirmed by Charge, cancelled by Refund.
	Charge(ctx context.Context, key uuid.UUID, cents int64) error
	// Refund gives it back, and refuses a charge with that key that comes later.
	Refund(ctx context.Context, key uuid.UUID) error
}

// Shop sells. It is safe for concurrent use, by as many processes as there are.
type Shop struct {
	leases *lease.Issuer
	desk   *guard.Desk
	repo   *fencedb.Repository[Tables]
	bank   Bank
	keep   time.Duration
	wait   lease.Option
}

// New returns a shop on db, which has been brought up with [Migrate]. keep is how long a
// reservation lasts, unless it is being paid; wait, how long a request waits for its turn. The
// leases, the database and the bank stay the caller's.
func New(leases *lease.Issuer, db fencedb.DB, bank Bank, keep, wait time.Duration) *Shop {
	return &Shop{leases, guard.New(leases, db), fencedb.NewRepository(db, In), bank, keep, lease.WaitAtMost(wait)}
}

func cartResource(id uuid.UUID) string { return lease.Resource("cart", id) }

// resources are those of a cart and its SKUs. The migration says the same in SQL.
func resources(c Cart) []string {
	all := []string{cartResource(c.ID)}
	for _, l := range c.Lines {
		all = append(all, lease.Resource("sku", l.SKU))
	}
	return all
}

// Reserve takes all lines out of the stock for a new cart, or none.
//
// Nil means reserved until Cart.Expires. [lease.ErrHeld] says that other requests held these SKUs
// for longer than we wait, and when to try again. After any other error nothing is reserved either,
// except that [fencedb.ErrCommitUnknown] leaves it open; then the reservation, if there is one,
// runs out by itself.
func (s *Shop) Reserve(ctx context.Context, buyer string, lines []Line) (Cart, error) {
	c := Cart{ID: uuid.New(), Buyer: buyer, Lines: lines}
	if err := c.validate(); err != nil {
		return Cart{}, err
	}
	err := s.alone(ctx, resources(c), func(t Tables) error {
		levels, err := t.Levels(ctx, c.skus()) // true until we commit: no other holder can write them before
		if err != nil {
			return err
		}
		after, priced, err := take(levels, c)
		if err != nil {
			return err
		}
		if err := t.SetLevels(ctx, after); err != nil {
			return err
		}
		c, err = t.AddCart(ctx, priced, s.keep)
		return err
	})
	return c, err
}

// alone runs fn in one transaction behind the fences of all resources, when it is our turn for all
// of them.
func (s *Shop) alone(ctx context.Context, resources []string, fn func(Tables) error) error {
	return s.desk.DoAll(ctx, resources, func(_ context.Context, h *guard.Holder) error {
		return s.repo.Write(ctx, h.Grant(), fn)
	}, s.wait)
}

// Stock puts a SKU up for sale. One that is there already stays as it is.
func (s *Shop) Stock(ctx context.Context, l Level) error {
	_, err := s.desk.Exec(ctx, lease.Resource("sku", l.SKU), `
		INSERT INTO stock (sku, start, remaining, cents) VALUES ($1, $2, $2, $3) ON CONFLICT DO NOTHING`, l.SKU, l.Start, l.Cents)
	return err
}

// Levels tells what is left. It needs no lease, and is out of date when it arrives.
func (s *Shop) Levels(ctx context.Context) (all []Level, err error) {
	err = s.repo.Read(ctx, func(t Tables) error {
		all, err = t.Levels(ctx, nil)
		return err
	})
	return all, err
}

// Cart finds a cart, or fails with [ErrNoCart].
func (s *Shop) Cart(ctx context.Context, id uuid.UUID) (c Cart, err error) {
	err = s.repo.Read(ctx, func(t Tables) error {
		c, err = t.Cart(ctx, id)
		return err
	})
	return c, err
}

// Pay charges the bank and makes the cart SOLD. While the bank takes its time the lease on the cart
// is renewed, and keeps Sweep away even when the reservation is over. Paying a cart that is SOLD
// does nothing.
//
// Nil means sold. [lease.ErrHeld] says that the cart is being paid or swept right now. [ErrExpired]
// means not sold, and that nothing was asked of the bank unless somebody has written to the cart
// past its fence. [ErrDeclined] means not sold.
// [fencedb.ErrStale] means that this call has sold nothing, because someone took the cart over
// while the bank was asked: Sweep, and then the money goes back, or another call of Pay, for which
// the same charge counts. After any other error pay again: the bank takes the money once. If nobody
// does, the reservation runs out and the money goes back.
func (s *Shop) Pay(ctx context.Context, id uuid.UUID) error {
	return s.desk.Do(ctx, cartResource(id), func(held context.Context, h *guard.Holder) error {
		var cents int64 // written down before the bank is asked
		err := s.repo.Write(ctx, h.Grant(), func(t Tables) (err error) {
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
		// their token. So the cart is still RESERVED if this commits. It has a bound all the same:
		// while the write hangs, nobody can take the cart over.
		paid := h.Grant()
		late := fencedb.NewGrant(paid.Resource(), paid.Token(), paid.LeaseID(), time.Now().Add(5*time.Second))
		return s.repo.Write(ctx, late, func(t Tables) error { return t.Sell(ctx, id) })
	}, lease.NoWait())
}

// Sweep ends reservations that nobody has paid in time, and refunds money that was taken for them.
// One process sweeps at a time; in the others it returns at once. What is left to do is in
// Postgres: should the sweeper die, the next one goes on.
//
// An error says that something was left for the next time.
func (s *Shop) Sweep(ctx context.Context) error {
	// This lease only saves work: two sweepers at once cost time, nothing else.
	err := s.leases.Do(ctx, "sweeper", func(ctx context.Context, _ *lease.Lease) error {
		return errors.Join(s.each(ctx, overdue, s.expire), s.each(ctx, refundsDue, s.refund))
	}, lease.NoWait())
	if errors.Is(err, lease.ErrHeld) || errors.Is(err, lease.ErrWorkDone) {
		return nil
	}
	return err
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
	return s.alone(ctx, resources(c), func(t Tables) error { return t.Expire(ctx, id) })
}

// refund tells the bank first: if that is all that happens, it is told again.
func (s *Shop) refund(ctx context.Context, id uuid.UUID) error {
	if err := s.bank.Refund(ctx, id); err != nil {
		return err
	}
	return s.alone(ctx, []string{cartResource(id)}, func(t Tables) error { return t.Refunded(ctx, id) })
}

// each does one thing for all carts that a statement finds, overdue or refundsDue, some at a
// time. A cart that is busy is left for the next time.
func (s *Shop) each(ctx context.Context, find string, do func(context.Context, uuid.UUID) error) error {
	var carts []uuid.UUID
	err := s.repo.Read(ctx, func(t Tables) (err error) {
		rows, _ := t.tx.Query(ctx, find)
		carts, err = pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
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

// What one cart can hold.
const (
	maxLines = 20
	maxUnits = 100 // of a line
)

// validate checks a cart as a buyer sends it.
func (c Cart) validate() error {
	wrong := !isText(c.Buyer) || len(c.Lines) == 0 || len(c.Lines) > maxLines
	skus := c.skus()
	for i, l := range c.Lines {
		wrong = wrong || !isText(l.SKU) || l.Units < 1 || l.Units > maxUnits || slices.Contains(skus[:i], l.SKU)
	}
	if wrong {
		return fmt.Errorf("%w: a cart has a buyer, and 1 to %d lines, each with a sku of its own and 1 to %d units; "+
			"texts have 1 to 256 bytes and no control characters", ErrInvalid, maxLines, maxUnits)
	}
	return nil
}

// isText: it has to fit into the name of a resource, and a text in Postgres cannot hold a zero
// byte.
func isText(s string) bool {
	return s != "" && len(s) <= 256 && !strings.ContainsFunc(s, unicode.IsControl)
}

// skus are those of the lines.
func (c Cart) skus() (skus []string) {
	for _, l := range c.Lines {
		skus = append(skus, l.SKU)
	}
	return skus
}

// take takes a cart out of the levels, and prices it: what remains decides what a unit costs. So
// reading, deciding and writing belong together.
func take(levels []Level, c Cart) ([]Level, Cart, error) {
	after := slices.Clone(levels)
	c.Lines = slices.Clone(c.Lines)
	for i, l := range c.Lines {
		at := slices.IndexFunc(levels, func(s Level) bool { return s.SKU == l.SKU })
		if at < 0 {
			return nil, c, fmt.Errorf("%w: there is no sku %s", ErrInvalid, l.SKU)
		}
		if levels[at].Remaining < l.Units {
			return nil, c, fmt.Errorf("%w: %d units of %s are left", ErrSoldOut, levels[at].Remaining, l.SKU)
		}
		after[at].Remaining -= l.Units
		c.Lines[i].Cents = price(levels[at], l.Units)
		c.Cents += c.Lines[i].Cents
	}
	return after, c, nil
}

// price is half of the full one for the first half of the stock.
func price(l Level, units int) (cents int64) {
	full := min(units, max(0, l.Start/2-(l.Remaining-units)))
	return int64(full)*l.Cents + int64(units-full)*((l.Cents+1)/2)
}
