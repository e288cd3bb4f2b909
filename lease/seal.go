package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fencedb/fencedb/internal/protocol"
)

// seal has Config.Seal seal all leases, before their holder learns that it holds. No lease is
// renewed meanwhile, so a process that does not reach the data store keeps its resources for no
// longer than one TTL. If sealing fails or panics, all are given back. again: the acquisition may
// begin anew then.
func (a *acquisition) seal(ctx context.Context, leases Leases) (_ Leases, again bool, err error) {
	if a.core.cfg.Seal == nil {
		return leases, false, nil
	}
	kept := false
	defer func() {
		if !kept {
			a.behind.giveBack(ctx, leases...)
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
	// The margin is for the answer of a store that bounds itself by the lease.
	sealing, cancel := context.WithDeadlineCause(ctx, until.Add(a.core.cfg.Margin), errNotSealed)
	defer cancel()
	err = a.core.cfg.Seal(sealing, grants...)
	over := leases.lost()
	switch {
	case err != nil && context.Cause(sealing) == errNotSealed &&
		(!IsLost(err) || errors.Is(err, context.DeadlineExceeded)):
		if IsLost(err) { // that the lease is over by now says nothing of other holders
			err = fmt.Errorf("%w (%v)", context.DeadlineExceeded, err)
		}
		err = fmt.Errorf("%w (%v): %w", errNotSealed, a.core.cfg.TTL, err)
	case err != nil:
		again, err = a.notSealed(ctx, leases, over, err)
	case over != nil: // that has taken longer than they last
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

// errNotSealed is the end of the time for sealing.
var errNotSealed = errors.New("the data store has not answered within the TTL of the lease")

// notSealed reports whether the acquisition may begin anew after that answer of the data store. One
// that waits may, if another holder has the fence. Where the fence has passed a lease that stands,
// Redis has gone back: then its last token is raised first, once for each resource.
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
