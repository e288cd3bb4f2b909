package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/fencedb/fencedb/internal/protocol"
)

// Lease is the right to work on one resource for a limited time. It ends when its [Lease.Context]
// ends. It is safe for concurrent use. A Lease that no [Issuer] has granted, nil or zero, is over:
// its methods return zero values and [ErrInvalid].
type Lease struct {
	core     *core
	resource string
	id       uuid.UUID
	term     term

	holdEnd time.Time // the lease is not renewed beyond it; zero: no bound

	ctx    context.Context
	cancel context.CancelCauseFunc
	life   *tracing // OpHold, ended by end; nil if nobody traces

	mu         sync.Mutex
	validUntil time.Time      // guarded by mu; only grows, until the lease ends before it
	expiring   chan time.Time // nil until Expiring is called or there is a warning; guarded by mu
	expiry     *time.Timer    // calls tick at the time of the warning, then at validUntil; guarded by mu
	ended      error          // why the lease is over, nil while it is not; guarded by mu, set once
	lastFail   error          // of the latest renewal, nil if it succeeded; guarded by mu

	unsealed bool // the lease is not renewed until it is sealed; guarded by mu

	back   *pending // the latest release, nil before the first; guarded by mu
	unsure bool     // a release was sent and never answered; used by one release at a time
}

// newLease starts the lease on the nth resource. sent is when the request was sent to which the
// lease was granted: the trust window and MaxHold count from then.
func (s *step) newLease(n int, token int64, sent time.Time) *Lease {
	until := s.core.trustedUntil(sent, s.core.cfg.TTL)
	c := s.core
	l := &Lease{core: c, resource: s.resources[n], id: s.of.id, term: term{s.keys[n], s.of.text, token}}
	if c.cfg.MaxHold != Unlimited {
		l.holdEnd = sent.Add(c.cfg.MaxHold)
	}
	hold := l.trace(s.of.caller, OpHold)
	l.ctx, l.cancel = context.WithCancelCause(context.WithoutCancel(hold.ctx))
	l.life = hold.kept()
	l.validUntil = until
	l.mu.Lock() // the timer may fire before expiry is set
	defer l.mu.Unlock()
	l.expiry = time.AfterFunc(time.Until(l.warnAt()), l.tick)
	c.registry.hold(l)
	c.watchdog.watch(l, sent)
	return l
}

// trustedUntil is the end of the trust window: the time before the request was sent, plus the TTL
// that it asked for, less the margin.
func (c *core) trustedUntil(sent time.Time, ttl time.Duration) time.Time {
	return sent.Add(ttl - c.cfg.Margin)
}

// Resource is what the lease is for, as given to the acquisition.
func (l *Lease) Resource() string { return l.some().resource }

// Token is the fencing token. It is greater than that of every earlier lease on the resource.
func (l *Lease) Token() int64 { return l.some().term.token }

// LeaseID is unique to this acquisition; leases that were acquired together share it.
func (l *Lease) LeaseID() uuid.UUID { return l.some().id }

// String leaves out the lease id, which logs must not show. It needs no lock, unlike what fmt does
// by itself.
func (l *Lease) String() string {
	if l.granted() != nil {
		return "a lease that was not granted"
	}
	kind := "lease"
	if l.IsPermit() {
		kind = "permit"
	}
	return fmt.Sprintf("%s on %q with token %d", kind, l.resource, l.term.token)
}

// GoString is String, for %#v.
func (l *Lease) GoString() string { return l.String() }

// IsPermit reports whether the lease is a permit of a [Semaphore], whose holders do not exclude
// each other. Package fencedb refuses it as a grant.
func (l *Lease) IsPermit() bool { return l.granted() == nil && l.core.cfg.permits > 0 }

// Released reports whether the holder itself has released the lease; it is false if [Issuer.Close]
// has. Package fencedb asks, because a write after the holder's own release is a mistake of the
// program and not a loss.
func (l *Lease) Released() bool {
	if l.granted() != nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.Is(l.ended, ErrReleased) && !errors.Is(l.ended, ErrClosed)
}

// ValidUntil is until when the lease may be trusted, on this process's clock. Renewals move it on.
// Once the lease is over, ValidUntil is not later than the time when that became known, so package
// fencedb begins nothing under it.
func (l *Lease) ValidUntil() time.Time {
	l = l.some()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.validUntil
}

