package worker

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/fencedb/fencedb/examples/booking/booking"
)

// Config is what a booking worker needs to know.
type Config struct {
	Name        string // such as A; in the feed, and in ClientName
	PostgresURL string
	RedisURL    string
	Namespace   string // of the leases
	Feed        bool   // publish what becomes of leases and writes, see package observe/feed
}

// Point is where a request can be held.
type Point string

const (
	// Nowhere: the request runs through.
	Nowhere Point = ""

	// AtCard: in the card check, with the lease in hand and the table found free.
	AtCard Point = "card"

	// AtWrite: in the driver, where it would start to send the write. The lease was good when the
	// service last looked at it, and nobody looks again between here and Postgres.
	AtWrite Point = "write"
)

// Request is a reservation, and how to carry it out.
type Request struct {
	booking.Booking
	TTL     time.Duration `json:"ttl"`
	Wait    time.Duration `json:"wait,omitempty"`     // for the lease
	NoRenew bool          `json:"no_renew,omitempty"` // the lease ends after one TTL
	Plain   string        `json:"plain,omitempty"`    // write to this table without a token
	Hold    Point         `json:"hold,omitempty"`     // wait there for [Worker.Go]
	Card    time.Duration `json:"card,omitempty"`     // how long the card check takes, unless it is held
	Write   time.Duration `json:"write,omitempty"`    // how long the write is delayed at AtWrite, unless it is held
}

// order is a line on a worker's stdin. Without a request it means: go on.
type order struct {
	Reserve *Request `json:"reserve,omitempty"`
}

// Event is a line on a worker's stdout. The first is empty: the worker is ready.
type Event struct {
	Lease *Lease  `json:"lease,omitempty"`
	At    Point   `json:"at,omitempty"`   // the request has reached it
	Held  bool    `json:"held,omitempty"` // and waits there
	Done  *Result `json:"done,omitempty"`
}

// Lease is what a worker was granted.
type Lease struct {
	ID    uuid.UUID `json:"id"`
	Token int64     `json:"token"`
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
	NoToken   Outcome = "no token"   // the table is protected, and the write carried no token
	Failed    Outcome = "failed"
)

// Result is the end of a request.
type Result struct {
	Outcome    Outcome       `json:"outcome"`
	Error      string        `json:"error,omitempty"`       // for people
	RetryAfter time.Duration `json:"retry_after,omitempty"` // with Held
	Carried    int64         `json:"carried,omitempty"`     // with Stale
	Stored     int64         `json:"stored,omitempty"`      // with Stale

	// Redis is the first word of the last answer that Redis gave: to the release, if there was a
	// lease.
	Redis string `json:"redis,omitempty"`
}

// Worker is a booking worker seen from outside. Its methods may be called by several goroutines.
type Worker struct{ *Process[Event] }

// StartBooking starts a booking worker. Its events must be read from then on.
func StartBooking(ctx context.Context, cfg Config) (*Worker, error) {
	p, err := Start[Event](ctx, "booking", cfg)
	if err != nil {
		return nil, err
	}
	return &Worker{p}, nil
}

// Reserve orders a reservation and does not wait for anything.
func (w *Worker) Reserve(r Request) error { return w.Order(order{Reserve: &r}) }

// Go lets the request that is held go on. A worker that is stopped finds the order when it wakes.
func (w *Worker) Go() error { return w.Order(order{}) }
