package lease

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/fencedb/fencedb/internal/protocol"
)

// One error per outcome, also for packages once and admission. Those of the first group are why a
// lease was not granted. Those of the second, except [ErrStale], are why a lease ended: they are
// the causes of [Lease.Context], and [Lease.Extend] and [Lease.Release] return them when it is
// over.
var (
	// ErrInvalid: an argument or a [Config] was refused. Redis was not asked.
	ErrInvalid = protocol.ErrInvalid

	// ErrHeld: another holder has the resource, or a waiter has the right of way. Nothing was
	// changed, and no token was used. There are two exceptions: a waiter that gives up at the
	// moment of its turn may have been granted the lease, which is released; and a call for several
	// resources, if it waits or asks a Cluster, releases those that it was granted before. The
	// error is a [*HeldError].
	ErrHeld = protocol.Lost("lease: held by another")

	// ErrCorrupt: a key of the protocol holds something that the protocol did not write. Nothing
	// was changed. The error names the key and the problem ("is a list, not a string"). Look at the
	// key, and rename it (docs/runbook/redis.md).
	ErrCorrupt = protocol.ErrCorrupt

	// ErrExhausted: the resource's tokens have reached 2^53. Nothing was changed. The last token
	// must have been raised to it, because Redis's clock gets there only in the year 2255.
	ErrExhausted = errors.New("lease: tokens exhausted")

	// ErrRefused: Redis answers, but refuses this request now. Nothing was changed, except perhaps
	// by a script of [Lease.Eval]. Leases that are held can still be released, or expire. The error
	// is a [*RefusedError].
	ErrRefused = protocol.ErrRefused

	// ErrClosed: [Issuer.Close] has begun. This call holds nothing. As the cause of a lease's end,
	// together with [ErrReleased]: Close has released the lease.
	ErrClosed = errors.New("lease: issuer is closed")

	// ErrUnfit: the server works, but leases would not be safe on it; the text has the reason. Only
	// [Issuer.Check] returns it.
	ErrUnfit = errors.New("lease: redis is not fit for leases")

	// ErrProtocol: a script gave an answer that no version of it gives, so something between this
	// process and Redis changes replies. It is unknown whether the request was carried out, as
	// after [ErrUnreachable].
	ErrProtocol = protocol.ErrProtocol
)

var (
	// ErrReleased: the holder released the lease. If [Issuer.Close] released it, the error is also
	// [ErrClosed].
	ErrReleased = protocol.Lost("lease: released")

	errReleasedByClose = fmt.Errorf("%w: %w", ErrReleased, ErrClosed)

	// ErrExpired: the lease expired. It was not renewed in time, because renewal is off, because
	// the process was stopped, or because it reached [Config.MaxHold]. Another holder may be at
	// work.
	ErrExpired = protocol.Lost("lease: expired")

	// ErrUnreachable: Redis did not answer. As the cause of a lease's end: it expired while its
	// renewals went unanswered. Another holder may be at work.
	ErrUnreachable = protocol.ErrUnreachable

	// ErrLost: Redis no longer knows this lease although its time was not over. Redis lost data, or
	// someone removed the key. Another holder may be at work.
	ErrLost = protocol.Lost("lease: lost")

	// ErrRevoked: an operator or a supervisor ended the lease and issued a new last token. Another
	// holder may be at work.
	ErrRevoked = protocol.Lost("lease: revoked")

	// ErrStale: a newer token was issued for the resource, or its last token was raised.
	// [Lease.Eval] and [Issuer.TakeOver] have changed nothing. The lease stands, but a data store
	// that has seen the newer token refuses its writes; fencedb.ErrStale, about such a write, is
	// another error.
	ErrStale = protocol.Lost("lease: fencing token is stale")
)

// ErrWorkDone, of [Issuer.Do] and [Issuer.DoAll]: fn has returned nil, so its work is done; do not
// repeat it. But the lease was over before fn returned, or could not be released. What fn committed
// behind a fence stands, even if another holder has come since; what it wrote without one may
// conflict with that holder's work. The error is a [*WorkDoneError].
var ErrWorkDone = protocol.NotLost("lease: the work is done, but its lease is over or could not be released")

// IsLost reports whether the work came to nothing because another holder has the resource, or may
// have it by now. A service then answers its caller "busy, try again". IsLost knows errors of this
// package and of packages once and fencedb, anywhere in the tree of err:
//
//   - [ErrHeld], and the causes with which a lease ends: [ErrExpired], [ErrLost], [ErrRevoked],
//     [ErrStale], [ErrReleased], and [ErrUnreachable] where it ended a lease;
//   - fencedb.ErrStale, fencedb.ErrLeaseOver and fencedb.ErrBusy, after which nothing was written;
//   - once.ErrInFlight.
//
// It is false if err also says that the work was done or may have been ([ErrWorkDone],
// once.ErrNotRecorded, fencedb.ErrCommitted, fencedb.ErrCommitUnknown, fencedb.ErrTxEnded,
// fencedb.ErrAlreadyWritten), or that the caller made a mistake (fencedb.ErrInvalidGrant). It is
// also false if nothing was acquired because of an outage of Redis, or of the data store that
// seals.
//
// An error of another package takes part if it has a method LeaseLost() bool, which returns true
// for a loss and false for work that was done or may have been.
func IsLost(err error) bool {
	lost, notLost := protocol.LostIn(err)
	return lost && !notLost
}

