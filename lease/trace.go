package lease

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// Tracer is told what the leases of an [Issuer] go through, in pairs: each start is followed by one end of the same [Op], which
// gets the context that the start returned. So does the work in between. It is called on the path of the work, by many
// goroutines at once; it must be quick, and must not call the lease or the issuer.
//
// Package observe/prom has one for Prometheus, observe/slog one that logs, observe/otel one that makes spans, observe/feed one that
// publishes events. A type can be a tracer of package fencedb as well.
type Tracer interface {
	TraceLeaseStart(ctx context.Context, s TraceStart) context.Context
	TraceLeaseEnd(ctx context.Context, e TraceEnd)
}

// Op is what a pair of calls to a [Tracer] is about.
type Op string

const (
	// OpAcquire is one call that acquires, whether it waits or not, with its sealing. With several resources it names the
	// first of them. Err is nil when the lease was granted, [ErrHeld] when it was not to be had (in time).
	OpAcquire Op = "acquire"

	// OpWait is the time within OpAcquire from when the resource was found taken until it was granted or the caller gave up.
	// There is none if it was free.
	OpWait Op = "wait"

	// OpHold is the life of one lease, from its grant until its context ends. Err is the cause: [ErrReleased], [ErrExpired],
	// [ErrUnreachable], [ErrLost], [ErrRevoked], or [ErrStale] if it was healed. It starts before OpAcquire ends.
	OpHold Op = "hold"

	// OpExtend is one renewal, of the watchdog or of the caller.
	OpExtend Op = "extend"

	// OpRelease is one release. Err is as [Lease.Release] returns it: [ErrLost] if Redis found the lease gone or taken.
	OpRelease Op = "release"

	// OpRevoke is one revocation or take-over, of whoever holds.
	OpRevoke Op = "revoke"

	// OpRaise is one fence that is lifted above what the store of the data has seen.
	OpRaise Op = "raise"

	// OpHeal is one lease that is exchanged because its token was refused although it stands. LeaseID and Token are the old
	// ones at the start and the new ones at the end.
	OpHeal Op = "heal"
)

// TraceStart is what is known when something begins. Fields that do not belong to the Op, or are not known yet, are zero.
type TraceStart struct {
	Op        Op
	Kind      string // of coordination: "lease", or the name of what is built on it, such as "semaphore"
	Namespace string // [Config.Namespace]
	Resource  string // as the caller gave it, also where keys are hashed
	Resources int    // how many the call is for; 1 unless several are acquired together
	LeaseID   uuid.UUID
	Token     int64
}

// TraceEnd is what is known when it is over.
type TraceEnd struct {
	TraceStart               // with LeaseID and Token as they are now
	Took       time.Duration // since the start
	ValidFor   time.Duration // what OpAcquire, OpExtend and OpHeal, if they succeed, leave of the trust window
	Err        error         // nil: it was done
}
