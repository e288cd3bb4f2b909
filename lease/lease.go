package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/fencedb/fencedb/internal/protocol"
)

// Lease is the right to work on one resource for a limited time. It is over when its
// [Lease.Context] is. It is safe for concurrent use. One that no [Issuer] has granted, nil or zero,
// is over: its methods answer with zero values and [ErrInvalid].
type Lease struct {
	core     *core
	resource string
	term     term
	shared   bool // other leases of the issuer may be the same one, by [LeaseID]

	holdEnd time.Time // no renewal reaches beyond; zero for no bound

	ctx    context.Context
	cancel context.CancelCauseFunc
	life   *tracing // ended by end; nil if nobody traces

	mu         sync.Mutex
	validUntil time.Time   // guarded by mu; only grows, until the lease ends before it
	expiry     *time.Timer // ends the lease at validUntil; guarded by mu
	ended      error       // why it is over, nil while it is not; guarded by mu, set once
	lastFail   error       // of the latest renewal, nil if it succeeded; guarded by mu

	unsealed bool   // and so not renewed; guarded by mu
	due      *batch // whose renewal comes next, nil if none does; guarded by the watchdog's mu

	back   *release // the latest, nil before the first; guarded by mu
	unsure bool     // a release was sent and never answered; for one release at a time
}

// newLease starts the lease on the nth resource, which was granted to a request sent at that time:
// trust and MaxHold count from there.
func (s *step) newLease(n int, token int64, sent time.Time) *Lease {
	until := s.core.trustedUntil(sent, s.core.cfg.TTL)
	c := s.core
	l := &Lease{core: c, resource: s.resources[n], term: term{s.keys[n], s.id, s.text, token}, shared: s.shared}
	if c.cfg.MaxHold != Unlimited {
		l.holdEnd = sent.Add(c.cfg.MaxHold)
	}
	hold := l.trace(s.caller, OpHold)
	life := hold.ctx
	if life.Done() != nil {
		life = context.WithoutCancel(life)
	}
	l.ctx, l.cancel = context.WithCancelCause(life)
	l.life = hold.kept()
	l.validUntil = until
	l.mu.Lock() // the timer may fire before it is stored
	defer l.mu.Unlock()
	l.expiry = time.AfterFunc(time.Until(until), func() { _ = l.Err() })
	c.registry.hold(l)
	c.watchdog.watch(l, sent)
	return l
}

// Resource is what the lease is for, as given to the acquisition.
func (l *Lease) Resource() string { return l.some().resource }

// Token is the fencing token: greater than that of every earlier lease on the resource.
func (l *Lease) Token() int64 { return l.some().term.token }

// LeaseID is unique to this acquisition.
func (l *Lease) LeaseID() uuid.UUID { return l.some().term.id }

// IsPermit reports whether the lease is a permit of a [Semaphore], whose holders do not exclude
// each other. Package fencedb refuses it as a grant.
func (l *Lease) IsPermit() bool { return l.granted() == nil && l.core.cfg.permits > 0 }

// Released reports whether its own holder has given the lease back. Package fencedb asks: to write
// under it is a mistake, and not a loss. It is false where [Issuer.Close] has released it.
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

// Err is nil while the lease may be trusted, and then the cause of its end. It reads the clock:
// after a process was stopped, Err is right before the timers have run. It does not ask Redis.
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

// Extend renews the lease for a full TTL from now, or up to [Config.MaxHold]. Renewal does this
// automatically; call Extend when renewal is off, or before a long step.
//
// It returns nil when ValidUntil has moved on, or MaxHold allows no more. After [ErrUnreachable]
// the lease stays valid until ValidUntil; any other cause of [Lease.Context] says that it is over.
// Cancelling ctx stops the waiting, not the request. Extend never revives a lease that is over.
func (l *Lease) Extend(ctx context.Context) error {
	if err := l.granted(); err != nil {
		return err
	}
	e, err := l.beginRenewal(ctx, time.Now())
	if err != nil { // nothing is asked, but work goes on after its lease
		t := l.trace(ctx, OpExtend)
		t.end(0, fmt.Errorf("%w: %w", errNotSent, err))
	}
	if err != nil || e == nil {
		return err
	}
	// The answer does not matter once the lease is over.
	ctx, stop := context.WithCancelCause(e.trace.ctx)
	defer stop(nil)
	defer context.AfterFunc(l.ctx, func() { stop(context.Cause(l.ctx)) })()

	var answer protocol.Answer[outcome]
	answer.Value, answer.Err = protocol.Persist(ctx, l.core.cfg.TTL, func(ctx context.Context) (outcome, error) {
		answer := l.core.store.extend(ctx, []extension{e.extension})[0]
		return answer.Value, answer.Err
	})
	return e.end(answer)
}