// RefusedError is [ErrRefused] with its reason:
//
//	Code  string // of Redis, as below
//	Cause error  // the answer of Redis; nil if the code is all that is known
//
// Some refusals pass by themselves. After such a code the request is sent again, for a short time
// by every call and for one TTL by [Issuer.Acquire]. The other codes are returned at once. The text
// of the error says what to do; see also docs/runbook.md.
//
//	OOM          Redis is at its memory limit
//	MISCONF      Redis could not save its data to disk, and refuses writes until it can
//	NOREPLICAS   Redis has fewer replicas than its min-replicas-to-write; or fewer than
//	             Config.Replicas confirmed the grant, which is released (if Redis does not answer
//	             the release, the resource stays blocked for up to one TTL)
//	NOPERM       Redis does not know this client, or does not allow it what leases need
//	             (docs/leases.md); also NOAUTH and WRONGPASS
//	READONLY     passes: the server is a replica; a fail-over is under way, or the client has the
//	             address of a replica
//	LOADING      passes: Redis has just started and loads its data
//	CLUSTERDOWN  passes: the part of the Cluster that has the resource failed, or its slot moves
//	BUSY         passes: a script runs too long, or Redis has reached maxclients
//
// errors.Is(err, &lease.RefusedError{Code: "OOM"}) asks for one of them.
type RefusedError = protocol.RefusedError

// WorkDoneError is [ErrWorkDone] with its reason. It does not wrap the reason: errors.Is(err,
// ErrExpired) means that the work was lost, and here it was done.
type WorkDoneError struct {
	Cause error // why the lease is over, or could not be released
}

func (e *WorkDoneError) Error() string {
	return fmt.Sprintf("lease: the work is done, do not repeat it; its lease: %v", e.Cause)
}

// Is makes every WorkDoneError an [ErrWorkDone].
func (e *WorkDoneError) Is(target error) bool { return target == ErrWorkDone }

// LeaseLost is called by [IsLost].
func (e *WorkDoneError) LeaseLost() bool { return false }

// unanswered is the end of a lease whose renewals went unanswered.
type unanswered struct{ error }

func (e unanswered) Unwrap() error { return e.error }
func (unanswered) LeaseLost() bool { return true }

// HeldError is the ordinary answer under contention; errors.Is(err, ErrHeld) holds for it.
type HeldError struct {
	Resource string

	// Holder is the label of the holder, its [Config.Holder]; for a semaphore, that of one holder.
	// "" if it is not known: a waiter has the right of way, or Redis was not asked.
	Holder string

	// RetryAfter is the time that the holder's lease has left, but five seconds at most; 0 if Redis
	// was not asked. The holder may release earlier, or renew.
	RetryAfter time.Duration

	// Cause is why waiting ended, [context.Cause] of the caller's context; nil if the call did not
	// wait.
	Cause error

	permit bool  // the resource is that of a semaphore
	silent error // why Redis gave no answer when the waiting ended; nil if it did
}

func (e *HeldError) Error() string {
	by := "another"
	switch {
	case e.permit && e.Holder != "":
		by = fmt.Sprintf("as many as its semaphore allows, one of them %q", e.Holder)
	case e.permit:
		by = "as many as its semaphore allows"
	case e.Holder == thisProcess(): // it may wait for itself, or for an earlier process with its host and pid
		by = fmt.Sprintf("%q (this process, or another with the same name)", e.Holder)
	case e.Holder != "":
		by = strconv.Quote(e.Holder)
	}
	switch {
	case e.silent != nil:
		return fmt.Sprintf("lease: %q is still held by %s: %v", e.Resource, by, e.silent)
	case e.Cause != nil:
		return fmt.Sprintf("lease: %q is still held by %s: %s", e.Resource, by, protocol.WhyEnded(e.Cause))
	}
	return fmt.Sprintf("lease: %q is held by %s, retry after %v", e.Resource, by, e.RetryAfter)
}

// Is makes every HeldError an [ErrHeld].
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

// LeaseLost is called by [IsLost].
func (e *HeldError) LeaseLost() bool { return true }

// Unwrap returns the reason why waiting ended, for errors.Is(err, context.DeadlineExceeded).
func (e *HeldError) Unwrap() error { return e.Cause }
