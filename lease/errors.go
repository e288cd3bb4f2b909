package lease

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/fencedb/fencedb/internal/protocol"
)

// One error per outcome, also for packages once and admission. The first group says why a lease was
// not granted. The second, except [ErrStale], says why it ended: these are the causes of
// [Lease.Context], and what [Lease.Extend] and [Lease.Release] return when it is over.
var (
	// ErrInvalid: an argument or a [Config] was refused. Redis was not asked.
	ErrInvalid = protocol.ErrInvalid

	// ErrHeld: another holder has the resource, or waits with right of way. Nothing was changed,
	// and no token was used. There are two exceptions: if a waiter gives up at the moment of its
	// turn, its lease was granted and is released; and a call for several resources, if it waits or
	// asks a Cluster, gives back those that it was granted before. The error is a [*HeldError].
	ErrHeld = protocol.Lost("lease: held by another")

	// ErrCorrupt: a key of the protocol holds something the protocol did not write. Nothing was
	// changed. The error names the key and the problem ("is a list, not a string"). Look at the
	// key, and rename it out of the way (docs/runbook/redis.md).
	ErrCorrupt = protocol.ErrCorrupt

	// ErrExhausted: the resource's tokens have reached 2^53. Nothing was changed. Someone raised
	// the last token on purpose; Redis's clock gets there in the year 2255.
	ErrExhausted = errors.New("lease: tokens exhausted")

	// ErrRefused: Redis answers, and refuses this request now. Nothing was changed, except by a
	// script of [Lease.Eval]; leases that are held can still be released, or expire. The error is a
	// [*RefusedError], which says why.
	ErrRefused = protocol.ErrRefused

	// ErrClosed: [Issuer.Close] has begun. Nothing is held by this call. As the cause of a lease's
	// end, together with [ErrReleased]: Close has released the lease.
	ErrClosed = errors.New("lease: issuer is closed")

	// ErrUnfit: the server works, but leases would not be safe on it; the message says why. Only
	// [Issuer.Check] returns it.
	ErrUnfit = errors.New("lease: redis is not fit for leases")

	// ErrProtocol: a script gave an answer that no version of it gives; something between this
	// process and Redis rewrites replies. It is unknown whether the request was carried out, as
	// after [ErrUnreachable].
	ErrProtocol = protocol.ErrProtocol
)

var (
	// ErrReleased: the holder released the lease, or [Issuer.Close] did; then it is [ErrClosed] as
	// well.
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

	// ErrStale: the lease stands, but a newer token was issued for its resource. A data store that
	// has seen the newer token refuses writes with this one. This error comes from Redis.
	// fencedb.ErrStale, of a write that Postgres has refused, is another error, and errors.Is tells
	// them apart.
	ErrStale = protocol.Lost("lease: fencing token is stale")
)

// ErrWorkDone, of [Issuer.Do] and [Issuer.DoAll]: fn has returned nil, so its work is done. Do not
// send it again. What it committed behind a fence stands, whoever came after it; what it wrote
// without one may conflict with another holder's work, since the lease was over before fn returned
// or could not be released. The error is a [*WorkDoneError].
var ErrWorkDone = protocol.Settled("lease: the work is done, but its lease is over or could not be released")

// IsLost reports whether err says that another holder has the resource or may have it by now, and
// that the work under it came to nothing: the answer to a caller is "busy, try again". It knows
// errors of this package and of packages once and fencedb, anywhere in the tree of err:
//
//   - [ErrHeld], and the causes with which a lease ends: [ErrExpired], [ErrLost], [ErrRevoked],
//     [ErrStale], [ErrReleased], and [ErrUnreachable] where it ended a lease;
//   - fencedb.ErrStale, fencedb.ErrLeaseOver and fencedb.ErrBusy, after which nothing was written;
//   - once.ErrInFlight.
//
// It is false if err also says that the work was done or may have been: [ErrWorkDone],
// once.ErrNotRecorded, fencedb.ErrCommitted, fencedb.ErrCommitUnknown, fencedb.ErrTxEnded,
// fencedb.ErrAlreadyWritten; or that the caller made a mistake, fencedb.ErrInvalidGrant. An outage
// of Redis, or of the data store that seals, in which nothing was acquired is not a loss either.
//
// An error of another package takes part if it has a method LeaseLost() bool, which returns true
// for a loss and false for work that was done or may have been.
func IsLost(err error) bool {
	lost, settled := protocol.LostIn(err)
	return lost && !settled
}

