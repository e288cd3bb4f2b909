package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/fencedb/fencedb/internal/protocol"
)

// seal has Config.Seal seal all leases, before their holder learns that it holds. A lease whose
// token is refused although it stands is exchanged for one above the fence, once for each resource.
// If sealing fails or panics, all are released.
func (a *acquisition) seal(ctx context.Context, leases Leases) (Leases, error) {
	if a.core.cfg.Seal == nil {
		return leases, nil
	}
	leases = slices.Clone(leases)
	sealed := false
	defer func() {
		if !sealed {
			a.behind.giveBack(ctx, leases...)
		}
	}()
	for healed := 0; ; healed++ {
		err := a.sealOnce(ctx, leases)
		if err == nil {
			sealed = true
			return leases, nil
		}
		if _, final := errors.AsType[*sealError](err); final {
			return nil, err
		}
		n, last := leases.behindFence(err)
		switch {
		case n < 0 && IsLost(err):
			return nil, &sealError{err, true} // another holder has the fence
		case n < 0 || healed == len(leases):
			return nil, err
		}
		fresh, healErr := a.healed(ctx, leases[n], last)
		if healErr != nil {
			err = fmt.Errorf("%w; it was not healed: %w", err, healErr)
			return nil, &sealError{err, errors.Is(healErr, ErrLost)}
		}
		leases[n] = fresh
	}
}

// sealOnce calls Config.Seal. No lease is renewed meanwhile, so a process that does not reach the
// data store keeps its resources for no longer than one TTL.
func (a *acquisition) sealOnce(ctx context.Context, leases Leases) error {
	until := leases[0].renewNot()
	for _, l := range leases[1:] {
		if end := l.renewNot(); end.Before(until) {
			until = end
		}
	}
	// The margin is for the answer of a store that bounds itself by the lease.
	ctx, cancel := context.WithDeadlineCause(ctx, until.Add(a.core.cfg.Margin), errNotSealed)
	defer cancel()
	grants := make([]Grant, len(leases))
	for n, l := range leases {
		grants[n] = l
	}
	err := a.core.cfg.Seal(ctx, grants...)
	switch over := leases.lost(); {
	case err != nil && context.Cause(ctx) == errNotSealed && (!IsLost(err) || errors.Is(err, context.DeadlineExceeded)):
		err = fmt.Errorf("%w (%v): %w", errNotSealed, a.core.cfg.TTL, err)
		return fmt.Errorf("lease: seal %q: %w", leases[0].resource, &sealError{err, false})
	case err != nil:
		return fmt.Errorf("lease: seal %q: %w", leases[0].resource, err)
	case over != nil: // that has taken longer than they last
		return fmt.Errorf("lease: seal: %w", &sealError{over, false})
	}
	for _, l := range leases {
		l.renewAgain()
	}
	return nil
}

// errNotSealed is the end of the time for sealing.
var errNotSealed = errors.New("the data store has not answered within the TTL of the lease")

// errBeginAnew is asked of an error: an acquisition that waits has given back and may queue again.
var errBeginAnew = errors.New("lease: begin anew")

// sealError is one of sealing that says whether to begin anew.
type sealError struct {
	error
	anew bool
}

func (e *sealError) Unwrap() error        { return e.error }
func (e *sealError) Is(target error) bool { return e.anew && target == errBeginAnew }

// behindFence is the lease that err says is behind the fence of the data store, and the token
// there; -1 if there is none.
func (ls Leases) behindFence(err error) (n int, last int64) {
	passed, ok := errors.AsType[interface {
		error
		FencePassed() (resource string, last int64)
	}](err)
	if !ok {
		return -1, 0
	}
	resource, last := passed.FencePassed()
	if last < 1 || last >= protocol.MaxNumber {
		return -1, 0
	}
	return slices.IndexFunc(ls, func(l *Lease) bool { return l.resource == resource }), last
}

// healed exchanges one of the leases of this acquisition.
func (a *acquisition) healed(ctx context.Context, old *Lease, floor int64) (fresh *Lease, err error) {
	t := old.trace(ctx, OpHeal)
	defer func() {
		var leases Leases
		if fresh != nil {
			leases = Leases{fresh}
		}
		leases.endTracing(&t, err)
	}()
	h := &acquisition{core: a.core, caller: a.caller, resources: []string{old.resource},
		keys: []*protocol.Keys{old.term.keys}, id: uuid.New(), call: newCall(a.core.label), behind: a.behind, asked: true}
	return h.heal(t.ctx, old, floor)
}

// renewNot keeps the lease from being renewed, and says when it ends.
func (l *Lease) renewNot() (until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unsealed = true
	l.core.watchdog.forget(l)
	return l.validUntil
}

// renewAgain has the lease renewed from now on.
func (l *Lease) renewAgain() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unsealed = false
	if l.ended == nil {
		l.core.watchdog.watch(l, l.validUntil.Add(l.core.cfg.Margin-l.core.cfg.TTL))
	}
}
