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

// Bank is a payment provider. Its methods return when ctx ends.
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

// resources are those of SKUs, and others. The migration says the same in SQL.
func resources(skus []string, others ...string) []string {
	for _, sku := range skus {
		others = append(others, lease.Resource("sku", sku))
	}
	return others
}

// Reserve takes all lines out of the stock for a new cart, or none.
//
// Nil means reserved until Cart.Expires. [lease.ErrHeld] says that other requests held these SKUs
// for longer than we wait, and when to try again. After any other error nothing is reserved either,
// except that [fencedb.ErrCommitUnknown] leaves it open; then the reservation, if there is one,
// runs out by itself.
func (s *Shop) Reserve(ctx context.Context, buyer string, lines []Line) (c Cart, err error) {
	if err := Validate(buyer, lines); err != nil {
		return Cart{}, err
	}
	id, skus := uuid.New(), SKUs(lines)
	err = s.alone(ctx, resources(skus, cartResource(id)), func(t Tables) error {
		levels, err := t.Levels(ctx, skus) // true until we commit: no other holder can write them before
		if err != nil {
			return err
		}
		after, priced, err := Take(levels, lines)
		if err != nil {
			return err
		}
		if err := t.SetLevels(ctx, after); err != nil {
			return err
		}
		c, err = t.AddCart(ctx, id, buyer, priced, s.keep)
		return err
	})
	return c, err
}

// alone runs fn in one transaction behind the fences of all resources, when it is our turn for all
// of them.
func (s *Shop) alone(ctx context.Context, resources []string, fn func(Tables) error) error {
	return done(s.desk.DoAll(ctx, resources, func(_ context.Context, h *guard.Holder) error {
		return s.repo.Write(ctx, h, fn)
	}, s.wait))
}

// done: what has been written stands, though the lease has ended early.
func done(err error) error {
	if errors.Is(err, lease.ErrWorkDone) {
		return nil
	}
	return err
}

// Stock puts SKUs up for sale. Those that are there already stay as they are.
func (s *Shop) Stock(ctx context.Context, levels []Level) error {
	var skus []string
	for _, l := range levels {
		skus = append(skus, l.SKU)
	}
	return s.alone(ctx, resources(skus), func(t Tables) error { return t.AddLevels(ctx, levels) })
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

// What one cart can hold.
const (
	MaxLines = 20
	MaxUnits = 100 // of a line
	maxSKU   = 256 // bytes; with its kind it has to be a resource
)

// Validate checks a cart as a buyer sends it.
func Validate(buyer string, lines []Line) error {
	switch {
	case !isText(buyer):
		return fmt.Errorf("%w: say who buys, without control characters", ErrInvalid)
	case len(lines) == 0 || len(lines) > MaxLines:
		return fmt.Errorf("%w: %d lines; a cart has 1 to %d", ErrInvalid, len(lines), MaxLines)
	}
	for i, l := range lines {
		switch {
		case !isText(l.SKU) || len(l.SKU) > maxSKU:
			return fmt.Errorf("%w: the sku of line %d is not one; it has 1 to %d bytes, without control characters", ErrInvalid, i+1, maxSKU)
		case l.Units < 1 || l.Units > MaxUnits:
			return fmt.Errorf("%w: %d units of %s; 1 to %d can be reserved", ErrInvalid, l.Units, l.SKU, MaxUnits)
		case slices.ContainsFunc(lines[:i], func(m Line) bool { return m.SKU == l.SKU }):
			return fmt.Errorf("%w: two lines for %s; make them one", ErrInvalid, l.SKU)
		}
	}
	return nil
}

// isText: a text in Postgres cannot hold a zero byte.
func isText(s string) bool { return s != "" && !strings.ContainsFunc(s, unicode.IsControl) }

// SKUs are those of the lines.
func SKUs(lines []Line) []string {
	var skus []string
	for _, l := range lines {
		skus = append(skus, l.SKU)
	}
	return skus
}

// Take takes the lines out of the levels, and prices them: what remains decides what a unit costs.
// So reading, deciding and writing belong together.
func Take(levels []Level, lines []Line) ([]Level, []Line, error) {
	after, priced := slices.Clone(levels), slices.Clone(lines)
	for i, l := range lines {
		at := slices.IndexFunc(levels, func(s Level) bool { return s.SKU == l.SKU })
		if at < 0 {
			return nil, nil, fmt.Errorf("%w: there is no sku %s", ErrInvalid, l.SKU)
		}
		if levels[at].Remaining < l.Units {
			return nil, nil, fmt.Errorf("%w: %d units of %s are left", ErrSoldOut, levels[at].Remaining, l.SKU)
		}
		after[at].Remaining -= l.Units
		priced[i].Cents = price(levels[at], l.Units)
	}
	return after, priced, nil
}

// price is half of the full one for the first half of the stock.
func price(l Level, units int) (cents int64) {
	full := min(units, max(0, l.Start/2-(l.Remaining-units)))
	return int64(full)*l.Cents + int64(units-full)*((l.Cents+1)/2)
}

// PutBack is the opposite of Take.
func PutBack(levels []Level, lines []Line) []Level {
	after := slices.Clone(levels)
	for i := range after {
		for _, l := range lines {
			if l.SKU == after[i].SKU {
				after[i].Remaining += l.Units
			}
		}
	}
	return after
}
