package lease

import (
	"context"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/internal/protocol"
)

// Issuer grants leases. One per process and [Config] is enough; it is safe for concurrent use. Its
// background work ends with the last lease and the last waiter. A program that shuts down calls
// [Issuer.Close], so that no resource stays blocked.
type Issuer struct {
	*core
	opts []Option // of With
}

// core is what the leases and acquisitions of one Issuer have in common.
type core struct {
	cfg      Config
	store    *store
	watchdog *watchdog
	lines    *lines
	registry *registry
	names    *names
}

// names remembers the names of the resources that were used lately.
type names struct {
	mu   sync.Mutex
	keys map[string]*protocol.Keys // guarded by mu
}

// New checks the configuration; errors are [ErrInvalid] and name the field. It does not talk to
// Redis. The client stays the caller's: the issuer neither closes it nor uses its retries. It is a
// *redis.Client or a *redis.ClusterClient. A wrapper is refused, because New cannot tell how its
// waiters are woken; add a hook to the client instead. A panic in a hook fails the request. A
// Cluster's client with ClusterSlots of its own counts as one of plain servers, such as a Sentinel
// group that is read by latency; Issuer.Check notices if that is wrong.
//
// With ContextTimeoutEnabled in the client's options, a call whose context cannot end, such as
// [context.Background], sends its requests itself, and so do renewals and what goes on in the
// background. Other requests are handed to a goroutine, since a call returns when its context ends
// and the client may not. Those that are handed over at the same time travel in one pipeline,
// except on a Cluster. None waits for others, each is bounded by its own context, and one that was
// not answered travels alone when it is sent again. So a hook of the client sees pipelines as well.
func New(client redis.UniversalClient, cfg Config) (*Issuer, error) {
	if err := checkClient(client); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	s := newStore(client, cfg)
	return &Issuer{core: &core{
		cfg:      cfg,
		store:    s,
		watchdog: &watchdog{store: s, cfg: cfg},
		lines:    &lines{subscribe: s.subscribe, byChannel: make(map[string]*line)},
		registry: newRegistry(s.redis, cfg.TTL),
		names:    &names{keys: make(map[string]*protocol.Keys)},
	}}, nil
}

// ready refuses an Issuer that was not made by New, and names that cannot be resources.
func (i *Issuer) ready(resources ...string) error {
	if i == nil || i.core == nil {
		return protocol.Invalid("an Issuer or a Semaphore is made by lease.New or lease.NewSemaphore")
	}
	for _, resource := range resources {
		if err := protocol.CheckRequired("resource", resource, "table:12", protocol.MaxResource); err != nil {
			return err
		}
	}
	return nil
}

// keys are the names of a resource in Redis.
func (c *core) keys(resource string) *protocol.Keys {
	c.names.mu.Lock()
	defer c.names.mu.Unlock()
	k, known := c.names.keys[resource]
	if !known {
		if len(c.names.keys) == mostNames {
			clear(c.names.keys)
		}
		k = protocol.KeysOf(c.cfg.kind(), c.cfg.Namespace, resource, c.cfg.HashResources)
		c.names.keys[resource] = k
	}
	return k
}

const mostNames = 1000

// With returns the issuer with options for every acquisition, before those of the call itself. It
// is how guard.Desk's Exec, Query and QueryRow get options: by a desk of their own.
//
//	impatient := guard.New(issuer.With(lease.NoWait()), pool)
//	tag, err := impatient.Exec(ctx, "table:12", `UPDATE ...`)
//
// All else is shared with i: its leases, and [Issuer.Close]. [Issuer.Lead] waits as it always does.
// A call refuses [WaitAtMost] together with [NoWait], wherever each comes from.
func (i *Issuer) With(opts ...Option) *Issuer {
	if i == nil {
		return nil // refused by every method
	}
	return &Issuer{i.core, slices.Concat(i.opts, opts)}
}

// Sealed returns the issuer with seal as its [Config.Seal], also for [Issuer.Lead], or i itself if
// its Config has one. All else is shared with i: its leases, its waiters, and [Issuer.Close].
// Package guard makes one for the work that has to be sealed.
func (i *Issuer) Sealed(seal func(ctx context.Context, grants ...Grant) error) *Issuer {
	if i == nil || i.core == nil || i.cfg.Seal != nil {
		return i
	}
	sealing := *i.core
	sealing.cfg.Seal = seal
	return &Issuer{&sealing, i.opts}
}

