package lease

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/internal/protocol"
)

// Issuer grants leases. One per process and [Config] is enough; it is safe for concurrent use. Its
// background work ends soon after the last lease and the last waiter. A program that shuts down
// calls [Issuer.Close], so that no resource stays blocked.
type Issuer struct {
	*core
	opts []Option // from With
}

// core is what the leases and acquisitions of one Issuer share.
type core struct {
	cfg      Config
	store    *store
	watchdog *watchdog
	lines    *lines
	registry *registry
	names    *names
}

// names caches the keys of the resources that were used lately.
type names struct {
	mu   sync.Mutex
	keys map[string]*protocol.Keys // guarded by mu
}

// New makes an issuer. It checks the configuration: errors are [ErrInvalid] and name the field. It
// does not contact Redis.
//
// The client is a *redis.Client or a *redis.ClusterClient. The issuer neither closes it nor uses
// its retries. A wrapper is refused, because it hides how to wake waiters; add a hook to the client
// instead. A panic in a hook fails the request. A ClusterClient with its own ClusterSlots option
// counts as a client of plain servers, such as a Sentinel group that is read by latency;
// [Issuer.Check] finds out if that is wrong.
//
// Requests that are sent at the same time share a pipeline, except on a Cluster; so a hook of the
// client sees pipelines as well. Each request is bounded by its own context and waits for no other.
// A request that is sent again shares no pipeline. A call hands its requests to another goroutine,
// because it has to return when its context ends and the client may not. With ContextTimeoutEnabled
// in the client's options, a call whose context cannot end, such as [context.Background], sends
// them itself while few requests are under way.
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
		watchdog: &watchdog{store: s, cfg: cfg, due: make(map[*Lease]time.Time)},
		lines:    &lines{subscribe: s.subscribe, byChannel: make(map[string]*line)},
		registry: newRegistry(s.redis, cfg.TTL),
		names:    &names{keys: make(map[string]*protocol.Keys)},
	}}, nil
}

// ready refuses an Issuer that was not made by New, and invalid names of resources.
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

// keys returns the names of a resource in Redis.
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

// With returns an issuer that applies the options to every acquisition, before the options of the
// call itself. guard.Desk's Exec, Query and QueryRow, which take none, get options in this way:
//
//	impatient := guard.New(issuer.With(lease.NoWait()), pool)
//	tag, err := impatient.Exec(ctx, "table:12", `UPDATE ...`)
//
// Everything else is shared with i: its leases, and [Issuer.Close]. [Issuer.Lead] waits as it
// always does. A call refuses [WaitAtMost] together with [NoWait], even if one comes from With.
func (i *Issuer) With(opts ...Option) *Issuer {
	if i == nil {
		return nil // refused by every method
	}
	return &Issuer{i.core, slices.Concat(i.opts, opts)}
}

// Sealed returns an issuer with seal as its [Config.Seal], also for [Issuer.Lead]; if i has one
// already, that runs first, since seal may be of another data store. Everything else is shared with
// i: its leases, its waiters, and [Issuer.Close]. Package guard uses it for work that has to be
// sealed.
func (i *Issuer) Sealed(seal func(ctx context.Context, grants ...Grant) error) *Issuer {
	if i == nil || i.core == nil || seal == nil {
		return i
	}
	sealing, first := *i.core, i.cfg.Seal
	sealing.cfg.Seal = func(ctx context.Context, grants ...Grant) error {
		if first != nil {
			if err := first(ctx, grants...); err != nil {
				return err
			}
		}
		return seal(ctx, grants...)
	}
	return &Issuer{&sealing, i.opts}
}

