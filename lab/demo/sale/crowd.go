package sale

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedb/fencedb/examples/inventory/shop"
	"github.com/fencedb/fencedb/internal/worker"
	"github.com/fencedb/fencedb/lab/demo/service"
)

// settings are what a worker is told at its start.
type settings struct {
	service.Servers
	Load
	Mode   Mode
	Name   string
	Buyers int // of this worker
}

// Orders, one a line.
const (
	orderHold = "hold" // stop the next buyer who is about to write to the stock
	orderGo   = "go"   // let that one go on
	orderEnd  = "end"  // let the buyers finish what they are at
)

// report is what a worker tells, one JSON object a line: first that it is ready, then the SKUs that
// a buyer who is held is about to write to, and at the end what the buyers were told.
type report struct {
	SKUs  []string `json:",omitempty"`
	Tally *Tally   `json:",omitempty"`
}

const sweepEvery = 100 * time.Millisecond

// Work is the life of a worker of kind "sale": until it is told to end, or its orders do.
func Work(ctx context.Context, self *worker.Self) error {
	const conns = 20 // to Postgres; everyone else waits for one
	c := &crowd{Self: self, gate: make(worker.Gate, 1), tally: Tally{Reserve: Outcomes{}, Pay: Outcomes{}}}
	if err := self.Config(&c.settings); err != nil {
		return err
	}
	v, err := c.Connect(ctx, c.Name, c.TTL, func(config *pgxpool.Config) {
		config.MaxConns, config.ConnConfig.Tracer = conns, c
	})
	if err != nil {
		return err
	}
	defer v.Close()
	c.shop = open(c.Mode, c.Load, v)
	c.run(ctx)
	return nil
}

// crowd is one process with its share of the buyers. As a tracer it can hold one buyer who has read
// the stock, has made up its mind, and is about to write: in the driver, when everything that can
// be checked before has been checked. Then the process can be stopped at the worst point instead of
// at any.
type crowd struct {
	*worker.Self
	settings
	quiet // for the rest of what pgx asks of a tracer

	shop seller
	hold atomic.Bool // the next one who is about to write
	gate worker.Gate // where that one waits

	mu    sync.Mutex
	tally Tally // guarded by mu
}

func (c *crowd) run(ctx context.Context) {
	ctx, abort := context.WithCancel(ctx)
	defer abort()
	selling, stop := context.WithCancel(ctx) // when it ends, what is under way goes on
	defer stop()
	var all sync.WaitGroup
	for n := range c.settings.Buyers {
		all.Go(func() {
			for name := fmt.Sprintf("%s-%d", c.Name, n); selling.Err() == nil; {
				c.buy(ctx, name)
			}
		})
	}
	all.Go(func() {
		for worker.Sleep(selling, sweepEvery) == nil {
			err := c.shop.Sweep(ctx)
			c.count(func(t *Tally) { t.note(err) })
		}
	})
	c.Tell(report{})
	if !c.obey() {
		abort()
	}
	stop()
	all.Wait()
	c.Tell(report{Tally: &c.tally})
}

// obey returns true when told to end, and false when nobody is left to tell.
func (c *crowd) obey() bool {
	var order string
	for c.Order(&order) == nil {
		switch order {
		case orderHold:
			c.hold.Store(true)
		case orderGo:
			c.gate.Go()
		case orderEnd:
			return true
		}
	}
	return false
}

func (c *crowd) count(f func(t *Tally)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.tally)
}

// attempt is one buyer at one cart. What happens under a context that has one can be held.
type attempt struct{ held bool }

type attemptKey struct{}

const abandon = 0.1 // of the carts are never paid

// buy is one cart of a buyer.
func (c *crowd) buy(ctx context.Context, name string) {
	var wishes []shop.Line // one or two units of one to three SKUs
	for _, n := range rand.Perm(c.SKUs)[:min(c.SKUs, 1+rand.IntN(3))] {
		wishes = append(wishes, shop.Line{SKU: sku(n + 1), Units: 1 + rand.IntN(2)})
	}
	a, began := &attempt{}, time.Now()
	cart, err := c.shop.Reserve(context.WithValue(ctx, attemptKey{}, a), name, wishes)
	c.count(func(t *Tally) {
		t.Reserve[t.note(err)]++
		switch {
		case a.held && err == nil:
			t.StoppedWrote++
		case a.held:
			t.StoppedNot++
		}
		if err == nil {
			t.Waits = append(t.Waits, time.Since(began))
		}
	})
	if err != nil || rand.Float64() < abandon {
		return
	}
	err = c.shop.Pay(ctx, cart.ID)
	c.count(func(t *Tally) { t.Pay[t.note(err)]++ })
}

// TraceBatchStart implements [pgx.BatchTracer].
func (c *crowd) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	a, watched := ctx.Value(attemptKey{}).(*attempt)
	if !watched || !strings.HasPrefix(data.Batch.QueuedQueries[0].SQL, "UPDATE stock") || !c.hold.CompareAndSwap(true, false) {
		return ctx
	}
	a.held = true
	var skus []string
	for _, q := range data.Batch.QueuedQueries {
		skus = append(skus, q.Arguments[0].(string))
	}
	c.gate.Hold(ctx, func() { c.Tell(report{SKUs: skus}) })
	return ctx
}

// quiet is a tracer of pgx that does nothing.
type quiet struct{}

func (quiet) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (quiet) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData)     {}
func (quiet) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (quiet) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

// Outcome is how a request ended. It is any string to let the table, a template, name it.
type Outcome = string

// The outcomes.
const (
	Done    Outcome = "done"
	Refused Outcome = "refused" // too late, as Postgres or the buyer itself has noticed: nothing written
	Busy    Outcome = "busy"    // did not get its turn in time
	Over    Outcome = "over"    // sold out, or not reserved any more
	Unknown Outcome = "unknown" // committed or not, nobody knows
	Failed  Outcome = "failed"  // anything else
)

// Outcomes count how requests ended, each once.
type Outcomes map[Outcome]int

// Tally is what buyers were told.
type Tally struct {
	Reserve, Pay Outcomes
	Waits        []time.Duration // how long each reservation took
	StoppedWrote int             // stopped between reading and writing, and reserved afterwards
	StoppedNot   int             // the same, and did not reserve
	Error        string          // the first that was not to be expected
}

// note keeps the first error that nobody expects.
func (t *Tally) note(err error) Outcome {
	o := outcomeOf(err)
	if o == Failed {
		t.Error = cmp.Or(t.Error, err.Error())
	}
	return o
}

func (t *Tally) add(u Tally) {
	for o, n := range u.Reserve {
		t.Reserve[o] += n
	}
	for o, n := range u.Pay {
		t.Pay[o] += n
	}
	t.Waits = append(t.Waits, u.Waits...)
	t.StoppedWrote += u.StoppedWrote
	t.StoppedNot += u.StoppedNot
	t.Error = cmp.Or(t.Error, u.Error)
}