// beginRenewal returns what to send, or nil if MaxHold leaves nothing to gain. Each renewal that
// was begun must be ended.
func (l *Lease) beginRenewal(ctx context.Context, now time.Time) (*renewal, error) {
	e, err := l.gain(now)
	if err != nil || e.ttl == 0 {
		return nil, err
	}
	return &renewal{l, e, now, l.trace(ctx, OpExtend)}, nil
}

// gain is what a renewal now asks for; nothing if MaxHold leaves nothing to gain.
func (l *Lease) gain(now time.Time) (extension, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.check(now); err != nil {
		return extension{}, err
	}
	ttl := l.core.cfg.TTL
	if !l.holdEnd.IsZero() {
		ttl = min(ttl, l.holdEnd.Sub(now).Truncate(time.Millisecond))
	}
	if !l.core.trustedUntil(now, ttl).After(l.validUntil) {
		return extension{}, nil
	}
	return extension{l.term, ttl}, nil
}

// end takes the answer in. Trust counts from when the request was sent: a slow answer must
// not stretch the lease. Once the lease is over, the answer changes nothing. So nobody waits for a
// renewal that is under way; in Redis it names its lease and creates nothing.
func (r *renewal) end(answer protocol.Answer[outcome]) error {
	err := r.take(answer)
	r.trace.end(time.Until(r.lease.ValidUntil()), err)
	return err
}

func (r *renewal) take(answer protocol.Answer[outcome]) error {
	l := r.lease
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.check(time.Now())
	switch {
	case err != nil:
		err = protocol.Latest(answer.Err, err)
	case answer.Err != nil && r.trace.ctx.Err() == context.Canceled,
		r.trace.ctx.Err() != nil && errors.Is(answer.Err, protocol.ErrUnasked):
		// By the caller, which says nothing about Redis.
		err = byCaller(r.trace.ctx, answer.Err)
	case answer.Err != nil:
		err, l.lastFail = answer.Err, answer.Err
		l.core.watchdog.retry(l)
	case answer.Value != done:
		l.end(answer.Value.loss())
		err = l.ended
	default:
		l.lastFail = nil
		l.core.watchdog.watch(l, r.sent)
		if until := l.core.trustedUntil(r.sent, r.ttl); until.After(l.validUntil) {
			l.validUntil = until
			l.expiry.Reset(time.Until(until))
		}
	}
	return err
}

// Release gives the lease back. First its context ends, with [ErrReleased]. Then the request is
// sent, and sent again while Redis does not answer or refuses it for a moment (a [*RefusedError]
// that passes), until the TTL is over. That goes on in the background: ctx, and five seconds, bound
// only how long Release waits for the outcome. The request uses only the values of ctx. If ctx is
// over already, Release still waits for 30 ms, in which a working Redis answers.
//
// It returns nil when the lease is released. If the lease was over before, the error is the cause
// of [Lease.Context], and no other holder was touched. If the outcome is not known yet, the error
// is the refusal of Redis, or [ErrUnreachable]: the release is still being tried, and in the end
// the lease expires in Redis; [Issuer.Close] waits for that. Release may be called again: it waits
// for the same outcome, tries once more if there was none, and changes nothing after an answer.
func (l *Lease) Release(ctx context.Context) error {
	if err := l.granted(); err != nil {
		return err
	}
	called := time.Now()
	r, begun := l.beginRelease(ctx, ErrReleased)
	if begun {
		r.first(ctx)
	}
	cause := r.wait(ctx, releaseTime-time.Since(called))
	switch {
	case cause == nil && r.done && r.err != nil:
		return cmp.Or(r.over, r.err)
	case cause == nil:
		return r.err
	}
	if last := r.latest(); last != nil {
		cause = protocol.Also(protocol.Ended(ctx, last), cause)
	} else {
		cause = protocol.Failed(ctx, "release", cause)
	}
	return fmt.Errorf("lease: release %q is still being tried: %w", l.resource, cause)
}

// release is a release that was begun.
type release struct {
	debt
	lease *Lease
	over  error // why the lease was lost before; nil if its holder trusted it until a release
	trace tracing
	err   error // what became of it; set before the debt is settled
	done  bool  // it was answered; set before the debt is settled
}

