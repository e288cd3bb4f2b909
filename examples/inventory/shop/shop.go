// Package shop is a flash sale: many buyers, few units, carts that are reserved all or none.
//
//	Reserve ──▶ RESERVED ──Pay──▶ SOLD       the lease on the cart is kept while the bank takes its time
//	               │
//	               └──Sweep──▶ EXPIRED       units go back, and money that the bank has taken
//
// # What protects each write
//
// Everything is written under leases, on each SKU and on the cart, and behind the fences of their tokens:
//
//   - the levels of the stock and the new cart, by [Shop.Reserve]: one transaction with the grants of all SKUs and of the cart;
//   - the start of a payment and the sale, by [Shop.Pay]: a statement each, with the grant of the cart;
//   - the end of a reservation, by [Shop.Sweep]: one transaction like that of Reserve, and a statement for the refund.
//
// The leases keep others waiting outside, without a connection to Postgres. They cannot stop a process that was paused
// for longer than its lease lasts and then goes on. Its tokens can: as soon as someone else has been there, Postgres refuses them.
//
// # Money
//
// The bank is not behind the fence. So what will be asked of it is written down first, and everything asked of it can be
// asked again: the id of the cart is the key of its charge and of its refund. Who takes a cart over from a payer that was lost
// writes down, in the same transaction, that the money is due to go back. It needs no word from the one who was lost.
package shop

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedb/fencedb/examples/inventory/store"
	"github.com/fencedb/fencedb/lease"
)

var (
	// ErrInvalid: the request makes no sense, and the message says why. Nothing was reserved.
	ErrInvalid = errors.New("shop: invalid request")

	// ErrSoldOut: there are not enough units left of one of the SKUs. Nothing was reserved.
	ErrSoldOut = errors.New("shop: sold out")

	// ErrNoCart: there is no such cart.
	ErrNoCart = errors.New("shop: no such cart")

	// ErrExpired: the cart was not paid in time. What the bank has taken for it, if anything, is given back.
	ErrExpired = errors.New("shop: the reservation is over")
)

// Bank is a payment provider.
type Bank interface {
	// Charge takes the money, once for each key. After an error it may have been taken or not.
	Charge(ctx context.Context, key uuid.UUID, cents int64) error
	// Refund gives it back, and refuses a charge with that key that comes later.
	Refund(ctx context.Context, key uuid.UUID) error
}

// Config is what a Shop needs. All of it is required.
type Config struct {
	DB     *pgxpool.Pool // brought up by store.Migrate
	Leases *lease.Issuer
	Bank   Bank
	Keep   time.Duration // how long a reservation lasts, unless it is being paid
	Wait   time.Duration // how long a request waits for its turn
}

// Shop sells. It is safe for concurrent use, by as many processes as there are.
type Shop struct{ Config }

// New checks the configuration. What is in it stays the caller's to close.
func New(c Config) (*Shop, error) {
	if c.DB == nil || c.Leases == nil || c.Bank == nil || c.Keep < time.Millisecond || c.Wait <= 0 {
		return nil, fmt.Errorf("%w: a Config needs DB, Leases and Bank, and positive Keep and Wait", ErrInvalid)
	}
	return &Shop{c}, nil
}

// The migration says the same in SQL.
func skuResource(sku string) string    { return lease.Resource("sku", sku) }
func cartResource(id uuid.UUID) string { return lease.Resource("cart", id) }

func skuResources(lines []store.Line) (resources []string) {
	for _, l := range lines {
		resources = append(resources, skuResource(l.SKU))
	}
	return resources
}