// Context ends when the lease does: at ValidUntil at the latest, even if Redis never answers again.
// Work under it. [context.Cause] returns why it ended: [ErrReleased], [ErrExpired],
// [ErrUnreachable], [ErrLost] or [ErrRevoked].
//
// It carries the values of the context that the lease was acquired with, but does not end with that
// context.
func (l *Lease) Context() context.Context {
	if l.granted() != nil {
		return neverGranted
	}
	return l.ctx
}

// some is l, or the zero Lease if l is nil.
func (l *Lease) some() *Lease {
	if l == nil {
		return new(Lease)
	}
	return l
}

// granted refuses a Lease that no Issuer has granted, nil or zero.
func (l *Lease) granted() error {
	if l == nil || l.core == nil {
		return errNeverGranted
	}
	return nil
}

// The error and the context of a Lease that no Issuer has granted.
var (
	errNeverGranted = protocol.Invalid("this Lease was not granted by an Issuer")
	neverGranted    = func() context.Context {
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(errNeverGranted)
		return ctx
	}()
)

// Err returns nil while the lease may be trusted, and the cause of its end after that. It reads the
// clock, so after a stop of the process it is right even before the timers have run. It does not
// ask Redis.
func (l *Lease) Err() error {
	if err := l.granted(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.check(time.Now())
}

// check ends the lease if its time is over. The caller holds mu.
func (l *Lease) check(now time.Time) error {
	if l.ended == nil && !now.Before(l.validUntil) {
		l.end(l.overdue())
	}
	return l.ended
}

// overdue is the cause of a lease that ends by the clock. The caller holds mu.
func (l *Lease) overdue() error {
	switch {
	case errors.Is(l.lastFail, ErrUnreachable):
		return unanswered{l.lastFail}
	case l.lastFail != nil:
		return fmt.Errorf("%w: %w", ErrExpired, l.lastFail)
	case !l.holdEnd.IsZero() && !l.validUntil.Before(l.holdEnd.Add(-l.core.cfg.Margin-time.Millisecond)):
		return fmt.Errorf("%w: held for MaxHold (%v)", ErrExpired, l.core.cfg.MaxHold)
	default:
		return ErrExpired
	}
}

// end ends the lease. It is called once, with mu held.
func (l *Lease) end(cause error) {
	l.ended = cause
	if now := time.Now(); now.Before(l.validUntil) {
		l.validUntil = now
	}
	l.expiry.Stop()
	l.cancel(cause)
	l.core.watchdog.forget(l)
	l.core.registry.letGo(l)
	if l.life != nil {
		l.life.end(0, cause)
	}
}

// Expiring returns a channel of warnings. It receives ValidUntil when the lease comes within
// [Config.WarnBefore] of its end, because renewal is off or keeps failing. Start no new work then.
// A later renewal may still succeed, and another warning may follow; it replaces one that was not
// received. The channel is never closed.
func (l *Lease) Expiring() <-chan time.Time {
	if l.granted() != nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.warnings()
}

func (l *Lease) warnings() chan time.Time {
	if l.expiring == nil {
		l.expiring = make(chan time.Time, 1)
	}
	return l.expiring
}

// warnAt is when Expiring warns. The caller holds mu.
func (l *Lease) warnAt() time.Time { return l.validUntil.Add(-l.core.cfg.WarnBefore) }

// tick runs when the timer fires: at the time of the warning, and at the end. A renewal may have
// moved both times on since; then it has reset the timer too.
func (l *Lease) tick() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.check(now) != nil || now.Before(l.warnAt()) {
		return
	}
	warnings := l.warnings()
	select {
	case <-warnings:
	default:
	}
	warnings <- l.validUntil // cannot block: only sent with mu held, into a buffer of one
	l.expiry.Reset(time.Until(l.validUntil))
}

// Verify asks Redis whether the lease still holds its resource. If it does not, the lease ends,
// with [ErrLost]. After an error the answer is not known, and the lease stands.
//
// The answer is out of date when it arrives. Use it to inform people, or before work begins. Only
// the data store can refuse a stale holder.
func (l *Lease) Verify(ctx context.Context) (Standing, error) {
	if err := l.granted(); err != nil {
		return 0, err
	}
	s := l.core.store
	standing, err := about(ctx, l.core, "verify", l.resource, s.inspect(l.term.keys),
		func(r protocol.Reply) (Standing, error) { return s.standing(l.term, r) })
	if standing == LeaseLost {
		_ = l.lose(gone)
	}
	return standing, err
}

func (l *Lease) trace(ctx context.Context, op Op) tracing {
	return l.core.trace(ctx, TraceStart{Op: op, Resource: l.resource, LeaseID: l.id, Token: l.term.token})
}
