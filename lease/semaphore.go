package lease

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/internal/protocol"
)

// MaxLimit bounds the limit of a semaphore, because scripts read all holders.
const MaxLimit = 1000

// SemaphoreConfig holds the settings of all resources of a [Semaphore]. [NewSemaphore] checks it.
type SemaphoreConfig struct {
	// Limit is how many may hold a resource at once. From 1 to [MaxLimit]. Programs that share
	// resources should agree on it. Each applies its own limit to the holders of all programs, so
	// one with a lower limit waits longer. Required.
	Limit int

	// Lease is the Config of the permits. Its TTL is required.
	Lease Config
}

// Semaphore grants permits: up to N holders of a resource at once, such as three exports per
// tenant. One per process and [SemaphoreConfig] is enough; it is safe for concurrent use. A program
// that shuts down calls [Semaphore.Close].
//
// A permit is a [Lease]: it has an id and a token, lasts for its TTL unless it is renewed, ends its
// context with a cause, and is released. What the package says about trust, renewal, lost replies,
// contexts and errors holds for permits too.
//
//	limit 3     A(41)  B(42)  C(43)              D waits
//	            A(41)         C(43)  D(44)       B was released, or has expired
//
// Redis keeps the holders in a sorted set, by when their permits expire on its own clock. Expired
// permits are not counted, so a holder that dies blocks its permit for one TTL at most.
//
// Waiters are served first come, first served, as for leases. A release calls the first waiter that
// listens; when this waiter gets its permit and another is free, it calls the next. The waiters of
// one process stand in one line, so a process takes several free permits one after the other.
//
// A permit does not fence: its token is greater than those before, but an older one is not stale,
// because several holders are valid at once. So fencedb does not take a permit as a grant. If each
// holder writes something of its own, acquire a lease on that as well, under the permit. A holder
// that is stopped for longer than its TTL works beside up to N others when it resumes, until it
// looks at its context. If Redis loses its data, it forgets the holders. So a semaphore bounds
// load; it does not protect data.
type Semaphore struct {
	issuer *Issuer
}

// NewSemaphore makes a semaphore. It checks the configuration: errors are [ErrInvalid] and name the
// field. It does not contact Redis. The client is as for [New].
func NewSemaphore(client redis.UniversalClient, cfg SemaphoreConfig) (*Semaphore, error) {
	if cfg.Limit < 1 || cfg.Limit > MaxLimit {
		return nil, protocol.Invalid("Limit must be from 1 to %d; it is %d", MaxLimit, cfg.Limit)
	}
	cfg.Lease.permits = cfg.Limit
	issuer, err := New(client, cfg.Lease)
	if err != nil {
		return nil, err
	}
	return &Semaphore{issuer}, nil
}

// of returns the issuer of the permits: nil for a nil or zero Semaphore, which refuses every call.
func (s *Semaphore) of() *Issuer {
	if s == nil {
		return nil
	}
	return s.issuer
}

// Acquire acquires a permit. It waits for its turn, first come, first served; ctx and [WaitAtMost]
// bound the waiting. With [NoWait] it asks once; if all permits are taken, or a waiter has the
// right of way, the error is [ErrHeld], with the time after which to ask again. In all else it is
// like [Issuer.Acquire].
func (s *Semaphore) Acquire(ctx context.Context, resource string, opts ...Option) (*Lease, error) {
	return s.of().Acquire(ctx, resource, opts...)
}

// Do acquires a permit, runs fn under a context that ends with ctx or with the permit, and releases
// the permit, even if fn panics. It is like [Issuer.Do].
func (s *Semaphore) Do(ctx context.Context, resource string,
	fn func(ctx context.Context, l *Lease) error, opts ...Option) error {
	return s.of().Do(ctx, resource, fn, opts...)
}

// Close ends and releases every permit that is held. It is like [Issuer.Close].
func (s *Semaphore) Close(ctx context.Context) error { return s.of().Close(ctx) }

// SemaphoreInspection is what Redis knows about a resource of a semaphore. It is out of date when
// it arrives.
type SemaphoreInspection struct {
	Waiters int      // in Redis's queue: one for each process that waits
	Permits []Permit // the permits that are held; the first to expire comes first
}

// Permit is a permit that is held, as Redis knows it.
type Permit struct {
	LeaseID   uuid.UUID
	Token     int64
	ExpiresIn time.Duration // without renewal
	Label     string        // of the holder, its [Config.Holder]; "": not known
}

// Inspect returns the permits that are held on the resource. It changes nothing.
func (s *Semaphore) Inspect(ctx context.Context, resource string) (SemaphoreInspection, error) {
	if err := s.of().ready(resource); err != nil {
		return SemaphoreInspection{}, err
	}
	i := s.issuer
	return about(ctx, i.core, "inspect semaphore", resource, i.store.inspect(i.keys(resource)), decodeSemaphoreInspect)
}

// Revoke ends the permit with that lease id, one of those that [Semaphore.Inspect] lists. The
// permit is free at once, and the first waiter is called. The former holder's context ends with
// [ErrRevoked] at its next renewal; until then it works beside as many others as the limit allows.
//
// held is false if no permit has that id; then nothing was changed. It is true also for a permit
// that was revoked lately. A request without an answer is repeated. After [ErrUnreachable] it may
// have taken effect; revoking the permit again does no harm.
func (s *Semaphore) Revoke(ctx context.Context, resource string, leaseID uuid.UUID) (held bool, err error) {
	if err := s.of().ready(resource); err != nil {
		return false, err
	}
	k := s.issuer.keys(resource)
	call := protocol.SemaphoreRevoke.Call(4, k.Owner, k.Ended, k.Queue, k.Alive, leaseID.String(), s.issuer.store.publish)
	return about(ctx, s.issuer.core, fmt.Sprintf("revoke %v of semaphore", leaseID), resource, call, decodeSemaphoreRevoke)
}

var decodeSemaphoreRevoke = protocol.OneOf(map[string]bool{"revoked": true, "gone": false})

// decodeSemaphoreInspect reads the number of waiters, and for each permit two arguments: "<lease
// id>:<token>:<label>", and the milliseconds until it expires.
func decodeSemaphoreInspect(r protocol.Reply) (SemaphoreInspection, error) {
	if r.Word != "inspected" || len(r.Args)%2 != 1 {
		return SemaphoreInspection{}, r.Unknown()
	}
	found := SemaphoreInspection{Waiters: int(r.Number(0, 0))}
	for i := 1; i < len(r.Args); i += 2 {
		held := r.Parts(i, 3)
		found.Permits = append(found.Permits,
			Permit{held.ID(0), held.Number(1, 1), r.Milliseconds(i+1, 1), protocol.ReadLabel(held.Args[2])})
		if err := held.Err(); err != nil {
			return SemaphoreInspection{}, err
		}
	}
	return found, r.Err()
}
