package sale

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// WorkerVar makes a program a worker, which is to call [Work]. Its value is for this package alone. It is a variable and not an
// argument: a URL may hold a password, and ps shows arguments to everybody.
const WorkerVar = "INVENTORY_WORKER"

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
	Kind  string          // ready, tally, holding, done
	Tally Tally           // tally, done
	SKUs  []string        `json:",omitempty"` // holding: what the buyer is about to write to
	Waits []time.Duration `json:",omitempty"` // done: how long each reservation took
	Error string          `json:",omitempty"` // the first that was not to be expected
}

const (
	tellEvery  = 200 * time.Millisecond
	sweepEvery = 100 * time.Millisecond
	conns      = 20 // to Postgres; everyone else waits for one
)

// Work is a worker's life: until it is told to end, or its orders do.
func Work(ctx context.Context, orders io.Reader, out io.Writer) error {
	var s settings
	if err := json.Unmarshal([]byte(os.Getenv(WorkerVar)), &s); err != nil {
		return fmt.Errorf("%s: %w", WorkerVar, err)
	}
	w := &worker{settings: s, out: json.NewEncoder(out)}
	w.hold = breakpoint{reached: func(skus []string) { w.tell(report{Kind: "holding", SKUs: skus}) }, goOn: make(chan struct{}, 1)}
	db, client, err := s.connect(ctx, &w.hold)
	if err != nil {
		return err
	}
	defer db.Close()
	defer client.Close()
	if w.shop, err = open(s.Mode, s.Servers, s.Load, db, client); err != nil {
		return err
	}
	w.run(ctx, orders)
	return nil
}

func (s settings) connect(ctx context.Context, hold *breakpoint) (*pgxpool.Pool, *redis.Client, error) {
	pool, err := pgxpool.ParseConfig(s.PostgresURL)
	if err != nil {
		return nil, nil, err
	}
	pool.MaxConns = conns
	pool.ConnConfig.RuntimeParams["application_name"] = s.Name
	pool.ConnConfig.Tracer = hold
	options, err := redis.ParseURL(s.RedisURL)
	if err != nil {
		return nil, nil, err
	}
	options.ClientName = s.Name
	// An extension of some hosted Redis that others refuse, loudly.
	options.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	db, err := pgxpool.NewWithConfig(ctx, pool)
	if err != nil {
		return nil, nil, err
	}
	return db, redis.NewClient(options), nil
}

// worker is one process with its share of the buyers.
type worker struct {
	settings
	shop seller
	hold breakpoint

	telling sync.Mutex
	out     *json.Encoder // guarded by telling

	mu    sync.Mutex
	tally Tally           // guarded by mu
	waits []time.Duration // guarded by mu
	err   string          // guarded by mu
}

func (w *worker) run(ctx context.Context, orders io.Reader) {
	ctx, abort := context.WithCancel(ctx)
	defer abort()
	selling, stop := context.WithCancel(ctx) // when it ends, what is under way goes on
	defer stop()
	var all sync.WaitGroup
	for n := range w.settings.Buyers {
		all.Go(func() {
			for name := fmt.Sprintf("%s-%d", w.Name, n); selling.Err() == nil; {
				w.buy(ctx, name)
			}
		})
	}
	all.Go(func() { every(selling, sweepEvery, func() { w.note(w.shop.Sweep(ctx)) }) })
	all.Go(func() { every(selling, tellEvery, func() { w.tell(report{Kind: "tally", Tally: w.now()}) }) })
	w.tell(report{Kind: "ready"})
	if !w.obey(orders) {
		abort()
	}
	stop()
	all.Wait()
	w.tell(report{Kind: "done", Tally: w.tally, Waits: w.waits, Error: w.err})
}

// obey returns true when told to end, and false when nobody is left to tell.
func (w *worker) obey(orders io.Reader) bool {
	var order string
	for lines := json.NewDecoder(orders); lines.Decode(&order) == nil; {
		switch order {
		case orderHold:
			w.hold.arm()
		case orderGo:
			w.hold.goOn <- struct{}{}
		case orderEnd:
			return true
		}
	}
	return false
}

// note keeps the first error that nobody expects.
func (w *worker) note(err error) {
	var o Outcomes
	if o.count(err); o.Failed == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = cmp.Or(w.err, err.Error())
}

func every(ctx context.Context, d time.Duration, do func()) {
	for again := time.NewTicker(d); ; {
		select {
		case <-again.C:
			do()
		case <-ctx.Done():
			again.Stop()
			return
		}
	}
}

func (w *worker) tell(r report) {
	w.telling.Lock()
	defer w.telling.Unlock()
	_ = w.out.Encode(r) // if nobody listens any more, the orders end too
}

func (w *worker) now() Tally {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.tally
}

func (w *worker) count(f func(t *Tally)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(&w.tally)
}
