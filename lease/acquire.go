package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// Option changes one acquisition.
type Option func(*acquisition)

// WithLeaseID gives the acquisition its lease id instead of a random one. A program that asks again with the id of an
// acquisition whose outcome it does not know gets that very lease, if it still holds, with its token. Never use one id for
// two pieces of work: both would hold.
func WithLeaseID(id uuid.UUID) Option { return func(a *acquisition) { a.id = id } }

// Barge lets [Issuer.TryAcquire] go ahead of those who wait. Without it a free resource that others wait for is held for them.
func Barge() Option { return func(a *acquisition) { a.barge = true } }

// acquisition is one call of TryAcquire or Acquire.
type acquisition struct {
	issuer   *Issuer
	resource string
	keys     keys
	id       uuid.UUID
	barge    bool
	asked    bool // a request may have reached Redis
}

func (i *Issuer) acquisition(resource string, opts []Option) (*acquisition, error) {
	if err := checkResource(resource); err != nil {
		return nil, err
	}
	a := &acquisition{issuer: i, resource: resource, id: uuid.New(), keys: newKeys(i.cfg.Namespace, resource, i.cfg.HashResources)}
	for _, opt := range opts {
		opt(a)
	}
	if a.id == uuid.Nil {
		return nil, invalid("lease id is the zero UUID; use uuid.New()")
	}
	return a, nil
}

// TryAcquire asks once and does not wait: [ErrHeld] with the time after which to ask again, if another holds the resource.
//
// A request that goes unanswered is sent again, twice at most, with the same lease id; so an answer that was lost does no
// harm. Cancelling ctx ends the attempt and gives back what it may have been granted; after the return ctx has no influence
// on the lease. Every error means that this call holds nothing, except that after [ErrUnreachable] the resource
// may stay blocked for up to one TTL.
func (i *Issuer) TryAcquire(ctx context.Context, resource string, opts ...Option) (*Lease, error) {
	a, err := i.acquisition(resource, opts)
	if err != nil {
		return nil, err
	}
	m := try
	if a.barge {
		m = barge
	}
	l, held, err := a.attempt(ctx, m)
	if err != nil {
		a.withdraw(ctx)
		return nil, a.failed(err)
	}
	if l == nil {
		return nil, &HeldError{Resource: resource, RetryAfter: held}
	}
	return a.seal(ctx, l)
}

// Acquire waits until the resource is free and ctx allows. When ctx ends first, the error is [ErrHeld] as well as the reason
// why ctx ended, if the last that was heard is that another holds it; nothing is left behind. Otherwise it is
// like [Issuer.TryAcquire].
func (i *Issuer) Acquire(ctx context.Context, resource string, opts ...Option) (*Lease, error) {
	a, err := i.acquisition(resource, opts)
	if err != nil {
		return nil, err
	}
	l, err := a.waitForTurn(ctx)
	if err != nil {
		a.withdraw(ctx)
		return nil, a.failed(err)
	}
	return a.seal(ctx, l)
}

// waitForTurn asks until the lease is granted, backing off in between.
func (a *acquisition) waitForTurn(ctx context.Context) (*Lease, error) {
	refused := &HeldError{Resource: a.resource}
	for backoff := 10 * time.Millisecond; ; backoff = min(2*backoff, time.Second) {
		l, held, err := a.attempt(ctx, wait)
		if l != nil {
			return l, nil
		}
		if err == nil {
			refused.RetryAfter = held
			sleep(ctx, jitter(min(backoff, held)))
		}
		switch {
		case ctx.Err() != nil && refused.RetryAfter > 0:
			refused.Cause = context.Cause(ctx)
			return nil, refused
		case err != nil:
			return nil, err
		}
	}
}

// attempt asks until there is an answer: a lease, or how long to wait.
func (a *acquisition) attempt(ctx context.Context, m mode) (l *Lease, held time.Duration, err error) {
	err = persist(ctx, func() error {
		l, held, err = a.once(ctx, m)
		return err
	})
	return l, held, err
}

// once asks one time. An answer that comes when its trust window is over already is as good as none.
func (a *acquisition) once(ctx context.Context, m mode) (*Lease, time.Duration, error) {
	i := a.issuer
	ctx, cancel := context.WithTimeoutCause(ctx, i.cfg.TTL, errTooLate)
	defer cancel()
	a.asked = a.asked || ctx.Err() == nil
	sent := time.Now()
	answer, err := i.store.acquire(ctx, ask{a.keys, a.id, m, i.cfg.TTL, i.cfg.FenceRetention})
	if err != nil || answer.token == 0 {
		return nil, answer.wait, err
	}
	if !time.Now().Before(i.trustedUntil(sent, i.cfg.TTL)) {
		return nil, 0, fmt.Errorf("%w: %w", ErrUnreachable, errTooLate)
	}
	return newLease(ctx, i, a.resource, term{a.keys, a.id, answer.token}, sent), 0, nil
}

var errTooLate = errors.New("the answer took longer than the lease lasts")

// withdraw leaves nothing behind of an acquisition that failed: no waiter, and no grant whose reply was lost. On a context of its own:
// should it fail, or overtake a request that ctx cut short, the waiter is dropped from the queue within
// seconds and the grant ends with its TTL.
func (a *acquisition) withdraw(ctx context.Context) {
	if !a.asked {
		return
	}
	ctx, cancel := detached(ctx, withdrawTime)
	defer cancel()
	_ = persist(ctx, func() error { return a.issuer.store.withdraw(ctx, a.keys, a.id) })
}

func (a *acquisition) failed(err error) error {
	if errors.Is(err, ErrHeld) {
		return err
	}
	return fmt.Errorf("lease: acquire %q: %w", a.resource, err)
}

// seal runs Config.Seal, before the holder learns that it holds.
func (a *acquisition) seal(ctx context.Context, l *Lease) (*Lease, error) {
	if a.issuer.cfg.Seal == nil {
		return l, nil
	}
	err := a.issuer.cfg.Seal(ctx, l)
	if err == nil {
		err = l.Err()
	}
	if err != nil {
		_ = l.Release(ctx)
		return nil, fmt.Errorf("lease: seal %q: %w", a.resource, err)
	}
	return l, nil
}
