package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fencedb/fencedb/internal/protocol"
)

// seal calls Config.Seal with all leases, before their holder gets them. No lease is renewed
// meanwhile, so a process that does not reach the data store keeps its resources for one TTL at
// most. If Seal fails or panics, all leases are released; again reports whether the acquisition may
// then ask once more.
func (a *acquisition) seal(ctx context.Context, leases Leases) (_ Leases, again bool, err error) {
	if a.core.cfg.Seal == nil {
		return leases, false, nil
	}
	kept := false
	defer func() {
		if !kept {
			a.giveBack(ctx, leases)
		}
	}()
	grants := make([]Grant, len(leases))
	until := leases[0].ValidUntil()
	for n, l := range leases {
		grants[n] = l
		if end := l.renewNot(); end.Before(until) {
			until = end
		}
	}
	// A store that itself stops at the end of the lease has the margin to answer so.
	sealing, cancel := context.WithDeadlineCause(ctx, until.Add(a.core.cfg.Margin), errNotSealed)
	defer cancel()
	err = a.core.cfg.Seal(sealing, grants...)
	over := leases.lost()
	switch {
	case err != nil && context.Cause(sealing) == errNotSealed &&
		(!IsLost(err) || errors.Is(err, context.DeadlineExceeded)):
		if IsLost(err) { // the lease is over because of the deadline, which says nothing about other holders
			err = fmt.Errorf("%w (%v)", context.DeadlineExceeded, err)
		}
		err = fmt.Errorf("%w (%v): %w", errNotSealed, a.core.cfg.TTL, err)
	case err != nil:
		again, err = a.notSealed(ctx, leases, over, err)
	case over != nil: // that is, sealing took longer than the leases last
		err = over
	}
	if err != nil {
		return nil, again, protocol.Also(fmt.Errorf("lease: seal %q: %w", leases[0].resource, err), errSeal)
	}
	for _, l := range leases {
		l.renewAgain()
	}
	kept = true
	return leases, false, nil
}

// errSeal is every error of sealing, for tracers.
var errSeal = errors.New("lease: not sealed")

// errNotSealed is the cause of a context for sealing whose time is over.
var errNotSealed = errors.New("the data store has not answered within the TTL of the lease")

// notSealed reports whether the acquisition may ask once more after that error of the data store.
// It may if it waits and another holder is in the way. It may also if the fence is ahead of a lease
// that stands: then Redis has lost tokens, and notSealed first raises its last token, once for each
// resource.
func (a *acquisition) notSealed(ctx context.Context, leases Leases, over, err error) (again bool, _ error) {
	passed, ok := errors.AsType[interface {
		error
		FencePassed() (resource string, last int64)
	}](err)
	if !ok || over != nil {
		return !a.noWait && IsLost(err), err
	}
	resource, last := passed.FencePassed()
	ours := slices.ContainsFunc(leases, func(l *Lease) bool { return l.resource == resource })
	if !ours || a.raised == len(a.resources) {
		return false, err
	}
	a.raised++
	if _, raiseErr := a.core.raise(ctx, resource, last); raiseErr != nil {
		return false, fmt.Errorf("%w; the last token was not raised: %w", err, raiseErr)
	}
	return true, err
}

// renewNot stops the renewal of the lease, and returns when the lease ends.
func (l *Lease) renewNot() (until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unsealed = true
	l.core.watchdog.forget(l)
	return l.validUntil
}

// renewAgain resumes the renewal of the lease.
func (l *Lease) renewAgain() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unsealed = false
	if l.ended == nil {
		l.core.watchdog.watch(l, l.validUntil.Add(l.core.cfg.Margin-l.core.cfg.TTL))
	}
}
