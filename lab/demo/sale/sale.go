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
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"

	"github.com/fencedb/fencedb/examples/inventory/shop"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/worker"
	"github.com/fencedb/fencedb/lab/demo/service"
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
	Stock(ctx context.Context, l shop.Level) error
	Reserve(ctx context.Context, buyer string, lines []shop.Line) (shop.Cart, error)
	Pay(ctx context.Context, id uuid.UUID) error
	Sweep(ctx context.Context) error
}

// open returns the shop, which all processes share.
func open(mode Mode, l Load, v *service.View) seller {
	bank := &pretendBank{v.DB, l.bankDelay}
	s := shop.New(v.Leases, v.DB, bank, l.TTL, l.wait())
	if mode == Fenced {
		return s
	}
	return &rival{Shop: s, mode: mode, load: l, db: v.DB, leases: v.Leases, bank: bank}
}

// wait is how long a request waits for its turn.
func (l Load) wait() time.Duration { return l.Pause + 2*l.patience() }

// bankDelay is short as a rule, and once in a hundred longer than a lease and a reservation last.
func (l Load) bankDelay() time.Duration {
	if rand.IntN(100) == 0 {
		return l.TTL + l.TTL/2
	}
	return time.Duration(5+rand.IntN(25)) * time.Millisecond
}

// sku numbers from 1.
func sku(n int) string { return fmt.Sprintf("sku-%02d", n) }

// Result is one sale: what its buyers were told, and what the books say.
type Result struct {
	Mode Mode
	Load Load
	Told Tally

	Closing Books // when the last buyer had gone
	End     Books // when all was settled, and then one more buyer has taken all that was left for sale
}

// Run plays a sale.
func Run(ctx context.Context, mode Mode, s service.Servers, l Load) (r Result, err error) {
	const around = 3 * time.Minute // for workers to begin and to end, and for the last reservations and refunds
	ctx, cancel := context.WithTimeout(ctx, l.For+around)
	defer cancel()
	p, err := prepare(ctx, mode, s, l)
	if err != nil {
		return r, err
	}
	defer p.Close()
	defer func() {
		for _, w := range p.workers {
			w.Kill()
		}
	}()
	r = Result{Mode: mode, Load: l}
	if r.Told, err = p.trade(); err != nil {
		return r, err
	}
	if r.Closing, err = audit(p, p.DB); err != nil {
		return r, err
	}
	if err := p.settle(); err != nil {
		return r, fmt.Errorf("settle: %w", err)
	}
	if err := p.empty(); err != nil {
		return r, fmt.Errorf("buy what is left: %w", err)
	}
	r.End, err = audit(p, p.DB)
	return r, err
}

// play is one run of the sale.
type play struct {
	context.Context
	*service.View
	mode    Mode
	load    Load
	shop    seller
	workers []*worker.Process[report]
}

