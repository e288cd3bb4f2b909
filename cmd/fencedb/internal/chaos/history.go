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

// outcomeOf reads an answer. With package fencedb only one error leaves a doubt; with pgx alone,
// which is plain, every error that is not Postgres's own does.
func outcomeOf(err error, plain bool) Outcome {
	switch {
	case err == nil, errors.Is(err, fencedb.ErrCommitted):
		return Committed
	case plain && (errors.As(err, new(*pgconn.PgError)) || errors.Is(err, errNotHeld) || errors.Is(err, fencedb.ErrStale)):
		return Failed
	case plain, errors.Is(err, fencedb.ErrCommitUnknown):
		return Unknown
	case errors.Is(err, fencedb.ErrStale), errors.Is(err, fencedb.ErrLeaseOver), errors.Is(err, fencedb.ErrTooLong):
		return Refused
	}
	return Failed
}

// Attempt is one transaction, as the process that made it saw it. Times are on the clock of now.
type Attempt struct {
	ID           int64  // the number of the process, and which of its attempts it is
	Work         string // the workload, and how late it was on purpose
	Object       string // what it reads and writes
	Call, Return int64  // Return is 0 if it never has
	Outcome      Outcome
	Error        string
	Read         int64  // of a look, which writes nothing; of an order, the attempt that ran
	From         int64  // when a permit was held, or an order was run under its claim
	Until        int64  // how long it could be trusted, or took
	Broken       string // what it has read cannot be
	Grants       []Grant

	plain bool // by pgx alone, which cannot tell what became of a lost COMMIT
}

func (a *Attempt) process() int { return int(a.ID >> 32) }

// Grant is a lease that an attempt was granted.
type Grant struct {
	Resource   string
	Token      int64
	Lease      uuid.UUID
	Asked, Got int64
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
