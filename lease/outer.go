package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	protocol "github.com/fencedb/fencedb/lease/internal/redis"
)

// OuterLock is a lock of another kind that [Config.Outer] has taken. Its functions are not called
// at the same time.
type OuterLock struct {
	// Renew makes the lock last for the TTL of the lease from now. After an error it is called again,
	// until the time of the lock is over; then the lease ends, with [ErrExpired]. Required.
	Renew func(ctx context.Context) error

	// Release gives the lock back. It is called once, after the lease was released. After an error
	// the lock is left to expire. Required.
	Release func(ctx context.Context) error
}

// outerPoll is how often a lock that is taken is asked for again, less up to a fifth.
const outerPoll = 50 * time.Millisecond

// outer keeps a lock of another kind from before its lease is asked for until that is over. Its
// methods do nothing on nil, a lease without such a lock.
type outer struct {
	lock OuterLock
	core *core
	ctx  context.Context // ends when the lock is lost, with the reason, or not needed any more
	end  context.CancelCauseFunc
	quit chan struct{} // closed when Renew is not called any more
	once sync.Once     // calls Release

	mu     sync.Mutex
	until  time.Time   // guarded by mu; trusted as that of a lease is
	expiry *time.Timer // calls expire at that time; guarded by mu
	last   error       // of the latest Renew; guarded by mu
}

// takeOuter takes the lock around each of the resources, in their order, or none.
func (a *acquisition) takeOuter(ctx context.Context) ([]*outer, error) {
	if a.core.cfg.Outer == nil {
		return nil, nil
	}
	var all []*outer
	began := time.Now()
	waiting, cancel := a.limit(ctx)
	defer cancel()
	for _, resource := range a.resources {
		o, err := a.waitOuter(waiting, resource)
		if err != nil {
			a.giveBackOuter(all)
			return nil, err
		}
		all = append(all, o)
	}
	a.spent = time.Since(began)
	return all, nil
}

func (a *acquisition) waitOuter(ctx context.Context, resource string) (*outer, error) {
	held := &HeldError{Resource: resource, RetryAfter: outerPoll}
	for refused := false; ; refused = true {
		o, err := a.askOuter(a.asking(ctx), resource)
		switch {
		case err == nil:
			return o, nil
		case refused && ctx.Err() != nil: // nothing is known since
		case !errors.Is(err, ErrHeld):
			return nil, fmt.Errorf("the lock around %q: %w", resource, err)
		case a.noWait:
			return nil, held
		case protocol.Sleep(ctx, protocol.Jitter(outerPoll)):
			continue
		}
		held.Cause = context.Cause(ctx)
		return nil, held
	}
}

// askOuter tries once. A lock that is taken when the caller has gone is given back.
func (a *acquisition) askOuter(ctx context.Context, resource string) (*outer, error) {
	var late struct {
		lock OuterLock
		err  error
	}
	sent := time.Now()
	lock, err := protocol.Bounded(ctx, func() (OuterLock, error) {
		late.lock, late.err = a.core.cfg.Outer(ctx, resource, a.core.cfg.TTL)
		if late.err == nil && (late.lock.Renew == nil || late.lock.Release == nil) {
			late.err = protocol.Invalid("Config.Outer returned a lock without Renew or Release")
		}
		return late.lock, late.err
	}, func() func() {
		d := a.core.registry.owe(new(debt), a.core.cfg.TTL, resource)
		return func() {
			if late.err == nil && late.lock.Release != nil {
				a.core.releaseOuter(late.lock)
			}
			d.settle(nil)
		}
	})
	if err != nil {
		return nil, err
	}
	return a.core.keepOuter(lock, sent), nil
}

func (c *core) releaseOuter(lock OuterLock) {
	ctx, cancel := protocol.Within(context.Background(), c.cfg.RenewTimeout)
	defer cancel()
	_ = lock.Release(ctx) // if it fails, the lock expires
}

