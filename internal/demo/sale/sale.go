// Package sale plays one flash sale with many buyers in several processes, stops some of the
// processes for longer than their leases last, and asks the database afterwards what has become of
// the goods and of the money.
//
// It plays it on the shop of examples/inventory or on one of three rivals; all four get the same
// load, the same stops at the same point, and the same auditor. The auditor believes no buyer: it
// adds up rows.
package sale

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"

	"github.com/fencedb/fencedb/examples/inventory/shop"
	"github.com/fencedb/fencedb/internal/demo/worker"
)

// Mode is what keeps two buyers apart.
type Mode string

// The modes.
const (
	Fenced     Mode = "fenced"
	Lock       Mode = "lock only"
	ForUpdate  Mode = "for update"
	Optimistic Mode = "optimistic"
)

// Modes are all of them.
var Modes = []Mode{Fenced, Lock, ForUpdate, Optimistic}

// Workers is how many processes the buyers come through.
const Workers = 3

// Load is what happens in a sale.
type Load struct {
	Buyers int           // at once, in all processes together
	SKUs   int           // that they want
	Stock  int           // units of each SKU
	For    time.Duration // how long they buy
	Pauses int           // how often a process is stopped
	Pause  time.Duration // how long at least; longer than TTL
	TTL    time.Duration // of the leases; a reservation lasts as long
}

// Validate says what does not fit together.
func (l Load) Validate() error {
	switch {
	case l.Buyers < Workers:
		return fmt.Errorf("%d buyers; each of the %d processes needs one", l.Buyers, Workers)
	case l.Pause < l.TTL+l.TTL/4:
		return fmt.Errorf("stops of %v; they have to outlast a lease of %v", l.Pause, l.TTL)
	case time.Duration(l.Pauses)*(l.Pause+l.TTL) > l.For:
		return fmt.Errorf("%d stops of %v, each with %v of trade before it, do not fit into %v", l.Pauses, l.Pause, l.TTL, l.For)
	}
	return nil
}

// patience is how much longer than a stop requests wait, and a stop waits for others.
func (l Load) patience() time.Duration { return 5 * l.TTL }

// seller is a shop of any mode.
type seller interface {
	Stock(ctx context.Context, levels []shop.Level) error
	Reserve(ctx context.Context, buyer string, lines []shop.Line) (shop.Cart, error)
	Pay(ctx context.Context, id uuid.UUID) error
	Sweep(ctx context.Context) error
}

// open returns the shop, which all processes share.
func open(mode Mode, l Load, v *worker.View) (seller, error) {
	s, err := shop.New(shop.Config{
		DB: v.DB, Leases: v.Leases, Bank: shop.NewPretendBank(v.DB, l.bankDelay), Keep: l.TTL, Wait: l.Pause + 2*l.patience(),
	})
	if err != nil || mode == Fenced {
		return s, err
	}
	return &rival{s, mode}, nil
}

// bankDelay is short as a rule, and once in a hundred longer than a lease and a reservation last.
func (l Load) bankDelay() time.Duration {
	if rand.IntN(100) == 0 {
		return l.TTL + l.TTL/2
	}
	return time.Duration(5+rand.IntN(25)) * time.Millisecond
}

// sku numbers from 1.
func sku(n int) string { return fmt.Sprintf("sku-%02d", n) }

func (l Load) levels() (levels []shop.Level) {
	for n := range l.SKUs {
		levels = append(levels, shop.Level{SKU: sku(n + 1), Start: l.Stock, Cents: int64(1000 + 10*n)})
	}
	return levels
}
