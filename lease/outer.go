package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencedb/fencedb/internal/protocol"
)

// OuterLock is a lock of another kind that [Config.Outer] has taken. Its functions are not called
// at the same time.
type OuterLock struct {
	// Renew makes the lock last for the TTL of the lease from now. It is called before each renewal of
	// the lease, which fails with its error: after an error it is called again, until the time of the
	// lease is over, and that ends with [ErrExpired], or [ErrUnreachable] if that was the error. It is
	// also called while the lease is waited for; after an error the lock is then given back and taken
	// anew. Required.
	Renew func(ctx context.Context) error

	// Release gives the lock back. It is called once, after the lease was released. After an error
	// the lock is left to expire. Required.
	Release func(ctx context.Context) error
}

// outerPoll is how often a lock that is taken is asked for again.
const outerPoll = 50 * time.Millisecond

// outer is the lock of another kind around one lease, from before that is asked for until it is
// over.
type outer struct {
	cfg      Config
	resource string

	turn chan struct{} // holds a token while one of its functions runs
	lock OuterLock     // zero: not taken; belongs to whoever has the turn
}

// around is the lock around a lease on the resource; nil if it gets none.
func (c *core) around(resource string) *outer {
	if c.cfg.Outer == nil {
		return nil
	}
	return &outer{cfg: c.cfg, resource: resource, turn: make(chan struct{}, 1)}
}

// alone runs f when it is its turn. It returns when f does or ctx ends, whichever is first: the
// other library may ignore contexts.
func (o *outer) alone(ctx context.Context, f func() error) error {
	_, err := protocol.Bounded(ctx, func() (struct{}, error) {
		o.turn <- struct{}{}
		defer func() { <-o.turn }()
		if ctx.Err() != nil { // nobody waits for it any more
			return struct{}{}, ctx.Err()
		}
		return struct{}{}, f()
	})
	if err != nil {
		return fmt.Errorf("the lock around %q: %w", o.resource, err)
	}
	return nil
}

// take makes the lock last for the TTL from now. One that was taken and cannot be renewed may be
// lost, and is taken anew.
func (o *outer) take(ctx context.Context) error {
	return o.alone(ctx, func() error {
		if o.lock.Renew != nil {
			if o.lock.Renew(ctx) == nil {
				return nil
			}
			o.giveBack()
		}
		lock, err := o.cfg.Outer(ctx, o.resource, o.cfg.TTL)
		if err == nil && (lock.Renew == nil || lock.Release == nil) {
			err = protocol.Invalid("Config.Outer returned a lock without Renew or Release")
		}
		if err == nil {
			o.lock = lock
		}
		return err
	})
}

// renew makes the lock of a lease last for the TTL from now. A lease without one has nothing to
// renew.
func (o *outer) renew(ctx context.Context) error {
	if o == nil {
		return nil
	}
	return o.alone(ctx, func() error {
		if o.lock.Renew == nil {
			return ErrReleased
		}
		return o.lock.Renew(ctx)
	})
}

// release gives the lock back, once, if there is one.
func (o *outer) release() {
	if o == nil {
		return
	}
	o.turn <- struct{}{}
	defer func() { <-o.turn }()
	o.giveBack()
}

// giveBack is release for a caller that has the turn.
func (o *outer) giveBack() {
	release := o.lock.Release
	if release == nil {
		return
	}
	o.lock = OuterLock{}
	ctx, cancel := protocol.Within(context.Background(), o.cfg.RenewTimeout)
	defer cancel()
	_ = release(ctx) // if it fails, the lock expires
}

// releaseOuters releases the locks under which no lease was granted, behind the call.
func (a *acquisition) releaseOuters() {
	for n, o := range a.outers {
		if o == nil {
			continue
		}
		hangs := len(o.turn) > 0
		release := func(context.Context) error { o.release(); return nil }
		d := a.core.registry.giveBack(a.caller, a.core.cfg.TTL, release, a.resources[n])
		if !hangs { // or the call would wait for it
			a.behind.owes(d)
		}
	}
}

// nested is a store whose leases have locks around them. It makes each lock last before it asks for
// the lease or its renewal, with the trust of the lease counted from before both; so no lease lasts
// longer than its lock.
type nested struct {
	store
	cfg Config
}

func (s nested) acquire(ctx context.Context, a ask) (acquired, error) {
	for n, o := range a.outers {
		err := o.take(ctx)
		switch {
		case errors.Is(err, ErrHeld):
			return acquired{wait: outerPoll, index: n}, nil
		case err != nil:
			return acquired{}, err
		}
	}
	answer, err := s.store.acquire(ctx, a)
	answer.wait = min(answer.wait, s.cfg.RenewEvery) // for the locks of one that waits
	return answer, err
}

// extend asks for each lease alone, so that a lock that hangs keeps back no other lease.
func (s nested) extend(ctx context.Context, batch []extension) []protocol.Answer[outcome] {
	return together(batch, func(n int, e extension) (outcome, error) {
		if err := e.outer.renew(ctx); err != nil {
			return "", err
		}
		answer := s.store.extend(ctx, batch[n:n+1])[0]
		return answer.Value, answer.Err
	})
}