func prepare(ctx context.Context, mode Mode, s service.Servers, l Load) (_ *play, err error) {
	p := &play{Context: ctx, mode: mode, load: l}
	if p.View, err = s.Connect(ctx, "auditor", l.TTL); err != nil {
		return nil, err
	}
	err = p.Migrate(ctx, shop.Migrate)
	if err == nil {
		_, err = p.DB.Exec(p, bankSchema)
	}
	if err == nil {
		p.shop = open(mode, l, p.View)
	}
	for n := 0; err == nil && n < l.SKUs; {
		if err = p.shop.Stock(ctx, shop.Level{SKU: sku(n + 1), Start: l.Stock, Cents: int64(1000 + 10*n)}); tooLate(err) {
			err = ctx.Err()
		} else {
			n++
		}
	}
	if err == nil && mode != Fenced {
		_, err = p.DB.Exec(p, `
			SELECT fencedb.unprotect('stock'), fencedb.unprotect('carts'), fencedb.unprotect('cart_lines'), fencedb.unprotect('payments')`)
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// trade lets the buyers buy, stops workers meanwhile, and returns when the last buyer has gone.
func (p *play) trade() (told Tally, err error) {
	told = Tally{Reserve: Outcomes{}, Pay: Outcomes{}}
	for n := range Workers {
		buyers := (p.load.Buyers + Workers - 1 - n) / Workers
		w, err := worker.Start[report](p, "sale", settings{p.Servers, p.load, p.mode, fmt.Sprintf("worker-%d", n+1), buyers})
		if err != nil {
			return told, err
		}
		p.workers = append(p.workers, w)
	}
	over := time.Now().Add(p.load.For)
	if err := errors.Join(p.pauses(), worker.Sleep(p, time.Until(over))); err != nil {
		return told, err
	}
	for _, w := range p.workers { // to all of them, before waiting for the first
		err = errors.Join(err, w.Order(orderEnd))
	}
	for _, w := range p.workers {
		r, failed := w.Next(p)
		if err = errors.Join(err, failed); r.Tally != nil {
			told.add(*r.Tally)
		}
	}
	if told.Error != "" {
		err = errors.Join(err, errors.New(told.Error))
	}
	return told, err
}

// pauses stops one worker after the other, each at a random time within its share of the sale.
func (p *play) pauses() error {
	for n := range p.load.Pauses {
		spare := p.load.For/time.Duration(p.load.Pauses) - p.load.Pause
		err := worker.Sleep(p, spare/4+rand.N(spare/2+1))
		if err == nil {
			err = p.pause(p.workers[n%Workers])
		}
		if err != nil {
			return fmt.Errorf("stop a worker: %w", err)
		}
	}
	return nil
}

// pause stops a worker when one of its buyers is about to write, for as long as a stop lasts, and
// lets both go on.
func (p *play) pause(w *worker.Process[report]) error {
	if err := w.Order(orderHold); err != nil {
		return err
	}
	held, err := w.Next(p)
	if err != nil {
		return err
	}
	if err := w.Stop(); err != nil {
		return err
	}
	err = p.outlast(held.SKUs)
	return errors.Join(err, w.Order(orderGo), w.Continue())
}

// outlast waits for as long as a stop lasts, and then until others have bought what the stopped
// buyer is about to write over, where the mode lets them: so that the result does not depend on
// luck. If nobody buys it, the verdict says so.
func (p *play) outlast(skus []string) error {
	before, err := p.levels(skus)
	if err == nil {
		err = worker.Sleep(p, p.load.Pause)
	}
	patience, cancel := context.WithTimeout(p, p.load.patience())
	defer cancel()
	for err == nil && p.mode != ForUpdate && patience.Err() == nil {
		var now []shop.Level
		now, err = p.levels(skus)
		for i := range now {
			if now[i].Remaining < before[i].Remaining {
				return nil
			}
		}
		_ = worker.Sleep(patience, 20*time.Millisecond)
	}
	return err
}

// levels are those of some SKUs, or all of them.
func (p *play) levels(skus []string) (levels []shop.Level, err error) {
	err = fencedb.NewRepository(p.DB, shop.In).Read(p, func(t shop.Tables) error {
		levels, err = t.Levels(p, skus)
		return err
	})
	return levels, err
}

// empty reserves all that the shelves say is left, so that what was promised can be compared with
// what there was.
func (p *play) empty() error {
	for {
		levels, err := p.levels(nil)
		if err != nil {
			return err
		}
		var lines []shop.Line
		for _, l := range levels {
			if l.Remaining > 0 && len(lines) < shop.MaxLines {
				lines = append(lines, shop.Line{SKU: l.SKU, Units: min(l.Remaining, shop.MaxUnits)})
			}
		}
		if len(lines) == 0 {
			return nil
		}
		if _, err := p.shop.Reserve(p, "the last buyer", lines); err != nil && !tooLate(err) {
			return err
		}
	}
}

// settle sweeps until nothing is reserved and no refund is due.
func (p *play) settle() error {
	for {
		if err := p.shop.Sweep(p); err != nil && !tooLate(err) {
			return err
		}
		if b, err := audit(p, p.DB); err != nil || b.Unsettled == 0 {
			return err
		}
		if err := worker.Sleep(p, sweepEvery); err != nil {
			return err
		}
	}
}

// tooLate: the lease was over before anything was written, as it may be on a busy machine. What was
// to be done can be done again.
func tooLate(err error) bool { return outcomeOf(err) == Refused }
