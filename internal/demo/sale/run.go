package sale

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/fencedb/fencedb/examples/inventory/shop"
	"github.com/fencedb/fencedb/internal/demo/worker"
)

// Result is one sale: what its buyers were told, and what the books say.
type Result struct {
	Mode  Mode
	Load  Load
	Told  Tally
	Waits []time.Duration // how long each reservation took

	Closing Books // when the last buyer had gone
	Emptied Books // after one more buyer has taken all that was left for sale
	Settled Books // when every reservation was over, and every refund made
}

const (
	startTime  = time.Minute // for a worker to begin, or to end
	settleTime = time.Minute // for the last reservations and refunds
)

// Run plays a sale.
func Run(ctx context.Context, mode Mode, s Servers, l Load) (r Result, err error) {
	if err := l.Validate(); err != nil {
		return r, err
	}
	ctx, cancel := context.WithTimeout(ctx, l.For+2*startTime+settleTime)
	defer cancel()
	p := &play{Context: ctx, mode: mode, servers: s, load: l}
	if err := p.connect(); err != nil {
		return r, err
	}
	defer p.db.Close()
	defer p.client.Close()
	defer func() {
		for _, w := range p.workers {
			w.Kill()
		}
	}()
	if err := p.prepare(); err != nil {
		return r, err
	}
	r = Result{Mode: mode, Load: l}
	if r.Told, r.Waits, err = p.trade(); err != nil {
		return r, err
	}
	return r, p.count(&r)
}

// play is one run of the sale.
type play struct {
	context.Context
	mode    Mode
	servers Servers
	load    Load

	db      *pgxpool.Pool
	client  *redis.Client
	shop    seller
	workers []*crowdProcess
}

func (p *play) connect() (err error) {
	var none breakpoint
	p.db, p.client, err = settings{Servers: p.servers, Name: "auditor"}.connect(p, &none)
	return err
}

func (p *play) prepare() (err error) {
	plain := stdlib.OpenDBFromPool(p.db)
	if err := errors.Join(shop.Migrate(p, plain), plain.Close()); err != nil {
		return err
	}
	if p.mode != Fenced {
		_, err := p.db.Exec(p, `
			SELECT fencedb.unprotect('stock'), fencedb.unprotect('carts'), fencedb.unprotect('cart_lines'), fencedb.unprotect('payments')`)
		if err != nil {
			return err
		}
	}
	if p.shop, err = open(p.mode, p.servers, p.load, p.db, p.client); err != nil {
		return err
	}
	return p.shop.Stock(p, p.load.levels())
}

// trade lets the buyers buy, stops workers meanwhile, and returns when the last buyer has gone.
func (p *play) trade() (told Tally, waits []time.Duration, err error) {
	ctx, cancel := context.WithTimeout(p, startTime)
	defer cancel()
	for n := range Workers {
		buyers := (p.load.Buyers + Workers - 1 - n) / Workers
		w, err := startWorker(ctx, settings{p.servers, p.load, p.mode, fmt.Sprintf("worker-%d", n+1), buyers})
		if err != nil {
			return told, nil, err
		}
		p.workers = append(p.workers, w)
	}
	over := time.Now().Add(p.load.For)
	if err := errors.Join(p.pauses(), sleep(p, time.Until(over))); err != nil {
		return told, nil, err
	}
	return p.close()
}

// pauses stops one worker after the other, each at a random time within its share of the sale.
func (p *play) pauses() error {
	began := time.Now()
	for n := range p.load.Pauses {
		share := p.load.For / time.Duration(p.load.Pauses)
		spare := share - p.load.Pause
		at := time.Duration(n)*share + spare/4 + rand.N(spare/2+1)
		if err := sleep(p, time.Until(began.Add(at))); err != nil {
			return err
		}
		if err := p.workers[n%Workers].pause(p, p.outlast); err != nil {
			return err
		}
	}
	return nil
}

