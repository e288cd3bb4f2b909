// Package service runs the booking service of examples/booking in processes of its own, which the
// page stops, wakes and kills, and hold a request at one of two points.
package service

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedb/fencedb/examples/booking/booking"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/worker"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/observe/feed"
)

// Kinds is for [worker.Become] where only booking workers are needed.
var Kinds = map[string]worker.Life{"booking": Booking}

// Booking carries out reservations until the orders end, one at a time.
func Booking(ctx context.Context, self *worker.Self) error {
	d := &desk{Self: self, gate: make(worker.Gate, 1)}
	if err := self.Config(&d.Config); err != nil {
		return err
	}
	breakable := func(config *pgxpool.Config) { config.ConnConfig.AfterNetConnect = d.beforeNext.Watch }
	var err error
	if d.View, err = d.Config.Connect(ctx, "booking-"+d.Name, time.Minute, breakable); err != nil {
		return err
	}
	defer d.View.Close()
	if d.Feed {
		d.feed = feed.New(d.Redis, feed.Worker(d.Name)) // never closed: nobody follows a worker whose orders have ended
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // first, so that a request that is held ends and gives its connection back

	self.Tell(Event{})
	for {
		var r *Request // nil: go on
		if self.Order(&r) != nil {
			return nil // nobody is there any more
		}
		if r == nil {
			d.gate.Go()
			continue
		}
		go d.reserve(ctx, *r)
	}
}

// desk is the booking service in a worker, with its own connections.
type desk struct {
	*worker.Self
	Config
	*View
	gate       worker.Gate
	beforeNext faulty.Breakpoint // in the driver of DB
	feed       *feed.Feed        // nil unless the configuration asks for it
}

// reserve sets the booking service up as any program would, with a bank that is as slow as was
// ordered.
func (d *desk) reserve(ctx context.Context, r Request) {
	defer d.beforeNext.Arm(func() {}) // in case that nothing was written
	cfg, db := lease.Config{TTL: r.TTL, Namespace: d.View.Namespace}, fencedb.DB(d.DB)
	if d.feed != nil {
		cfg.Tracers, db = []lease.Tracer{d.feed}, fencedb.With(db, fencedb.Trace(d.feed))
	}
	wait := lease.NoWait()
	if r.Wait > 0 {
		wait = lease.WaitAtMost(r.Wait)
	}
	leases, err := lease.New(d.Redis, cfg)
	switch {
	case err != nil:
	case r.Plain:
		err = d.plain(ctx, leases.With(wait), d.bank(ctx, r), r.Booking)
	default:
		const noKey = "" // each request is sent once
		_, err = booking.New(leases.With(wait), db, d.bank(ctx, r)).Reserve(ctx, noKey, r.Booking)
	}
	d.Tell(Event{Done: new(result(err))})
}

// plain is the control of the experiment, not something to copy: the same look, card check and
// statement, protected by nothing but the lock.
func (d *desk) plain(ctx context.Context, leases *lease.Issuer, check booking.CardCheck, b booking.Booking) error {
	err := leases.Do(ctx, booking.Resource(b.Table), func(held context.Context, _ *lease.Lease) error {
		var taken bool
		err := d.DB.QueryRow(ctx, `SELECT EXISTS (SELECT FROM bookings WHERE table_id = $1 AND slot = $2 AND guest <> $3)`,
			b.Table, b.Slot, b.Guest).Scan(&taken)
		if err != nil {
			return err
		}
		if taken {
			return booking.ErrTaken
		}
		if err := check(held, b.Guest); err != nil {
			return err
		}
		_, err = d.DB.Exec(ctx, `
			INSERT INTO bookings (id, table_id, slot, guest, party) VALUES (gen_random_uuid(), $1, $2, $3, $4)
			ON CONFLICT (table_id, slot) DO UPDATE SET guest = excluded.guest, party = excluded.party`,
			b.Table, b.Slot, b.Guest, b.Party)
		return err
	})
	if errors.Is(err, lease.ErrWorkDone) { // its guest has been told that the table is booked
		err = nil
	}
	return err
}

// bank accepts every card. It does not look at the context it is given, which ends with the lease;
// many client libraries do not either.
func (d *desk) bank(life context.Context, r Request) booking.CardCheck {
	return func(context.Context, string) error {
		d.reached(life, AtCard, r.Hold, r.Card)
		// In the driver, after this side has looked at the lease for the last time, and before
		// anything is sent. No check can cover a pause here: garbage collection, a virtual machine
		// that is moved, a slow disk.
		d.beforeNext.Arm(func() { d.reached(life, AtWrite, r.Hold, r.Write) })
		return nil
	}
}

// reached stays at a point: until it is told to go on if the request is held there, and for a time
// otherwise.
func (d *desk) reached(life context.Context, at, hold Point, stay time.Duration) {
	if at == hold {
		d.gate.Hold(life, func() { d.Tell(Event{At: at, Held: true}) })
		return
	}
	d.Tell(Event{At: at})
	_ = worker.Sleep(life, stay)
}

// Statements for the fence of the bookings: Protect is what their migrations have done already.
// Unprotect keeps the column with the tokens of the rows, so that they can still be looked at.
const (
	Protect   = `SELECT fencedb.protect('bookings', resource => 'table:{table_id}')`
	Unprotect = `SELECT fencedb.unprotect('bookings', keep_column => true)`
)

// result puts the answer of the service in the protocol's words.
func result(err error) Result {
	if err == nil {
		return Result{Outcome: Booked}
	}
	r := Result{Outcome: Failed, Error: err.Error()}
	held, isHeld := errors.AsType[*lease.HeldError](err)
	stale, isStale := errors.AsType[*fencedb.StaleError](err)
	switch {
	case isHeld:
		r.Outcome, r.RetryAfter = Held, held.RetryAfter
	case isStale:
		r.Outcome, r.Carried, r.Stored = Stale, stale.Token, stale.Stored
	case errors.Is(err, booking.ErrTaken):
		r.Outcome = Taken
	case errors.Is(err, lease.ErrUnreachable): // Redis has not answered, perhaps to the release
	case errors.Is(err, fencedb.ErrLeaseOver), errors.Is(err, lease.ErrExpired), errors.Is(err, lease.ErrLost):
		r.Outcome = LeaseOver
	}
	return r
}

// Config is what a booking worker needs to know.
type Config struct {
	Servers
	Name string // such as A; in the feed, CLIENT LIST and pg_stat_activity
	Feed bool   // publish what becomes of leases and writes, see package observe/feed
}

// Point is where a request can be held.
type Point string

const (
	// AtCard: in the card check, with the lease in hand and the table found free.
	AtCard Point = "card"

	// AtWrite: in the driver, where it would start to send the write. The lease was good when the
	// service last looked at it, and nobody looks again between here and Postgres.
	AtWrite Point = "writing"
)

// Request is a reservation, and how to carry it out.
type Request struct {
	booking.Booking
	TTL   time.Duration `json:"ttl"`
	Wait  time.Duration `json:"wait,omitempty"`  // for the lease
	Plain bool          `json:"plain,omitempty"` // write without a token, for which the fence must be off
	Hold  Point         `json:"hold,omitempty"`  // wait there for [Worker.Go]; "" runs through
	Card  time.Duration `json:"card,omitempty"`  // how long the card check takes, unless it is held
	Write time.Duration `json:"write,omitempty"` // how long the write is delayed at AtWrite, unless it is held
}

// Event is a line on a worker's stdout. The first is empty: the worker is ready.
type Event struct {
	At   Point   `json:"at,omitempty"`   // the request has reached it
	Held bool    `json:"held,omitempty"` // and waits there
	Done *Result `json:"done,omitempty"`
}

// Outcome is how a request ended, in the words of the errors it stands for.
type Outcome string

// The outcomes of a request.
const (
	Booked    Outcome = "booked"
	Held      Outcome = "held"
	Taken     Outcome = "taken"      // somebody else has the table
	Stale     Outcome = "stale"      // Postgres refused the token
	LeaseOver Outcome = "lease over" // the worker noticed by itself
	Failed    Outcome = "failed"
)

// Result is the end of a request.
type Result struct {
	Outcome    Outcome       `json:"outcome"`
	Error      string        `json:"error,omitempty"`       // for people
	RetryAfter time.Duration `json:"retry_after,omitempty"` // with Held
	Carried    int64         `json:"carried,omitempty"`     // with Stale
	Stored     int64         `json:"stored,omitempty"`      // with Stale
}

// Worker is a booking worker seen from outside. Its methods may be called by several goroutines.
type Worker struct {
	*worker.Process[Event]
	Name string
}

// Start starts a booking worker. Its events must be read from then on.
func Start(ctx context.Context, cfg Config) (*Worker, error) {
	p, err := worker.Start[Event](ctx, "booking", cfg)
	if err != nil {
		return nil, err
	}
	return &Worker{p, cfg.Name}, nil
}

// Reserve orders a reservation and does not wait for anything.
func (w *Worker) Reserve(r Request) error { return w.Order(r) }

// Go lets the request that is held go on. A worker that is stopped finds the order when it wakes.
func (w *Worker) Go() error { return w.Order(nil) }