// Acquire waits for its turn: first come, first served. "Waiting" above says how.
//
// The context bounds the waiting, and so does [WaitAtMost]. If the time ends while another seems to
// hold the resource, the error is [ErrHeld] joined with why the context ended; the waiter leaves
// the queue in the background. With [NoWait], Acquire asks once: [ErrHeld] with the time after
// which to ask again. Acquire waits through an outage of Redis, such as a fail-over or a server
// that hangs, for one TTL from the first request without an answer.
//
// A request that goes unanswered is sent again with the same lease id; so a lost answer does no
// harm. With [NoWait] it is sent three times at most, within one TTL. Cancelling ctx ends the
// attempt at once; a lease that it may have got is released in the background, until the TTL is
// over; [Issuer.Close] waits for it. After the return, ctx has no influence on the lease. Every
// error means that this call holds nothing. After [ErrUnreachable] the resource may stay blocked
// for up to one TTL.
func (i *Issuer) Acquire(ctx context.Context, resource string, opts ...Option) (*Lease, error) {
	leases, err := i.acquire(ctx, []string{resource}, opts)
	return leases.first(), err
}

// AcquireAll acquires all resources, or none. Up to 1000 resources; one that is named twice counts
// once. It waits for the resources that are not free; ctx and [WaitAtMost] bound the whole. While
// it waits for one, it holds those that come before it in byte order. Every acquisition keeps that
// order, so two of them cannot wait for each other. With [NoWait] it does not wait: [ErrHeld] names
// the first that is not free.
//
// All free resources are acquired in one request. On a Cluster, where resources live on different
// shards, they are acquired one after the other, always in the same order, and released if one is
// refused.
func (i *Issuer) AcquireAll(ctx context.Context, resources []string, opts ...Option) (Leases, error) {
	resources = slices.Compact(slices.Sorted(slices.Values(resources)))
	switch {
	case len(resources) == 0:
		return nil, protocol.Invalid("no resources")
	case len(resources) > maxResources:
		return nil, protocol.Invalid("%d resources, more than %d: take a lease on what contains them", len(resources), maxResources)
	}
	return i.acquire(ctx, resources, opts)
}

// maxResources bounds one acquisition of several resources, and with it how long one script keeps
// Redis busy.
const maxResources = 1000

// Do acquires the resource, waits if necessary, runs fn and releases the lease, also when fn
// panics. The context of fn ends with ctx or with the lease, whichever is first; [context.Cause]
// tells which.
//
// Nil means that fn returned nil and that the lease was valid, by this process's clock, until then,
// or until fn released it. If a stopped process lost the lease before fn began, fn is not run, and
// the error is the cause. If fn returned nil and the lease was lost while it ran, the error is
// [ErrWorkDone]: what fn wrote behind a fence stands, what it wrote without one may conflict with
// another holder's work. If fn failed, the error is that of fn, and the cause of the loss if the
// lease was lost: [IsLost] tells if that means "busy". A release that Redis does not answer, or
// refuses for a moment, is not an error: Do waits for one attempt, a quarter of the TTL or three
// seconds at most. The others go on in the background, and in the end the lease expires in Redis.
// If ctx or the lease is over, Do returns as soon as fn returns.
func (i *Issuer) Do(ctx context.Context, resource string,
	fn func(ctx context.Context, l *Lease) error, opts ...Option) error {
	if fn == nil {
		return protocol.ErrNoFunction
	}
	l, err := i.Acquire(ctx, resource, opts...)
	if err != nil {
		return err
	}
	return Leases{l}.do(ctx, func(ctx context.Context) error { return fn(ctx, l) })
}

// DoAll is [Issuer.Do] for several resources. The context that fn gets ends with any of the leases.
func (i *Issuer) DoAll(ctx context.Context, resources []string,
	fn func(ctx context.Context, ls Leases) error, opts ...Option) error {
	if fn == nil {
		return protocol.ErrNoFunction
	}
	leases, err := i.AcquireAll(ctx, resources, opts...)
	if err != nil {
		return err
	}
	return leases.do(ctx, func(ctx context.Context) error { return fn(ctx, leases) })
}

// Close ends the issuer's work in good order, for a program that shuts down. Acquisitions fail with
// [ErrClosed] from now on, also those that wait; every lease that is held ends, with an error that
// is [ErrReleased] and [ErrClosed], and is released; and Close waits for the releases of earlier
// calls that go on in the background. When it returns nil, nothing is held, nothing waits, and
// nothing is sent any more. A connection on which waiters listened closes a moment later, and a
// renewal that was under way ends within [Config.RenewTimeout].
//
// If ctx ends first, the error is a [*NotGivenBackError] that names what could not be released yet,
// a hundred resources at most, and until when each stays blocked at most. The releases go on until
// then; calling Close again waits for them again. Close is safe for concurrent use. It does not
// close the client: close it afterwards. End the work under a lease before Close; the context of a
// lease ends with it.
func (i *Issuer) Close(ctx context.Context) error {
	if err := i.ready(); err != nil {
		return err
	}
	if i.registry.close() {
		ended := make(chan struct{})
		go i.registry.releaseAll(context.WithoutCancel(ctx), ended)
		_, _ = protocol.Await(ctx, ended) // also where ctx is over, the leases end with Close
	}
	for !i.registry.wait(ctx) {
		if err := i.registry.left(context.Cause(ctx)); err != nil { // or the last was settled at the same time
			return err
		}
	}
	i.lines.close()
	return i.registry.left(nil)
}