// release ends the lease for that reason and gives it back in the background.
func (l *Lease) release(ctx context.Context, why error) *release {
	r, begun := l.beginRelease(ctx, why)
	if begun {
		r.goOn(nil)
	}
	return r
}

// beginRelease ends the lease for that reason, an [ErrReleased]. The caller gives it back, unless
// that has happened or is under way.
func (l *Lease) beginRelease(ctx context.Context, why error) (r *release, begun bool) {
	defer func() {
		if begun && l.shared { // and mu is not held any more
			l.endTwins(r, why)
		}
	}()
	l.mu.Lock()
	defer l.mu.Unlock()
	over := l.check(time.Now())
	if l.back != nil && !l.back.unanswered() {
		return l.back, false
	}
	r = &release{lease: l, trace: tracing{ctx: ctx}}
	if !errors.Is(over, ErrReleased) {
		r.over = over
	}
	// Before the lease ends, or Close would see neither.
	l.core.registry.owe(&r.debt, max(l.core.cfg.TTL, minGiveBack), l.resource)
	defer func() {
		l.back = r
		if !begun { // but a tracer panicked
			r.goOn(nil)
		}
	}()
	if over == nil {
		l.end(why)
	}
	r.trace = l.trace(ctx, OpRelease)
	return r, true
}

// endTwins ends the other leases of the issuer that are the same one in Redis: the release is
// theirs.
func (l *Lease) endTwins(r *release, why error) {
	for _, other := range l.core.registry.allHeld() {
		if other.resource == l.resource && other.term.id == l.term.id && other.term.token == l.term.token {
			other.mu.Lock()
			if other.ended == nil {
				other.back = r
				other.end(fmt.Errorf("%w: by another acquisition with its lease id", why))
			}
			other.mu.Unlock()
		}
	}
}

// first makes the first attempt. The caller does that itself, because it takes longer to start a
// goroutine and to be woken by it. What is left to do goes on in the background, also when ctx ends
// meanwhile.
func (r *release) first(ctx context.Context) {
	if ctx.Err() != nil {
		r.goOn(nil)
		return
	}
	b, cancel := protocol.Within(r.trace.ctx, protocol.OneOfMany(time.Until(r.until)))
	defer cancel()
	err := r.attempt(b)
	over := ctx.Err() != nil // which says nothing about Redis
	if err != nil && (over || protocol.Transient(err)) {
		if !over {
			r.note(err)
		}
		r.goOn(err)
		return
	}
	defer r.settle(err) // also if a tracer panics
	r.ended()
}

// goOn gives it back in the background. err is that of the first attempt.
func (r *release) goOn(err error) { go r.pay(r.trace.ctx, err, r.attempt, r.ended) }

func (r *release) attempt(ctx context.Context) error {
	l := r.lease
	result, err := l.core.store.release(ctx, l.term)
	l.unsure = l.unsure || errors.Is(err, ErrUnreachable)
	if err == nil {
		r.done, r.err = true, r.outcome(result)
	} else {
		r.err = fmt.Errorf("lease: release %q: %w", l.resource, protocol.Latest(r.err, err))
	}
	return err
}

// ended is called after the last attempt.
func (r *release) ended() {
	r.trace.end(0, r.err)
}

// unanswered reports whether the release is over without an answer.
func (r *release) unanswered() bool { return r.isPaid() && !r.done }

// outcome is what became of the release. If an earlier request went unanswered, it may have been
// carried out; then a lease that is gone is no error.
func (r *release) outcome(result outcome) error {
	if result == done || r.over == nil && r.lease.unsure && (result == gone || result == taken) {
		return nil
	}
	return result.loss()
}

// Verify asks Redis whether the lease still holds its resource. If not, the lease is over, with
// [ErrLost].
//
// The answer is out of date when it arrives. It is for people and for deciding whether to start.
// What a stale holder must not do is checked where the data lives.
func (l *Lease) Verify(ctx context.Context) (Verdict, error) {
	if err := l.granted(); err != nil {
		return 0, err
	}
	verdict, err := about(ctx, &Issuer{core: l.core}, "verify", l.resource, func(ctx context.Context, _ *protocol.Keys) (Verdict, error) {
		return l.core.store.verify(ctx, l.term)
	})
	if verdict == LeaseLost {
		_ = l.refused(gone)
	}
	return verdict, err
}

func (l *Lease) trace(ctx context.Context, op Op) tracing {
	return l.core.trace(ctx, TraceStart{Op: op, Resource: l.resource, LeaseID: l.term.id, Token: l.term.token})
}
