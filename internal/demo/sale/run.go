package sale

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/fencedb/fencedb/examples/inventory/shop"
	"github.com/fencedb/fencedb/internal/demo/worker"
)

// Result is one sale: what its buyers were told, and what the books say.
type Result struct {
	Mode Mode
	Load Load
	Told Tally

	Closing Books // when the last buyer had gone
	End     Books // when all was settled, and then one more buyer has taken all that was left for sale
}

// Run plays a sale.
func Run(ctx context.Context, mode Mode, s worker.Servers, l Load) (r Result, err error) {
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
	*worker.View
	mode    Mode
	load    Load
	shop    seller
	workers []*worker.Process[report]
}

func prepare(ctx context.Context, mode Mode, s worker.Servers, l Load) (_ *play, err error) {
	p := &play{Context: ctx, mode: mode, load: l}
	if p.View, err = s.Connect(ctx, "auditor", l.TTL); err != nil {
		return nil, err
	}
	err = p.Migrate(ctx, shop.Migrate)
	if err == nil {
		p.shop, err = open(mode, l, p.View)
	}
	if err == nil {
		err = p.shop.Stock(ctx, l.levels())
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
	before, err := shop.Levels(p, p.DB, skus)
	if err == nil {
		err = worker.Sleep(p, p.load.Pause)
	}
	patience, cancel := context.WithTimeout(p, p.load.patience())
	defer cancel()
	for err == nil && p.mode != ForUpdate && patience.Err() == nil {
		var now []shop.Level
		now, err = shop.Levels(p, p.DB, skus)
		for i := range now {
			if now[i].Remaining < before[i].Remaining {
				return nil
			}
		}
		_ = worker.Sleep(patience, 20*time.Millisecond)
	}
	return err
}

// empty reserves all that the shelves say is left, so that what was promised can be compared with
// what there was.
func (p *play) empty() error {
	for {
		levels, err := shop.AllLevels(p, p.DB)
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

// tooLate: the lease was over before anything was written, as it may be on a busy machine. What was to be done can be
// done again.
func tooLate(err error) bool { return outcomeOf(err) == Refused }
