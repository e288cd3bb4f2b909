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

// Lease is the right to work on one resource for a limited time. It is over when its
// [Lease.Context] is. It is safe for concurrent use. A Lease that no [Issuer] has granted, nil or
// zero, is over: its methods answer with zero values and [ErrInvalid].
type Lease struct {
	core     *core
	resource string
	id       uuid.UUID
	term     term

	holdEnd time.Time // no renewal reaches beyond; zero for no bound

	ctx    context.Context
	cancel context.CancelCauseFunc
	life   *tracing // ended by end; nil if nobody traces

	mu         sync.Mutex
	validUntil time.Time      // guarded by mu; only grows, until the lease ends before it
	expiring   chan time.Time // nil until it is asked for, or there is something to say; guarded by mu
	expiry     *time.Timer    // calls tick when to warn, then at validUntil; guarded by mu
	ended      error          // why it is over, nil while it is not; guarded by mu, set once
	lastFail   error          // of the latest renewal, nil if it succeeded; guarded by mu

	unsealed bool   // and so not renewed; guarded by mu
	due      *batch // whose renewal comes next, nil if none does; guarded by the watchdog's mu

	back   *owed // the latest release, nil before the first; guarded by mu
	unsure bool  // a release was sent and never answered; for one release at a time
}

// newLease starts the lease on the nth resource, which was granted to a request sent at that time:
// trust and MaxHold count from there.
func (s *step) newLease(n int, token int64, sent time.Time) *Lease {
	until := s.core.trustedUntil(sent, s.core.cfg.TTL)
	c := s.core
	l := &Lease{core: c, resource: s.resources[n], id: s.of.id, term: term{s.keys[n], s.of.text, token}}
	if c.cfg.MaxHold != Unlimited {
		l.holdEnd = sent.Add(c.cfg.MaxHold)
	}
	hold := l.trace(s.of.caller, OpHold)
	life := hold.ctx
	if life.Done() != nil {
		life = context.WithoutCancel(life)
	}
	l.ctx, l.cancel = context.WithCancelCause(life)
	l.life = hold.kept()
	l.validUntil = until
	l.mu.Lock() // the timer may fire before it is stored
	defer l.mu.Unlock()
	l.expiry = time.AfterFunc(time.Until(l.warnAt()), l.tick)
	c.registry.hold(l)
	c.watchdog.watch(l, sent)
	return l
}

// trustedUntil is the trust window: the clock read before the request was sent, plus the TTL asked
// for, less the margin.
func (c *core) trustedUntil(sent time.Time, ttl time.Duration) time.Time {
	return sent.Add(ttl - c.cfg.Margin)
}

// Resource is what the lease is for, as given to the acquisition.
func (l *Lease) Resource() string { return l.some().resource }

// Token is the fencing token: greater than that of every earlier lease on the resource.
func (l *Lease) Token() int64 { return l.some().term.token }

// LeaseID is unique to this acquisition.
func (l *Lease) LeaseID() uuid.UUID { return l.some().id }

// IsPermit reports whether the lease is a permit of a [Semaphore], whose holders do not exclude
// each other. Package fencedb refuses it as a grant.
func (l *Lease) IsPermit() bool { return l.granted() == nil && l.core.cfg.permits > 0 }

// Released reports whether its own holder has given the lease back. Package fencedb asks, because a
// write under such a lease is a mistake and not a loss. It is false if [Issuer.Close] has released
// the lease.
func (l *Lease) Released() bool {
	if l.granted() != nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.Is(l.ended, ErrReleased) && !errors.Is(l.ended, ErrClosed)
}

// ValidUntil is the time, on this process's clock, until which the lease may be trusted. Renewals
// move it on. Once the lease is over, it is the time when that became known, so that package
// fencedb begins nothing under it.
func (l *Lease) ValidUntil() time.Time {
	l = l.some()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.validUntil
}

// Context ends when the lease does, at ValidUntil at the latest, even if Redis never answers again.
// Work under it. [context.Cause] tells why: [ErrReleased], [ErrExpired], [ErrUnreachable],
// [ErrLost] or [ErrRevoked].
//
// It carries the values of the context that the lease was acquired with, but not its end:
// cancelling that context after the acquisition does not end the lease.
func (l *Lease) Context() context.Context {
	if l.granted() != nil {
		return neverGranted
	}
	return l.ctx
}

// some is the zero Lease for nil.
func (l *Lease) some() *Lease {
	if l == nil {
		return new(Lease)
	}
	return l
}

// granted refuses a Lease that was not granted by an Issuer, nil or zero.
func (l *Lease) granted() error {
	if l == nil || l.core == nil {
		return errNeverGranted
	}
	return nil
}

// What a Lease answers that was not granted by an Issuer.
var (
	errNeverGranted = protocol.Invalid("this Lease was not granted by an Issuer")
	neverGranted    = func() context.Context {
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(errNeverGranted)
		return ctx
	}()
)

// Err returns nil while the lease may be trusted, and then the cause of its end. It reads the
// clock, so in a process that was stopped it is right even before the timers have run. It does not
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

// overdue is the cause of an end by the clock. The caller holds mu.
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

// end is called once, with mu held.
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

// Expiring receives ValidUntil when the lease comes within [Config.WarnBefore] of its end, because
// renewal is off or keeps failing. That is the time to start no new work. A later successful
// renewal withdraws the warning. Another warning may follow; it replaces one that was not received.
// The channel is never closed.
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

// warnAt is when to warn. The caller holds mu.
func (l *Lease) warnAt() time.Time { return l.validUntil.Add(-l.core.cfg.WarnBefore) }

// tick runs when the timer fires. A renewal may have moved both times on since; then the timer was
// reset as well.
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

// Verify asks Redis whether the lease still holds its resource. If not, the lease is over, with
// [ErrLost].
//
// The answer is out of date when it arrives. Use it to inform people, or to decide whether to
// start. Only the data store can refuse a stale holder.
func (l *Lease) Verify(ctx context.Context) (Verdict, error) {
	if err := l.granted(); err != nil {
		return 0, err
	}
	s := l.core.store
	verdict, err := about(ctx, l.core, "verify", l.resource, s.inspect(l.term.keys),
		func(r protocol.Reply) (Verdict, error) { return s.verdict(l.term, r) })
	if verdict == LeaseLost {
		_ = l.lose(gone)
	}
	return verdict, err
}

func (l *Lease) trace(ctx context.Context, op Op) tracing {
	return l.core.trace(ctx, TraceStart{Op: op, Resource: l.resource, LeaseID: l.id, Token: l.term.token})
}
