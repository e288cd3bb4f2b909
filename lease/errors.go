package lease

import (
	"errors"
	"fmt"
	"time"

	protocol "github.com/fencedb/fencedb/lease/internal/redis"
)

// One word per outcome, also for the packages beside this one. The first group says why a lease could not be had, the second why one ended: those are the
// causes of [Lease.Context], and what [Lease.Extend] and [Lease.Release] return for a lease that is over.
var (
	// ErrInvalid: an argument or a [Config] was refused. Redis was not asked.
	ErrInvalid = protocol.ErrInvalid

	// ErrHeld: another holder has the resource, or waits with right of way. Nothing was changed, no token was used (but for
	// a waiter that gave up at the moment of its turn: then it was granted, and given back).
	// The error is a [*HeldError].
	ErrHeld = errors.New("lease: held by another")

	// ErrCorrupt: a key of the protocol holds something the protocol did not write. Nothing was changed. The error
	// names the key and the problem ("is a list, not a string"). Look at the key, and delete it once no lease on the resource is in use.
	ErrCorrupt = protocol.ErrCorrupt

	// ErrExhausted: the resource's tokens have reached 2^53. Nothing was changed. Someone raised the fence on purpose;
	// Redis's clock gets there in the year 2255.
	ErrExhausted = errors.New("lease: tokens exhausted")

	// ErrOutOfMemory: Redis is at its memory limit and refuses writes, new leases among them. Nothing was changed. Leases that are
	// held can still be released, and run out.
	ErrOutOfMemory = protocol.ErrOutOfMemory

	// ErrReadOnly: the server is a replica; a fail-over is under way, or the client is connected to the wrong one. Nothing was
	// changed. Worth trying again.
	ErrReadOnly = protocol.ErrReadOnly

	// ErrLoading: the server has just started and reads its data. Nothing was changed. Worth trying again.
	ErrLoading = protocol.ErrLoading

	// ErrClusterDown: the part of the Cluster that has the resource does not serve it now, because it failed or because its slot
	// is being moved. Nothing was changed. Worth trying again.
	ErrClusterDown = protocol.ErrClusterDown

	// ErrTooFewReplicas: the server has fewer replicas than its min-replicas-to-write, and nothing was changed; or fewer than
	// [Config.Replicas] took note of the grant, and it was undone. Where Redis did not answer the undoing, the resource stays blocked for up to one TTL.
	ErrTooFewReplicas = protocol.ErrTooFewReplicas

	// ErrCannotSave: Redis could not save its data to disk and refuses writes until it can (MISCONF). Nothing was changed. Make room on its
	// disk or repair what its log names; the first save that succeeds ends it. Not tried again by itself.
	ErrCannotSave = protocol.ErrCannotSave

	// ErrBusy: Redis answers nobody at the moment, because a script of somebody's runs too long, or has as many clients as it takes.
	// Nothing was changed. Worth trying again. SCRIPT KILL ends such a script; maxclients is how many.
	ErrBusy = protocol.ErrBusy

	// ErrDenied: Redis does not know this client (NOAUTH, WRONGPASS) or does not allow it what leases need (NOPERM). Nothing was changed.
	// Give its user the rights that the package's documentation lists. Not tried again by itself.
	ErrDenied = protocol.ErrDenied

	// ErrClosed: [Issuer.Close] has begun. Nothing is held by this call.
	ErrClosed = errors.New("lease: issuer is closed")

	// ErrUnfit: the server works, but leases would not be safe on it; the message says why. Only [Issuer.Check] says so.
	ErrUnfit = errors.New("lease: redis is not fit for leases")

	// ErrProtocol: a script answered what no version of it answers; something between us and Redis rewrites replies. Whether
	// the request was carried out is as unknown as after [ErrUnreachable].
	ErrProtocol = protocol.ErrProtocol
)

var (
	// ErrReleased: the holder gave the lease back.
	ErrReleased = errors.New("lease: released")

	// ErrExpired: the lease ran out. It was not renewed in time, because nobody asked for it, because the process was
	// stopped, or because it reached [Config.MaxHold]. Another holder may be at work.
	ErrExpired = errors.New("lease: expired")

	// ErrUnreachable: Redis did not answer. As the cause of a lease's end: it ran out while its renewals went
	// unanswered. Another holder may be at work.
	ErrUnreachable = protocol.ErrUnreachable

	// ErrLost: Redis no longer knows this lease although its time was not over. Redis lost data, or someone removed the
	// key. Another holder may be at work.
	ErrLost = errors.New("lease: lost")

	// ErrRevoked: an operator or a supervisor ended the lease and moved the fence on. Another holder may be at work.
	ErrRevoked = errors.New("lease: revoked")

	// ErrStale: the lease stands, but a newer token was issued for its resource. What is written with its token will be
	// refused where the newer one has been seen. This is Redis's word; fencedb.ErrStale is another error, of a write that
	// Postgres has refused, and errors.Is does not take one for the other.
	ErrStale = errors.New("lease: fencing token is stale")
)

// HeldError is the ordinary answer under contention; errors.Is(err, ErrHeld) holds for it.
type HeldError struct {
	Resource string

	// RetryAfter is when asking again is worthwhile, at the latest: a release makes it sooner, a renewal later.
	RetryAfter time.Duration

	// Cause is why waiting ended, [context.Cause] of the caller's context; nil if there was no waiting.
	Cause error
}

func (e *HeldError) Error() string {
	if e.Cause != nil {
		return fmt.Sprintf("lease: %q is still held by another: %v", e.Resource, e.Cause)
	}
	return fmt.Sprintf("lease: %q is held by another, retry after %v", e.Resource, e.RetryAfter)
}

// Is makes every HeldError an [ErrHeld].
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

// Unwrap gives the reason why waiting ended, so that errors.Is(err, context.DeadlineExceeded) can be asked as well.
func (e *HeldError) Unwrap() error { return e.Cause }