// RefusedError is the ErrRefused with its reason:
//
//	Code  string // of Redis, as below
//	Cause error  // what Redis answered; nil if it did not say it in words
//
// After a code that passes, the request is sent again, for a short time by every call and for one
// TTL by [Issuer.Acquire]. The other codes are returned at once. The text says what to do, and
// docs/runbook.md says more.
//
//	OOM          it is at its memory limit
//	MISCONF      it could not save its data to disk, and refuses writes until it can
//	NOREPLICAS   it has fewer replicas than its min-replicas-to-write; or fewer than Config.Replicas
//	             confirmed the grant, which was undone (if Redis did not answer that request, the
//	             resource stays blocked for up to one TTL)
//	NOPERM       it does not know this client, or does not allow it what leases need
//	             (docs/leases.md); also NOAUTH and WRONGPASS
//	READONLY     passes: it is a replica; a fail-over is under way, or the client has its address
//	LOADING      passes: it has just started and reads its data
//	CLUSTERDOWN  passes: the part of the Cluster that has the resource failed, or its slot moves
//	BUSY         passes: a script runs too long, or it has reached maxclients
//
// errors.Is(err, &lease.RefusedError{Code: "OOM"}) asks for one of them.
type RefusedError = protocol.RefusedError

// WorkDoneError is the ErrWorkDone with its reason. The reason is not in its chain: errors.Is(err,
// ErrExpired) is about work that was lost.
type WorkDoneError struct {
	Cause error // why the lease is over, or could not be released
}

func (e *WorkDoneError) Error() string {
	return fmt.Sprintf("lease: the work is done, do not repeat it; its lease: %v", e.Cause)
}

// Is makes every WorkDoneError an [ErrWorkDone].
func (e *WorkDoneError) Is(target error) bool { return target == ErrWorkDone }

// LeaseLost is for [IsLost].
func (e *WorkDoneError) LeaseLost() bool { return false }

// unanswered is the end of a lease whose renewals went unanswered.
type unanswered struct{ error }

func (e unanswered) Unwrap() error { return e.error }
func (unanswered) LeaseLost() bool { return true }

// HeldError is the ordinary answer under contention; errors.Is(err, ErrHeld) holds for it.
type HeldError struct {
	Resource string

	// Holder is the label of the holder, its [Config.Holder]; of a semaphore, that of one holder.
	// "" if it is not known: another waits with right of way, or Redis was not asked.
	Holder string

	// RetryAfter is what the holder's lease has left, but five seconds at most. The holder may
	// release earlier, or renew.
	RetryAfter time.Duration

	// Cause is why waiting ended, [context.Cause] of the caller's context; nil if the call did not
	// wait.
	Cause error

	permit bool  // of a semaphore
	silent error // that Redis did not answer when the waiting ended, or refused; nil if it did answer
}

func (e *HeldError) Error() string {
	by := "another"
	switch {
	case e.permit && e.Holder != "":
		by = fmt.Sprintf("as many as its semaphore allows, one of them %q", e.Holder)
	case e.permit:
		by = "as many as its semaphore allows"
	case e.Holder == thisProcess(): // which may wait for itself, or for who had its host and pid before
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

// LeaseLost is for [IsLost].
func (e *HeldError) LeaseLost() bool { return true }

// Unwrap gives the reason why waiting ended, so that errors.Is(err, context.DeadlineExceeded) can
// be asked as well.
func (e *HeldError) Unwrap() error { return e.Cause }
