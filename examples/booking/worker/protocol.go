// Package worker runs the booking service in a process of its own that takes its orders on stdin and tells what happens on
// stdout, one JSON object a line. The stories need real processes: a goroutine cannot be stopped with SIGSTOP.
//
// A worker can be held at one of two points of a request, so that something else can happen meanwhile. It is the service of
// package booking that runs, unchanged; both points lie in what it calls.
package worker

import (
	"time"

	"github.com/google/uuid"

	"github.com/fencedb/fencedb/examples/booking/booking"
)

// Hold is a point at which a request waits for [Process.Go].
type Hold string

const (
	// Nowhere: the request runs through.
	Nowhere Hold = ""

	// AtCard: in the card check, with the lease in hand and the table found free.
	AtCard Hold = "card"

	// AtWrite: in the driver, where it would start to send the write. The lease was good when the service last looked at
	// it, and there is no look left between here and Postgres.
	AtWrite Hold = "write"
)

// Request is a reservation, and how to carry it out.
type Request struct {
	booking.Booking
	Hold    Hold   `json:"hold,omitempty"`
	NoRenew bool   `json:"no_renew,omitempty"` // the lease ends after one TTL
	Plain   string `json:"plain,omitempty"`    // write to this table without a fence, as the control does
}

// order is a line on a worker's stdin. A line without a request is the word to go on.
type order struct {
	Reserve *Request `json:"reserve,omitempty"`
}

// Event is a line on a worker's stdout. Exactly one of its fields is set.
type Event struct {
	Ready bool    `json:"ready,omitempty"`
	Lease *Lease  `json:"lease,omitempty"`
	Held  Hold    `json:"held,omitempty"`
	Done  *Result `json:"done,omitempty"`
}

// Lease is what a worker was granted.
type Lease struct {
	ID    uuid.UUID `json:"id"`
	Token int64     `json:"token"`
}

// Outcome is how a request ended, in the words of the errors it stands for.
type Outcome string

// The outcomes that the stories tell apart.
const (
	Booked    Outcome = "booked"
	Held      Outcome = "held"
	Taken     Outcome = "taken"
	Stale     Outcome = "stale"
	LeaseOver Outcome = "lease over"
	Failed    Outcome = "failed"
)

// Result is the end of a request.
type Result struct {
	Outcome    Outcome       `json:"outcome"`
	Error      string        `json:"error,omitempty"`       // for people
	RetryAfter time.Duration `json:"retry_after,omitempty"` // with Held
	Carried    int64         `json:"carried,omitempty"`     // with Stale
	Stored     int64         `json:"stored,omitempty"`      // with Stale

	// Redis is the first word of the last answer that Redis gave: to the release, if there was a lease.
	Redis string `json:"redis,omitempty"`
}
