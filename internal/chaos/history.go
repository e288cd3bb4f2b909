package chaos

import (
	"errors"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"

	"github.com/fencedb/fencedb/fencedb"
)

// Outcome is what an attempt was told about its transaction.
type Outcome string

// The outcomes of an attempt.
const (
	Committed Outcome = "committed"
	Refused   Outcome = "refused" // as stale, or as too late; nothing was written
	Failed    Outcome = "failed"  // for another reason; nothing was written
	Unknown   Outcome = "unknown" // fencedb.ErrCommitUnknown: Postgres could not be asked
	Open      Outcome = ""        // the process died before it was told
)

// outcomeOf reads the answer of package fencedb, where only one error leaves a doubt.
func outcomeOf(err error) Outcome {
	switch {
	case err == nil, errors.Is(err, fencedb.ErrCommitted):
		return Committed
	case errors.Is(err, fencedb.ErrCommitUnknown):
		return Unknown
	case errors.Is(err, fencedb.ErrStale), errors.Is(err, fencedb.ErrLeaseOver), errors.Is(err, fencedb.ErrTooLong):
		return Refused
	}
	return Failed
}

// plainOutcomeOf reads the answer of pgx alone, where every error that is not Postgres's own leaves
// a doubt.
func plainOutcomeOf(err error) Outcome {
	var refused *pgconn.PgError
	switch {
	case err == nil:
		return Committed
	case errors.As(err, &refused), errors.Is(err, errNotHeld), errors.Is(err, fencedb.ErrStale):
		return Failed
	}
	return Unknown
}

// Attempt is one transaction, as the process that made it saw it.
type Attempt struct {
	ID      int64   `json:"id"`
	Process int     `json:"process"`
	Work    string  `json:"work"`   // the workload, and how late it was on purpose
	Object  string  `json:"object"` // what it reads and writes
	Call    int64   `json:"call"`   // nanoseconds on the clock of now
	Return  int64   `json:"return"` // 0: never
	Outcome Outcome `json:"outcome"`
	Error   string  `json:"error,omitempty"`
	Limit   int64   `json:"limit"`            // how long its context lets it take, in nanoseconds
	Read    int64   `json:"read"`             // of a look, which writes nothing; of an order, the attempt that ran
	From    int64   `json:"from,omitempty"`   // when a permit was held, or an order was run
	Until   int64   `json:"until,omitempty"`  // how long it could be trusted, or took
	Broken  string  `json:"broken,omitempty"` // what it has read cannot be
	Grants  []Grant `json:"grants,omitempty"`

	plain bool // by pgx alone, which cannot tell what became of a lost COMMIT
}

// Grant is a lease that an attempt was granted.
type Grant struct {
	Resource string    `json:"resource"`
	Token    int64     `json:"token"`
	Lease    uuid.UUID `json:"lease"`
	Asked    int64     `json:"asked"`
	Got      int64     `json:"got"`
}

// Effect is what a transaction has done to one resource. It is a row that was written in the same
// transaction, so it is there exactly if that has committed.
type Effect struct {
	Attempt     int64
	Resource    string
	Read, Wrote int64 // versions of the resource
	Amount      int64 // what a transfer has added
	Token       int64 // 0: written without a token
	Lease       uuid.UUID
}

// Pause is when a process was stopped.
type Pause struct {
	Process  int
	From, To int64
}

// now is a clock that all processes of this machine share and that nobody sets.
func now() int64 {
	var at unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &at) // cannot fail with this clock
	return at.Nano()
}
