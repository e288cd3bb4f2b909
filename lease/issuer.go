package lease

import (
	"context"
	"errors"
	"slices"

	"github.com/redis/go-redis/v9"

	protocol "github.com/fencedb/fencedb/lease/internal/redis"
)

// Issuer grants leases. One per process and [Config] is enough; it is safe for concurrent use. What runs in the
// background ends with the last lease and the last waiter; a program that shuts down calls [Issuer.Close], so that
// nothing stays blocked behind it.
type Issuer struct {
	*core
}

// New checks the configuration; errors are [ErrInvalid] and name the field. It does not talk to Redis. The client stays the
// caller's: it is not closed here, and its own retries are not used.
func New(client redis.UniversalClient, cfg Config) (*Issuer, error) {
	if client == nil {
		return nil, protocol.Invalid("client is nil")
	}
	return newIssuer(newSingle(client, cfg.withDefaults()), cfg)
}

func newIssuer(s store, cfg Config) (*Issuer, error) {
	c, err := newCore(s, cfg)
	if err != nil {
		return nil, err
	}
	return &Issuer{c}, nil
}

// NewQuorum makes an issuer over several independent Redis servers, an odd number of at least three; a lease is what a majority grants
// (the algorithm called Redlock). Its tokens rise as those of one Redis do: the greatest that any member issued is made known to
// a majority before the lease is returned, and every later majority shares a member with that one.
//
// It adds availability: leases go on while a minority of the members is down. It does not add safety where the store of the data
// checks tokens, and without such a store it is no safer than what its clocks and pauses allow. A member that has lost its data
// must stay away for as long as a lease lasts, or two may hold the resource; tokens keep rising then by the members' clocks.
//
// In contrast to one Redis, there is no queue: an order of arrival would have to be agreed on by a majority as well, for each waiter that
// comes and goes, and a wake-up that reaches several would make them split the vote. So waiters ask again at random
// intervals, of 10 ms at first and of 1.5 s at most, until one finds a majority free; none is overtaken for ever, and none
// has a turn. An attempt that fails to win a majority uses up tokens. [Config.Replicas] has no place.
func NewQuorum(clients []redis.UniversalClient, cfg Config) (*Issuer, error) {
	if len(clients) < 3 || len(clients)%2 == 0 {
		return nil, protocol.Invalid("%d clients; a quorum takes an odd number of at least 3", len(clients))
	}
	if cfg.Replicas != 0 {
		return nil, protocol.Invalid("Replicas (%d) does not go with a quorum, whose members are independent", cfg.Replicas)
	}
	q := &quorum{need: len(clients)/2 + 1, patience: cfg.withDefaults().RenewTimeout / 2}
	for n, client := range clients {
		if client == nil {
			return nil, protocol.Invalid("client %d is nil", n)
		}
		q.members = append(q.members, newSingle(client, cfg.withDefaults()))
	}
	return newIssuer(q, cfg)
}

// ready refuses an Issuer that New has not made.
func (i *Issuer) ready() error {
	if i == nil || i.core == nil {
		return protocol.Invalid("the Issuer was not made by lease.New or lease.NewQuorum")
	}
	return nil
}

// acquisition begins one of this issuer, for one resource or several.
func (i *Issuer) acquisition(ctx context.Context, resources []string, opts []Option) (*acquisition, error) {
	if err := i.ready(); err != nil {
		return nil, err
	}
	return newAcquisition(ctx, i.core, resources, opts)
}

// maxResources bounds one acquisition of several resources, and with it how long one script keeps Redis busy.
const maxResources = 1000

// several puts the resources in the order that everyone keeps to.
func (i *Issuer) several(ctx context.Context, resources []string, opts []Option) (*acquisition, error) {
	resources = slices.Clone(resources)
	slices.Sort(resources)
	resources = slices.Compact(resources)
	switch {
	case len(resources) == 0:
		return nil, protocol.Invalid("no resources")
	case len(resources) > maxResources:
		return nil, protocol.Invalid("%d resources, more than %d: lease what contains them", len(resources), maxResources)
	}
	return i.acquisition(ctx, resources, opts)
}

// TryAcquire asks once and does not wait: [ErrHeld] with the time after which to ask again, if another holds the resource.
//
// A request that goes unanswered is sent again, twice at most and within one TTL, with the same lease id; so an answer
// that was lost does no harm. Cancelling ctx ends the attempt at once; what it may have been granted is given back
// behind the call, for as long as that can matter, and [Issuer.Close] waits for it. After the return ctx has no
// influence on the lease. Every error means that this call holds nothing, except that after [ErrUnreachable] the
// resource may stay blocked for up to one TTL.
func (i *Issuer) TryAcquire(ctx context.Context, resource string, opts ...Option) (*Lease, error) {
	a, err := i.acquisition(ctx, []string{resource}, opts)
	if err != nil {
		return nil, err
	}
	leases, err := a.run(ctx, a.try)
	return leases.first(), err
}

