package lease

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/fencedb/fencedb/internal/protocol"
)

// LeadOption changes one [Issuer.Lead].
type LeadOption func(*campaign)

// OnFollow sets a function that Lead calls with the leader's [Config.Holder] when it finds that
// another process leads, and when the leader changes. It learns of a change within one TTL and five
// seconds. report is called on the goroutine of Lead.
func OnFollow(report func(leader string)) LeadOption { return func(c *campaign) { c.follows = report } }

// OnTerm sets a function that Lead calls when a term of this process has ended, and when a campaign
// has failed. err is what [Issuer.Do] would return. The last term, which ends with the context of
// Lead, is reported too, because its work may be unfinished. report is called on the goroutine of
// Lead.
func OnTerm(report func(err error)) LeadOption { return func(c *campaign) { c.ended = report } }

// Lead is for a role that one process has at a time, such as a scheduler. It waits for the lease on
// role (a campaign), runs fn under the lease (a term), releases the lease when fn returns, and
// begins again, until ctx ends.
//
//	err := issuer.Lead(ctx, "role:report-builder", func(ctx context.Context, l *lease.Lease) error {
//		for ctx.Err() == nil { ... } // under ctx, which ends with the term; behind the fence with l
//		return nil
//	}, lease.OnTerm(func(err error) { log.Print("role:report-builder: ", err) }))
//
// The context of fn ends with ctx or with the lease, whichever is first; [context.Cause] returns
// the reason. Then fn has to return soon, because another process may lead from then on, and Lead
// waits for fn before it campaigns again. No lease holds back a leader that was stopped and goes on
// late; the fence refuses its writes. A term ends after [Config.MaxHold], which defaults to one
// hour: leaders usually want [Unlimited].
//
// Lead returns [context.Cause] of ctx when ctx has ended and fn has returned, joined with the error
// of the last campaign if that failed; [ErrClosed] after [Issuer.Close]; and [ErrInvalid] if the
// role or an option was refused. Every other error, such as a Redis that does not answer, is
// reported to [OnTerm], and Lead tries again after a pause. The pause is a tenth of the TTL at
// first, and doubles up to three TTLs; each is up to a fifth shorter, at random. After a term of at
// least three TTLs it is a tenth of the TTL again. So a leader that always fails at once leads
// about once in three TTLs, and others get their turn meanwhile. [OnFollow] reports who leads, and
// any process can ask [Issuer.Inspect]. If fn panics, the lease is released and the panic goes on.
func (i *Issuer) Lead(ctx context.Context, role string,
	fn func(ctx context.Context, l *Lease) error, opts ...LeadOption) error {
	if err := i.ready(); err != nil {
		return err
	}
	ttl := i.cfg.TTL
	c := &campaign{Issuer: &Issuer{core: i.core}, role: role, fn: fn, follows: func(string) {}, ended: func(error) {},
		least: max(ttl/10, time.Millisecond), most: 3 * min(ttl, math.MaxInt64/3)}
	for _, opt := range opts {
		opt(c)
	}
	if fn == nil || c.follows == nil || c.ended == nil {
		return protocol.Invalid("a function is nil")
	}
	return c.run(ctx)
}

// campaign is one call of Lead.
type campaign struct {
	*Issuer
	role        string
	fn          func(ctx context.Context, l *Lease) error
	least, most time.Duration
	follows     func(leader string)
	ended       func(err error)

	leader string // the last that follows was called with; "" after a term of this process
	failed error  // of the last campaign; nil if it was won, or if another process leads
}

// over is what Lead returns when ctx has ended.
func (c *campaign) over(ctx context.Context) error {
	if c.failed == nil {
		return context.Cause(ctx)
	}
	return protocol.Join(context.Cause(ctx), c.failed)
}

func (c *campaign) run(ctx context.Context) error {
	for pause := c.least; ; pause = min(2*pause, c.most) {
		l, err := c.win(ctx)
		if err == nil {
			began := time.Now()
			c.leader, c.failed = "", nil
			err = Leases{l}.do(ctx, func(ctx context.Context) error { return c.fn(ctx, l) })
			if time.Since(began) >= c.most {
				pause = c.least
			}
		}
		switch {
		case l == nil && ctx.Err() != nil:
			return c.over(ctx)
		case l == nil && (errors.Is(err, ErrClosed) || errors.Is(err, ErrInvalid)):
			return err
		}
		if l == nil {
			c.failed = err
		}
		c.ended(err)
		if c.rest(ctx, pause); ctx.Err() != nil {
			return c.over(ctx)
		}
	}
}

// rest pauses. It returns early when ctx ends or Close begins.
func (c *campaign) rest(ctx context.Context, pause time.Duration) {
	call := new(openCall)
	ctx, err := c.registry.begin(ctx, call)
	if err != nil {
		return
	}
	defer c.registry.ended(call)
	protocol.Sleep(ctx, protocol.Jitter(pause))
}

// win waits until this process leads. It begins a new acquisition after each TTL, to learn who
// leads now.
func (c *campaign) win(ctx context.Context) (*Lease, error) {
	leads := func(o *options) { o.lead = true }
	l, err := c.Acquire(ctx, c.role, NoWait(), leads)
	for {
		held, refused := errors.AsType[*HeldError](err)
		if !refused || ctx.Err() != nil {
			return l, err
		}
		c.failed = nil
		if held.Holder != "" && held.Holder != c.leader {
			c.leader = held.Holder
			c.follows(held.Holder)
		}
		l, err = c.Acquire(ctx, c.role, WaitAtMost(c.cfg.TTL), leads)
	}
}
