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
	crand "crypto/rand"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"

	"github.com/fencedb/fencedb/examples/inventory/shop"
	"github.com/fencedb/fencedb/internal/demo/worker"
	"github.com/fencedb/fencedb/internal/testenv"
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

var modes = []Mode{Fenced, Lock, ForUpdate, Optimistic}

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

// Compare plays the sale in each mode, and prints a table. It returns an error if any books are wrong,
// or if those of the control are right.
func Compare(ctx context.Context, load Load, out io.Writer) error {
	if err := load.Validate(); err != nil {
		return err
	}
	fmt.Fprintf(out, "%d buyers in %d processes want %d SKUs for %v; %d times one of the processes is stopped "+
		"for %v, leases last %v\n",
		load.Buyers, Workers, load.SKUs, load.For, load.Pauses, load.Pause, load.TTL)
	var results []Result
	var problems []string
	for _, mode := range modes {
		fmt.Fprintf(out, "%s ...\n", mode)
		r, err := playOn(ctx, mode, load)
		if err != nil {
			return fmt.Errorf("%s: %w", mode, err)
		}
		results = append(results, r)
		problems = append(problems, r.Problems()...)
	}
	fmt.Fprintln(out)
	if err := WriteTable(out, results); err != nil {
		return err
	}
	for _, p := range problems {
		fmt.Fprintln(out, p)
	}
	if len(problems) > 0 {
		return errors.New("an invariant does not hold")
	}
	fmt.Fprintln(out, "\nAll invariants hold.")
	return nil
}

// playOn gives each sale servers of its own, if they are ours to start.
func playOn(ctx context.Context, mode Mode, load Load) (r Result, err error) {
	env, err := testenv.Start(ctx, testenv.Options{})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, env.Close()) }()
	return Run(ctx, mode, worker.Servers{PostgresURL: env.PostgresURL, RedisURL: env.RedisURL, Namespace: "sale_" + crand.Text()}, load)
}