// keepOuter renews a lock that was asked for at that time, until it is stopped.
func (c *core) keepOuter(lock OuterLock, sent time.Time) *outer {
	o := &outer{lock: lock, core: c, quit: make(chan struct{}), until: c.trustedUntil(sent, c.cfg.TTL)}
	o.ctx, o.end = context.WithCancelCause(context.Background())
	o.mu.Lock() // the timer may fire before it is stored
	defer o.mu.Unlock()
	o.expiry = time.AfterFunc(time.Until(o.until), o.expire)
	go o.keep()
	return o
}

func (o *outer) keep() {
	defer close(o.quit)
	pause := o.core.cfg.RenewEvery
	for protocol.Sleep(o.ctx, protocol.Jitter(pause)) {
		sent := time.Now()
		ctx, cancel := protocol.Within(o.ctx, o.core.cfg.RenewTimeout)
		err := o.lock.Renew(ctx)
		cancel()
		o.mu.Lock()
		o.last = err
		pause = o.core.cfg.RenewEvery / 4
		if err == nil {
			pause = o.core.cfg.RenewEvery
			o.until = o.core.trustedUntil(sent, o.core.cfg.TTL)
			o.expiry.Reset(time.Until(o.until))
		}
		o.mu.Unlock()
	}
}

// expire ends the lock when its time is over, unless that has moved on.
func (o *outer) expire() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !time.Now().Before(o.until) {
		o.end(o.expired())
	}
}

// expired is why the lock may not be trusted any more. The caller holds mu.
func (o *outer) expired() error {
	if o.last == nil {
		return fmt.Errorf("%w: the lock around it was not renewed in time", ErrExpired)
	}
	return fmt.Errorf("%w: the lock around it was not renewed: %w", ErrExpired, o.last)
}

// why is expired for a lease that ends with the lock.
func (o *outer) why() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.expired()
}

// bound is the end of a lease that lasts until t at most.
func (o *outer) bound(t time.Time) time.Time {
	if o == nil {
		return t
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.until.Before(t) {
		return o.until
	}
	return t
}

// stop ends the renewals.
func (o *outer) stop() {
	if o == nil {
		return
	}
	o.end(ErrReleased)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.expiry.Stop()
}

// release gives the lock back, once.
func (o *outer) release() {
	if o == nil {
		return
	}
	o.stop()
	o.once.Do(func() {
		<-o.quit
		o.core.releaseOuter(o.lock)
	})
}

// giveBackOuter releases locks under which no lease was granted, behind the call.
func (a *acquisition) giveBackOuter(all []*outer) {
	for n, o := range all {
		o.stop()
		release := func(context.Context) error { o.release(); return nil }
		a.behind.debts = append(a.behind.debts, a.core.registry.giveBack(a.caller, a.core.cfg.TTL, release, a.resources[n]))
	}
}

// under asks for the leases under the locks that were taken around them, which then belong to the
// leases.
func (a *acquisition) under(ctx context.Context, all []*outer) (Leases, error) {
	if all == nil {
		return a.obtain(ctx)
	}
	asking, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for _, o := range all {
		defer context.AfterFunc(o.ctx, func() { cancel(context.Cause(o.ctx)) })()
	}
	obtained := false
	defer func() {
		if !obtained { // also if a tracer panics
			a.giveBackOuter(all)
		}
	}()
	leases, err := a.obtain(asking)
	if err != nil {
		return nil, err
	}
	obtained = true
	for n, l := range leases {
		l.under(all[n])
	}
	if err := leases.lost(); err != nil {
		a.behind.giveBack(ctx, leases...)
		return nil, err
	}
	return leases, nil
}

// under makes the lock that of the lease: each ends with the other.
func (l *Lease) under(o *outer) {
	if o == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.outer = o
	if l.ended != nil {
		o.stop()
		return
	}
	context.AfterFunc(o.ctx, func() { _ = l.Err() }) // reads the clock
}