// Acquire waits until it is its turn: first come, first served. Waiters of one process stand in a line there, and the
// first of each line stands in Redis's queue; a release grants to the first of that who listens. News that is lost
// costs at most five seconds. A waiter that has died costs nobody more than half a second, one that is stopped a
// second.
//
// The context bounds the waiting, and [WaitAtMost] does. When it ends, the error is [ErrHeld] as well as the reason why
// it ended, if the last that was heard is that another holds the resource; the waiter leaves the queue behind the call.
// An outage of Redis, such as a fail-over or a server that hangs, is sat out for one TTL from the first request that it
// leaves without an answer, and no longer. Otherwise Acquire is like [Issuer.TryAcquire].
func (i *Issuer) Acquire(ctx context.Context, resource string, opts ...Option) (*Lease, error) {
	a, err := i.acquisition(ctx, []string{resource}, opts)
	if err != nil {
		return nil, err
	}
	if a.noWait {
		leases, err := a.run(ctx, a.try)
		return leases.first(), err
	}
	leases, err := a.run(ctx, func(ctx context.Context) (Leases, error) {
		waiting, cancel := a.limit(ctx)
		defer cancel()
		return a.wait(waiting)
	})
	return leases.first(), err
}

// TryAcquireAll acquires all resources, or none. It does not wait: [ErrHeld] names the first that is not free. Up to 1000
// resources; one that is named twice counts once.
//
// On one Redis the answer is one script's. On a Cluster, where resources live on different shards, they are acquired one after the
// other, always in the same order, and given back if one is refused.
func (i *Issuer) TryAcquireAll(ctx context.Context, resources []string, opts ...Option) (Leases, error) {
	a, err := i.several(ctx, resources, opts)
	if err != nil {
		return nil, err
	}
	return a.run(ctx, a.tryAll)
}

// AcquireAll acquires all resources, or none, waiting for those that are not free, bounded by ctx and [WaitAtMost] over the whole.
// While it waits for one it holds those that come before it in the order of their bytes; since everyone keeps to that order,
// two acquisitions cannot wait for each other. Otherwise it is like [Issuer.TryAcquireAll].
func (i *Issuer) AcquireAll(ctx context.Context, resources []string, opts ...Option) (Leases, error) {
	a, err := i.several(ctx, resources, opts)
	if err != nil {
		return nil, err
	}
	if a.noWait {
		return a.run(ctx, a.tryAll)
	}
	return a.run(ctx, a.waitAll)
}

// Do acquires the resource, waiting if it must, runs fn and gives the lease back, also when fn panics. The context that fn gets ends
// with ctx or with the lease, whichever is first; [context.Cause] tells which.
//
// Nil means that fn returned nil and that the lease held, by this process's clock, until it did. If the lease was lost
// while fn ran, the error is the cause, joined with what fn returned: another holder may have worked at the same time,
// and what fn wrote without fencing may have met with it. A release that Redis does not answer, or refuses for a
// moment, is not an error: it is tried again behind Do, and in the end the lease runs out by itself. When ctx is over,
// Do returns as soon as fn has.
func (i *Issuer) Do(ctx context.Context, resource string, fn func(ctx context.Context, l *Lease) error, opts ...Option) (err error) {
	l, err := i.Acquire(ctx, resource, opts...)
	if err != nil {
		return err
	}
	defer func() {
		if lost := l.finish(ctx); lost != nil {
			err = errors.Join(err, lost)
		}
	}()

	work, stop := l.Bind(ctx)
	defer stop()
	return fn(work, l)
}

// DoAll is [Issuer.Do] for several resources. The context that fn gets ends with any of the leases.
func (i *Issuer) DoAll(ctx context.Context, resources []string, fn func(ctx context.Context, ls Leases) error, opts ...Option) (err error) {
	leases, err := i.AcquireAll(ctx, resources, opts...)
	if err != nil {
		return err
	}
	defer func() {
		if lost := leases.each(func(l *Lease) error { return l.finish(ctx) }); lost != nil {
			err = errors.Join(err, lost)
		}
	}()
	work, stop := leases.Bind(ctx)
	defer stop()
	return fn(work, leases)
}

// finish releases the lease after the work and returns why the work was not covered by it to its end, if so.
func (l *Lease) finish(ctx context.Context) error {
	over := l.Err()
	err := l.Release(ctx)
	switch {
	case errors.Is(over, ErrReleased): // by fn itself
		return nil
	case over != nil:
		return over
	case protocol.Transient(err):
		return nil
	}
	return err
}

// Close ends the issuer's work in good order, for a program that shuts down. Acquisitions fail with [ErrClosed] from
// now on, also those that wait; every lease that is held ends, with [ErrReleased], and is released; and what earlier
// calls have left to be given back is waited for. Nothing of the issuer runs on when it returns nil.
//
// When ctx ends first, the error is a [*NotGivenBackError] that names what could not be given back yet, and until when
// it stays blocked at most. Giving back goes on until then; calling Close again waits for it again. Close may be called
// by several at once. The client is left open: close it afterwards. Work that goes on under a lease has to end before
// Close, or is told so by the end of the lease's context.
func (i *Issuer) Close(ctx context.Context) error {
	if err := i.ready(); err != nil {
		return err
	}
	i.registry.close(ErrClosed)
	for _, l := range i.registry.allHeld() {
		l.giveBack(ctx)
	}
	for {
		idle := i.registry.busy()
		if idle == nil {
			break
		}
		select {
		case <-idle:
		case <-ctx.Done():
			return i.registry.left(context.Cause(ctx))
		}
	}
	i.lines.close()
	i.store.stopListening()
	return i.registry.left(nil)
}
