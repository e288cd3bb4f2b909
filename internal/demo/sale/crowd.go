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
	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/examples/inventory/shop"
	"github.com/fencedb/fencedb/internal/demo/worker"
	"github.com/fencedb/fencedb/internal/faulty"
)

// settings are what a worker is told at its start.
type settings struct {
	Servers
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

// report is what a worker tells, one JSON object a line.
type report struct {
	Kind  string          // ready, holding, done
	Tally Tally           // done: what the buyers were told
	SKUs  []string        `json:",omitempty"` // holding: what the buyer is about to write to
	Waits []time.Duration `json:",omitempty"` // done: how long each reservation took
	Error string          `json:",omitempty"` // the first that was not to be expected
}

const (
	sweepEvery = 100 * time.Millisecond
	conns      = 20 // to Postgres; everyone else waits for one
)

// Work is the life of a worker of kind "sale": until it is told to end, or its orders do.
func Work(ctx context.Context, self *worker.Self) error {
	c := &crowd{Self: self}
	if err := self.Config(&c.settings); err != nil {
		return err
	}
	c.hold = breakpoint{
		reached: func(skus []string) { self.Tell(report{Kind: "holding", SKUs: skus}) },
		goOn:    make(chan struct{}, 1),
	}
	db, client, err := c.settings.connect(ctx, &c.hold)
	if err != nil {
		return err
	}
	defer db.Close()
	defer client.Close()
	if c.shop, err = open(c.Mode, c.Servers, c.Load, db, client); err != nil {
		return err
	}
	c.run(ctx)
	return nil
}

func (s settings) connect(ctx context.Context, hold *breakpoint) (*pgxpool.Pool, *redis.Client, error) {
	client, err := worker.Redis(s.RedisURL, s.Name)
	if err != nil {
		return nil, nil, err
	}
	db, err := worker.Postgres(ctx, s.PostgresURL, s.Name, func(config *pgxpool.Config) {
		config.MaxConns, config.ConnConfig.Tracer = conns, hold
	})
	return db, client, err
}

// crowd is one process with its share of the buyers.
type crowd struct {
	*worker.Self
	settings
	shop seller
	hold breakpoint

	mu    sync.Mutex
	tally Tally           // guarded by mu
	waits []time.Duration // guarded by mu
	err   string          // guarded by mu
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
		for sleep(selling, sweepEvery) == nil {
			c.note(c.shop.Sweep(ctx))
		}
	})
	c.Tell(report{Kind: "ready"})
	if !c.obey() {
		abort()
	}
	stop()
	all.Wait()
	c.Tell(report{Kind: "done", Tally: c.tally, Waits: c.waits, Error: c.err})
}

// obey returns true when told to end, and false when nobody is left to tell.
func (c *crowd) obey() bool {
	var order string
	for c.Order(&order) == nil {
		switch order {
		case orderHold:
			c.hold.arm()
		case orderGo:
			c.hold.goOn <- struct{}{}
		case orderEnd:
			return true
		}
	}
	return false
}

// note keeps the first error that nobody expects.
func (c *crowd) note(err error) {
	var o Outcomes
	if o.count(err); o.Failed == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = cmp.Or(c.err, err.Error())
}

func (c *crowd) count(f func(t *Tally)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.tally)
}

const abandon = 0.1 // of the carts are never paid

// buy is one cart of a buyer.
func (c *crowd) buy(ctx context.Context, name string) {
	a, began := &attempt{}, time.Now()
	cart, err := c.shop.Reserve(context.WithValue(ctx, attemptKey{}, a), name, c.wishes())
	c.note(err)
	c.count(func(t *Tally) {
		t.Reserve.count(err)
		switch {
		case a.held && err == nil:
			t.StoppedWrote++
		case a.held:
			t.StoppedNot++
		}
		if err == nil {
			c.waits = append(c.waits, time.Since(began))
		}
	})
	if err != nil || rand.Float64() < abandon {
		return
	}
	began = time.Now()
	err = c.shop.Pay(ctx, cart.ID)
	c.note(err)
	c.count(func(t *Tally) {
		t.Pay.count(err)
		if err == nil && time.Since(began) > c.TTL {
			t.LongPaid++
		}
	})
}

// wishes are one or two units of one to three SKUs.
func (c *crowd) wishes() (lines []shop.Line) {
	for _, n := range rand.Perm(c.SKUs)[:min(c.SKUs, 1+rand.IntN(3))] {
		lines = append(lines, shop.Line{SKU: sku(n + 1), Units: 1 + rand.IntN(2)})
	}
	return lines
}

// breakpoint holds one buyer who has read the stock, has made up its mind, and is about to write:
// in the driver, when everything that can be checked before has been checked. Then the process can
// be stopped at the worst point instead of at any.
type breakpoint struct {
	faulty.Breakpoint // never armed, for the rest of what pgx asks of a tracer

	reached func(skus []string) // that are about to be written
	goOn    chan struct{}
	armed   atomic.Bool
}

// attempt is one buyer at one cart. What happens under a context that has one can be held.
type attempt struct{ held bool }

type attemptKey struct{}

// arm holds the next one. A word to go on that came too late for the last one does not count.
func (b *breakpoint) arm() {
	select {
	case <-b.goOn:
	default:
	}
	b.armed.Store(true)
}

// TraceBatchStart implements [pgx.BatchTracer].
func (b *breakpoint) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	a, watched := ctx.Value(attemptKey{}).(*attempt)
	if !watched || !strings.HasPrefix(data.Batch.QueuedQueries[0].SQL, "UPDATE stock") {
		return ctx
	}
	if b.armed.CompareAndSwap(true, false) {
		a.held = true
		var skus []string
		for _, q := range data.Batch.QueuedQueries {
			skus = append(skus, q.Arguments[0].(string))
		}
		b.reached(skus)
		select {
		case <-b.goOn:
		case <-ctx.Done():
		}
	}
	return ctx
}
