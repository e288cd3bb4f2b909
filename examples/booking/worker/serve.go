package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/fencedb/fencedb/examples/booking/booking"
	"github.com/fencedb/fencedb/examples/booking/store"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
)

// Config is what a worker needs to know.
type Config struct {
	Name        string // shows in Redis's CLIENT LIST and in pg_stat_activity
	PostgresURL string
	RedisURL    string
	Namespace   string // of the leases
	TTL         time.Duration
}

// Serve carries out orders until in ends, one request at a time.
func Serve(ctx context.Context, cfg Config, in io.Reader, out io.Writer) error {
	w := &worker{cfg: cfg, goOn: make(chan struct{}, 1), out: json.NewEncoder(out)}
	if err := w.connect(ctx, cfg); err != nil {
		return fmt.Errorf("worker %s: %w", cfg.Name, err)
	}
	defer w.disconnect()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // first, so that a request that is held ends and gives its connection back

	w.tell(Event{Ready: true})
	for orders := json.NewDecoder(in); ; {
		var o order
		if err := orders.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("worker %s: order: %w", cfg.Name, err)
		}
		if o.Reserve == nil {
			w.goOn <- struct{}{}
			continue
		}
		go w.reserve(ctx, *o.Reserve)
	}
}

type worker struct {
	cfg  Config
	goOn chan struct{} // holds a token for the request that is held
	servers

	mu  sync.Mutex
	out *json.Encoder // guarded by mu
}

// tell cannot fail in a way that matters: if nobody listens any more, in ends too.
func (w *worker) tell(e Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.out.Encode(e)
}

func (w *worker) hold(ctx context.Context, at Hold) {
	w.tell(Event{Held: at})
	select {
	case <-w.goOn:
	case <-ctx.Done():
	}
}

// noKey: a story sends each request once.
const noKey = ""

func (w *worker) reserve(ctx context.Context, r Request) {
	service, err := w.service(ctx, r)
	if err == nil {
		_, err = service.Reserve(ctx, noKey, r.Booking)
	}
	done := result(err)
	done.Redis = w.answers.last()
	w.tell(Event{Done: &done})
}

// service wires the booking service up as any program would, with two spies: who hears of new leases, and a bank that is as
// slow as the story wants.
func (w *worker) service(ctx context.Context, r Request) (*booking.Service, error) {
	cfg := lease.Config{TTL: w.cfg.TTL, Namespace: w.cfg.Namespace}
	if r.NoRenew {
		cfg.RenewEvery = lease.Never
	}
	return booking.New(w.redis, booking.Config{Lease: cfg, Store: w.store(r), CheckCard: w.bank(ctx, r.Hold)})
}

func (w *worker) store(r Request) booking.Store {
	fenced := store.New(w.db)
	if r.Plain != "" {
		return witness{plainStore{fenced, w.db, r.Plain}, w}
	}
	return witness{fenced, w}
}

// bank accepts every card. It does not look at the context it is given, as many a client library does not.
func (w *worker) bank(life context.Context, at Hold) booking.CardCheck {
	return func(context.Context, string) error {
		switch at {
		case AtCard:
			w.hold(life, AtCard)
		case AtWrite:
			w.beforeNext.Arm(func() { w.hold(life, AtWrite) })
		}
		return nil
	}
}

// witness tells of each lease when it is sealed, which is before its holder gets it.
type witness struct {
	booking.Store
	worker *worker
}

func (s witness) Seal(ctx context.Context, grant fencedb.Grant) error {
	err := s.Store.Seal(ctx, grant)
	if err == nil {
		s.worker.tell(Event{Lease: &Lease{ID: grant.LeaseID(), Token: grant.Token()}})
	}
	return err
}

// result puts the answer of the service in the protocol's words.
func result(err error) Result {
	var (
		held  *lease.HeldError
		stale *fencedb.StaleError
	)
	switch {
	case err == nil:
		return Result{Outcome: Booked}
	case errors.As(err, &held):
		return Result{Outcome: Held, Error: err.Error(), RetryAfter: held.RetryAfter}
	case errors.As(err, &stale):
		return Result{Outcome: Stale, Error: err.Error(), Carried: stale.Token, Stored: stale.Stored}
	case errors.Is(err, booking.ErrTaken):
		return Result{Outcome: Taken, Error: err.Error()}
	case errors.Is(err, fencedb.ErrLeaseOver):
		return Result{Outcome: LeaseOver, Error: err.Error()}
	}
	return Result{Outcome: Failed, Error: err.Error()}
}
