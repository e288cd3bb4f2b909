package lease

import (
	"errors"
	"fmt"
	"time"

	protocol "github.com/fencedb/fencedb/lease/internal/redis"
)

// One error per outcome, also for packages once and admission. The first group says why a lease was
// not granted, the second why a lease ended: those are the causes of [Lease.Context], and what
// [Lease.Extend] and [Lease.Release] return for a lease that is over.
var (
	// ErrInvalid: an argument or a [Config] was refused. Redis was not asked.
	ErrInvalid = protocol.ErrInvalid

	// ErrHeld: another holder has the resource, or waits with right of way. Nothing was changed,
	// and no token was used (except for a waiter that gave up at the moment of its turn: its lease
	// was granted and released). The error is a [*HeldError].
	ErrHeld = errors.New("lease: held by another")

	// ErrCorrupt: a key of the protocol holds something the protocol did not write. Nothing was
	// changed. The error names the key and the problem ("is a list, not a string"). Look at the
	// key, and delete it once no lease on the resource is in use.
	ErrCorrupt = protocol.ErrCorrupt

	// ErrExhausted: the resource's tokens have reached 2^53. Nothing was changed. Someone raised
	// the fence on purpose; Redis's clock gets there in the year 2255.
	ErrExhausted = errors.New("lease: tokens exhausted")

	// ErrOutOfMemory: Redis is at its memory limit and refuses writes, new leases among them.
	// Nothing was changed. Leases that are held can still be released, and run out.
	ErrOutOfMemory = protocol.ErrOutOfMemory

	// ErrReadOnly: the server is a replica; a fail-over is under way, or the client is connected to
	// the wrong server. Nothing was changed. Retry.
	ErrReadOnly = protocol.ErrReadOnly

	// ErrLoading: the server has just started and reads its data. Nothing was changed. Retry.
	ErrLoading = protocol.ErrLoading

	// ErrClusterDown: the part of the Cluster that has the resource does not serve it now, because
	// it failed or because its slot is being moved. Nothing was changed. Retry.
	ErrClusterDown = protocol.ErrClusterDown

	// ErrTooFewReplicas: the server has fewer replicas than its min-replicas-to-write, and nothing
	// was changed; or fewer than [Config.Replicas] confirmed the grant, and it was undone. If Redis
	// did not answer that request, the resource stays blocked for up to one TTL.
	ErrTooFewReplicas = protocol.ErrTooFewReplicas

	// ErrCannotSave: Redis could not save its data to disk and refuses writes until it can
	// (MISCONF). Nothing was changed. Make room on its disk or repair what its log names; the first
	// save that succeeds ends it. It is not tried again automatically.
	ErrCannotSave = protocol.ErrCannotSave

	// ErrBusy: Redis answers no client at the moment because a script runs too long, or it has
	// reached maxclients. Nothing was changed. Retry. SCRIPT KILL ends such a script.
	ErrBusy = protocol.ErrBusy

	// ErrDenied: Redis does not know this client (NOAUTH, WRONGPASS) or does not allow it what
	// leases need (NOPERM). Nothing was changed. Give its user the rights that docs/leases.md
	// lists. It is not tried again automatically.
	ErrDenied = protocol.ErrDenied

	// ErrClosed: [Issuer.Close] has begun. Nothing is held by this call.
	ErrClosed = errors.New("lease: issuer is closed")

	// ErrUnfit: the server works, but leases would not be safe on it; the message says why. Only
	// [Issuer.Check] says so.
	ErrUnfit = errors.New("lease: redis is not fit for leases")

	// ErrProtocol: a script gave an answer that no version of it gives; something between this
	// process and Redis rewrites replies. It is unknown whether the request was carried out, as
	// after [ErrUnreachable].
	ErrProtocol = protocol.ErrProtocol
)

var (
	// ErrReleased: the holder released the lease.
	ErrReleased = errors.New("lease: released")

	// ErrExpired: the lease expired. It was not renewed in time, because renewal is off, because
	// the process was stopped, or because it reached [Config.MaxHold]. Another holder may be at
	// work.
	ErrExpired = errors.New("lease: expired")

	// ErrUnreachable: Redis did not answer. As the cause of a lease's end: it expired while its
	// renewals went unanswered. Another holder may be at work.
	ErrUnreachable = protocol.ErrUnreachable

	// ErrLost: Redis no longer knows this lease although its time was not over. Redis lost data, or
	// someone removed the key. Another holder may be at work.
	ErrLost = errors.New("lease: lost")

	// ErrRevoked: an operator or a supervisor ended the lease and moved the fence on. Another
	// holder may be at work.
	ErrRevoked = errors.New("lease: revoked")

	// ErrStale: the lease stands, but a newer token was issued for its resource. What is written
	// with its token will be refused where the newer one has been seen. This error comes from
	// Redis. fencedb.ErrStale, of a write that Postgres has refused, is another error, and
	// errors.Is tells them apart.
	ErrStale = errors.New("lease: fencing token is stale")
)

// HeldError is the ordinary answer under contention; errors.Is(err, ErrHeld) holds for it.
type HeldError struct {
	Resource string

	// RetryAfter is when to retry at the latest: a release makes it sooner, a renewal later.
	RetryAfter time.Duration

	// Cause is why waiting ended, [context.Cause] of the caller's context; nil if the call did not
	// wait.
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

// Unwrap gives the reason why waiting ended, so that errors.Is(err, context.DeadlineExceeded) can
// be asked as well.
func (e *HeldError) Unwrap() error { return e.Cause }