// outlast waits for as long as a stop lasts, and then until others have bought what the stopped
// buyer is about to write over, where the mode lets them: so that the result does not depend on
// luck. If nobody buys it, the verdict says so.
func (p *play) outlast(skus []string) error {
	before, err := shop.Levels(p, p.db, skus)
	if err != nil {
		return err
	}
	if err := sleep(p, p.load.Pause); err != nil || p.mode == ForUpdate {
		return err
	}
	patience, cancel := context.WithTimeout(p, p.load.patience())
	defer cancel()
	for {
		now, err := shop.Levels(p, p.db, skus)
		if err != nil {
			return err
		}
		for i := range now {
			if now[i].Remaining < before[i].Remaining {
				return nil
			}
		}
		if sleep(patience, 20*time.Millisecond) != nil {
			return nil
		}
	}
}

func (p *play) close() (told Tally, waits []time.Duration, err error) {
	ctx, cancel := context.WithTimeout(p, startTime)
	defer cancel()
	reports := make([]report, len(p.workers))
	var all errgroup.Group
	for n, w := range p.workers {
		all.Go(func() (err error) {
			reports[n], err = w.ask(ctx, orderEnd, "done")
			return err
		})
	}
	err = all.Wait()
	for n, r := range reports {
		told.add(r.Tally)
		waits = append(waits, r.Waits...)
		if r.Error != "" {
			err = errors.Join(err, fmt.Errorf("%s: %s", p.workers[n].name, r.Error))
		}
	}
	return told, waits, err
}

// count closes the books: as they are, after the shelves were emptied, and when all is settled.
func (p *play) count(r *Result) (err error) {
	if r.Closing, err = audit(p, p.db); err != nil {
		return err
	}
	if err := p.empty(); err != nil {
		return fmt.Errorf("buy what is left: %w", err)
	}
	if r.Emptied, err = audit(p, p.db); err != nil {
		return err
	}
	if err := p.settle(); err != nil {
		return fmt.Errorf("settle: %w", err)
	}
	r.Settled, err = audit(p, p.db)
	return err
}

// empty reserves all that the shelves say is left, so that what was promised can be compared with
// what there was.
func (p *play) empty() error {
	for {
		levels, err := shop.AllLevels(p, p.db)
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
		if _, err := p.shop.Reserve(p, "the last buyer", lines); err != nil {
			return err
		}
	}
}

// settle sweeps until nothing is reserved and no refund is due.
func (p *play) settle() error {
	for {
		if err := p.shop.Sweep(p); err != nil {
			return err
		}
		n, err := unsettled(p, p.db)
		if err != nil || n == 0 {
			return err
		}
		if err := sleep(p, sweepEvery); err != nil {
			return fmt.Errorf("%d carts and refunds: %w", n, err)
		}
	}
}

// crowdProcess is a crowd seen from outside.
type crowdProcess struct {
	*worker.Process[report]
	name string
}

// startWorker starts a worker and waits until it is ready.
func startWorker(ctx context.Context, s settings) (*crowdProcess, error) {
	p, err := worker.Start[report](ctx, "sale", s)
	return &crowdProcess{p, s.Name}, err
}

// ask gives an order and waits for the answer, of that kind.
func (p *crowdProcess) ask(ctx context.Context, order, kind string) (report, error) {
	if err := p.Order(order); err != nil {
		return report{}, err
	}
	r, err := p.Next(ctx)
	if err == nil && r.Kind != kind {
		err = fmt.Errorf("it tells %q", r.Kind)
	}
	if err != nil {
		err = fmt.Errorf("%s: %s: %w", p.name, order, err)
	}
	return r, err
}

// pause stops the process when one of its buyers is about to write to some SKUs, until that
// function returns, and lets both go on.
func (p *crowdProcess) pause(ctx context.Context, until func(skus []string) error) error {
	held, err := p.ask(ctx, orderHold, "holding")
	if err != nil {
		return err
	}
	if err := p.Stop(); err != nil {
		return err
	}
	err = until(held.SKUs)
	return errors.Join(err, p.Order(orderGo), p.Continue())
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
