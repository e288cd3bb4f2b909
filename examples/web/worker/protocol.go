// Package worker runs the booking service of examples/booking in a process of its own that takes its orders on stdin and tells on
// stdout how far it is, one JSON object a line. The page needs real processes: a goroutine cannot be stopped with SIGSTOP.
//
// What becomes of leases and writes it does not tell itself: package observe/feed does, to whoever follows the feed.
package worker

import (
	"time"

	"github.com/fencedb/fencedb/examples/booking/booking"
)

// Table is what everybody wants here.
const Table = 12

// Resource is what it is called in Redis and in Postgres's ledger.
var Resource = booking.Resource(Table)

// Slot is when an evening begins. Evenings are numbered from 1.
func Slot(evening int) time.Time {
	return time.Date(2030, time.May, 31+evening, 19, 0, 0, 0, time.UTC)
}

// Reservation is a guest who wants the table for an evening, and how to go about it.
type Reservation struct {
	Guest   string `json:"guest"`
	Evening int    `json:"evening"`
	Pace    Pace   `json:"pace"`

	// Fenced is false for the control of the experiment: the same work with nothing but the lock to protect it.
	Fenced bool `json:"fenced"`

	// Hold makes the write wait for [Process.Go] instead of Pace.Write.
	Hold bool `json:"hold,omitempty"`
}

// Pace is how long the lease lasts and the steps take.
type Pace struct {
	TTL   time.Duration `json:"ttl"`
	Card  time.Duration `json:"card"`  // the call to the guest's bank
	Write time.Duration `json:"write"` // between the last look at the lease and the write on the wire
}

// order is a line on a worker's stdin. A line without a reservation is the word to go on.
type order struct {
	Reserve *Reservation `json:"reserve,omitempty"`
}

// Event is a line on a worker's stdout. Exactly one of its fields is set.
type Event struct {
	Ready bool    `json:"ready,omitempty"`
	Step  Step    `json:"step,omitempty"`
	Done  *Result `json:"done,omitempty"`
}

// Step is what a worker is about to do.
type Step string

const (
	// Card: it has the lease, the evening is free, and it asks the guest's bank.
	Card Step = "card"

	// Write: it has looked at its lease for the last time, and is about to send the write.
	Write Step = "write"
)

// Outcome is what the guest is told.
type Outcome string

// The outcomes of a reservation.
const (
	Booked    Outcome = "booked"
	Taken     Outcome = "taken"      // somebody else has the evening
	Stale     Outcome = "stale"      // Postgres refused the token
	LeaseOver Outcome = "lease over" // the worker noticed by itself
	NoToken   Outcome = "no token"   // the table is protected, and the write was not fenced
	Failed    Outcome = "failed"
)

// Result is the end of a reservation.
type Result struct {
	Outcome Outcome `json:"outcome"`
	Error   string  `json:"error,omitempty"` // for people
}
