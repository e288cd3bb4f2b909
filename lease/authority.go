package lease

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/fencedb/fencedb/internal/protocol"
)

// Revoke ends the holder of the resource and issues a new last token. The former holder's context
// ends at its next renewal, with [ErrRevoked], or with [ErrLost] if a later holder was revoked
// before that; seal the revocation where the data lives to stop it at once. The resource goes to
// the first waiter.
//
// A request that goes unanswered is repeated and takes effect once. If another revocation came
// before the repetition, the answer is lost, and the error is [ErrStale]: the holder was ended. On
// [ErrUnreachable] it may have taken effect, or may still do so, and then end the lease of a later
// holder: look with [Issuer.Inspect] before revoking again.
func (i *Issuer) Revoke(ctx context.Context, resource string) (*Revocation, error) {
	return i.revoke(ctx, resource, 0)
}

// TakeOver is [Issuer.Revoke] on condition that the given token is still the last of the resource:
// for supervisors that have found its holder dead. Of two that take over from the same token, one
// succeeds; the other gets [ErrStale] and has changed nothing.
func (i *Issuer) TakeOver(ctx context.Context, resource string, token int64) (*Revocation, error) {
	if token < 1 || token > protocol.MaxNumber {
		return nil, protocol.Invalid("invalid token %d", token)
	}
	return i.revoke(ctx, resource, token)
}

func (i *Issuer) revoke(ctx context.Context, resource string, from int64) (*Revocation, error) {
	if err := i.ready(resource); err != nil {
		return nil, err
	}
	id := uuid.New()
	t := i.trace(ctx, TraceStart{Op: OpRevoke, Resource: resource, LeaseID: id})
	r, err := about(t.ctx, i, "revoke", resource, func(ctx context.Context, k *protocol.Keys) (Revocation, error) {
		return i.store.revoke(ctx, k, id, from)
	})
	t.start.Token = r.token
	t.end(0, err)
	if err != nil {
		return nil, err
	}
	r.resource, r.id = resource, id
	return &r, nil
}

// Raise lifts the last token of a resource to at least floor, and returns it; the next token is
// greater. Call it when the data store has seen higher tokens than Redis remembers. A holder keeps
// its lease, with a stale token: see [Issuer.Heal].
func (i *Issuer) Raise(ctx context.Context, resource string, floor int64) (int64, error) {
	if err := i.ready(resource); err != nil {
		return 0, err
	}
	if floor < 1 || floor > protocol.MaxNumber {
		return 0, protocol.Invalid("invalid floor %d: it is not a token", floor)
	}
	t := i.trace(ctx, TraceStart{Op: OpRaise, Resource: resource})
	last, err := about(t.ctx, i, "raise", resource, func(ctx context.Context, k *protocol.Keys) (int64, error) {
		return i.store.raise(ctx, k, floor)
	})
	t.start.Token = last
	t.end(0, err)
	return last, err
}

// Heal exchanges a live lease whose token the data store has refused as too old for one with a
// token above floor, the token that the store has seen. That happens when Redis has lost its
// counter and its clock is behind. No other holder can get in between. The old lease is over, with
// [ErrStale], whatever the outcome; [Config.MaxHold] goes on counting from its start.
//
// If the old lease is over already, the error is [ErrLost] or its cause: the store was right, and
// another holder may have the resource. Every error means that this call holds nothing.
func (i *Issuer) Heal(ctx context.Context, old *Lease, floor int64) (*Lease, error) {
	if err := protocol.Join(i.ready(), old.granted()); err != nil {
		return nil, err
	}
	if floor < 1 || floor >= protocol.MaxNumber {
		return nil, protocol.Invalid("invalid floor %d: no token can follow it", floor)
	}
	if old.IsPermit() {
		return nil, protocol.Invalid("this is a permit of a semaphore, which is no grant: the data store refuses the earlier of two rightful holders")
	}
	t := old.trace(ctx, OpHeal)
	a := &acquisition{core: i.core, caller: ctx, resources: []string{old.resource}, keys: []*protocol.Keys{old.term.keys},
		id: uuid.New(), call: newCall(i.label), behind: new(behind), asked: true}
	leases, err := a.begun(&t, func(ctx context.Context) (Leases, error) {
		l, err := a.heal(ctx, old, floor)
		if err != nil {
			return nil, err
		}
		return a.seal(ctx, Leases{l})
	})
	return leases.first(), err
}