// Acquire acquires a lease on the resource. It waits for its turn: first come, first served. The
// package documentation describes how, under "Waiting".
//
// ctx bounds the waiting, and so does [WaitAtMost]. If the time ends while the resource seems to be
// held, the error is [ErrHeld] and also the cause of the context; the waiter leaves the queue in
// the background. With [NoWait], Acquire asks once, and [HeldError] has the time after which to ask
// again. Acquire waits through an outage of Redis, such as a fail-over or a server that hangs, for
// one TTL from the first request without an answer.
//
// A request without an answer is sent again with the same lease id, so a lost answer does no harm.
// With [NoWait] it is sent three times at most, within one TTL. If ctx is cancelled, Acquire
// returns at once; a lease that it may have got is released in the background, until the TTL is
// over, and [Issuer.Close] waits for that. After Acquire has returned, the end of ctx has no effect
// on the lease. Every error means that this call holds nothing. After [ErrUnreachable] the resource
// may stay blocked for up to one TTL.
func (i *Issuer) Acquire(ctx context.Context, resource string, opts ...Option) (*Lease, error) {
	leases, err := i.acquire(ctx, []string{resource}, opts)
	return leases.first(), err
}

// AcquireAll acquires leases on all resources, or none. It takes 1 to 1000 resources; one that is
// named twice counts once. It waits for the resources that are not free; ctx and [WaitAtMost] bound
// the whole call. While it waits for one resource, it holds those before it in byte order. Every
// acquisition keeps this order, so two of them cannot wait for each other. With [NoWait] it does
// not wait, and [ErrHeld] names the first resource that is not free.
//
// If all are free, they are acquired in one request. On a Cluster, where resources live on
// different shards, they are acquired one after the other in byte order, and released if one is
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

// Do acquires a lease on the resource, as [Issuer.Acquire] does, runs fn under it, and releases the
// lease, even if fn panics. The context of fn ends with ctx or with the lease, whichever is first;
// [context.Cause] returns the reason.
//
// What Do returns:
//
//   - nil: fn returned nil, and until then, or until fn released it, the lease was valid by this
//     process's clock.
//   - [ErrWorkDone]: fn returned nil, but the lease was lost while fn ran, or Redis refused the
//     release. What fn wrote behind a fence stands; what it wrote without one may conflict with
//     another holder's work.
//   - The error of fn, joined with the cause of the loss if the lease was lost, or with the refusal
//     of the release: [IsLost] reports whether to answer "busy".
//   - The cause of the loss, if the process was stopped and lost the lease before fn began. fn was
//     not run.
//   - The error of the acquisition. fn was not run.
//
// A release that Redis does not answer, or refuses for a moment, is not an error. Do waits for its
// first attempt, for at most a quarter of the TTL and at most three seconds; more attempts go on in
// the background, and in the end the lease expires in Redis. If ctx is over, Do waits for 30 ms at
// most; if the lease is over, it does not wait.
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

// DoAll is [Issuer.Do] for several resources. The context of fn ends with the first of the leases
// that ends.
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

// Close ends the issuer's work, for a program that shuts down. From now on, acquisitions fail with
// [ErrClosed], also those that wait. Every lease ends, with a cause that is both [ErrReleased] and
// [ErrClosed], and is released. Close waits for these releases, and for those that earlier calls
// have left in the background. When it returns nil, nothing is held, nothing waits, and nothing
// more is sent. A connection on which waiters listened closes a moment later, and a renewal that
// was under way ends within [Config.RenewTimeout].
//
// If ctx ends first, or Redis refuses a release, the error is a [*NotGivenBackError]. It names the
// resources that were not released, a hundred at most, and when each of them is free at the latest.
// Unanswered releases go on until then; another Close waits for them again. If ctx ends and only
// calls are left that have not ended yet, the error is the cause of ctx, with a text that says so.
// Close is safe for concurrent use. It does not close the client: close that afterwards. End the
// work under the leases before Close, because their contexts end with it.
func (i *Issuer) Close(ctx context.Context) error {
	if err := i.ready(); err != nil {
		return err
	}
	if i.registry.close() {
		ended := make(chan struct{})
		go i.registry.releaseAll(context.WithoutCancel(ctx), ended)
		_, _ = protocol.Await(ctx, ended) // even if ctx is over, all leases end before Close returns
	}
	for !i.registry.wait(ctx) {
		if err := i.registry.left(context.Cause(ctx)); err != nil { // nil if the last release has just ended
			return err
		}
	}
	i.lines.close()
	return i.registry.left(nil)
}