func (a *acquisition) heal(ctx context.Context, old *Lease, floor int64) (*Lease, error) {
	if err := old.supersede(); err != nil {
		return nil, fmt.Errorf("lease: heal %q: %w", old.resource, err)
	}
	l, err := a.exchange(ctx, old, floor)
	if err != nil {
		a.takeBackAfter(old.release(ctx, ErrReleased))
		return nil, fmt.Errorf("lease: heal %q: %w", old.resource, err)
	}
	old.exchanged()
	if old.term.unsure { // an early request of its call may still arrive, and would get a lease for nobody
		withdraw := func(ctx context.Context) error { return a.core.store.withdraw(ctx, old.term) }
		a.core.registry.giveBack(ctx, a.core.cfg.TTL, withdraw, old.resource)
	}
	return l, nil
}

// takeBackAfter withdraws what the exchange was granted, when the old lease is released: before
// that, a request that arrives late may still exchange it.
func (a *acquisition) takeBackAfter(old *release) {
	d := a.core.registry.owe(new(debt), a.core.cfg.TTL, a.resources...)
	a.behind.owes(d)
	go func() {
		<-old.paid
		<-a.takeBack(a.call).paid
		d.settle(nil)
	}()
}

// exchanged notes that another lease has the place of this one, which has nothing to release.
func (l *Lease) exchanged() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.back == nil { // or its holder has released it meanwhile
		l.back = &release{debt: debt{paid: make(chan struct{})}, err: l.ended, done: true}
		close(l.back.paid)
	}
}

// supersede ends a lease that is to be exchanged.
func (l *Lease) supersede() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.check(time.Now()); err != nil {
		return err
	}
	l.end(fmt.Errorf("%w: exchanged for a lease with a newer token", ErrStale))
	return nil
}

func (a *acquisition) exchange(ctx context.Context, old *Lease, floor int64) (*Lease, error) {
	ttl := a.core.cfg.TTL
	return protocol.Persist(ctx, ttl, func(ctx context.Context) (*Lease, error) {
		sent := time.Now()
		token, err := a.core.store.regrant(ctx, old.term, a.id, a.call.id, floor)
		switch {
		case err != nil:
			return nil, err
		case !time.Now().Before(a.core.trustedUntil(sent, ttl)):
			return nil, errTooLate
		}
		return a.newLease(0, token, sent, old.since), nil
	})
}

// Inspect asks Redis about a resource. It changes nothing.
func (i *Issuer) Inspect(ctx context.Context, resource string) (Inspection, error) {
	return about(ctx, i, "inspect", resource, func(ctx context.Context, k *protocol.Keys) (Inspection, error) {
		found, err := i.store.inspect(ctx, k)
		found.Resource = resource
		return found, err
	})
}

// about asks about a resource until there is an answer. An error names what was asked.
func about[T any](ctx context.Context, i *Issuer, what, resource string,
	ask func(context.Context, *protocol.Keys) (T, error)) (none T, err error) {
	if err := i.ready(resource); err != nil {
		return none, err
	}
	attempt := func(ctx context.Context) (T, error) { return ask(ctx, i.keys(resource)) }
	answer, err := protocol.Persist(ctx, protocol.Patience, attempt)
	if err != nil {
		return none, fmt.Errorf("lease: %s %q: %w", what, resource, err)
	}
	return answer, nil
}
