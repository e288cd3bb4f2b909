// Package once runs a piece of work one time for each key and replays its result to everyone else
// who asks: idempotency keys for requests, one rebuild for a thousand readers of a cache.
//
//	keys, err := once.New(client, once.Config{})
//	...
//	answer, replayed, err := keys.Do(ctx, idempotencyKey, requestBody,
//		func(ctx context.Context, claim *lease.Lease) ([]byte, error) {
//			return charge(ctx, claim) // under ctx, which ends with the claim
//		})
//
// # States
//
//	            Do                       fn returns a result
//	absent ─────────────▶ in flight ─────────────────────────▶ done(result)
//	   ▲                   │     │                                  │
//	   │   error, panic,   │     └──▶ in flight again, with a       │
//	   └───────────────────┤          higher token, if somebody     │
//	   │   runner dead:    │          waits                         │
//	   │   claim runs out  │                                        │
//	   └───────────────────┴──────────── Config.Done is over ───────┘
//
// A key is in flight while a lease on it is held, which this package calls the claim. Package lease
// grants the claim, renews it, and ends the context of the work when it is lost. The claim is on
// the resource "once:<key>", carries a fencing token, and can be inspected and revoked like every
// lease. A result is recorded by a script that compares the claim:
//
//	A claims the key with token 41, and is stopped.
//	The claim expires. B claims the key with token 42, runs, records its result.
//	A resumes and comes with its own result. It is refused, with ErrNotRecorded.
//
// # Waiting
//
// A caller that finds the key in flight waits, within its context, for the run to end, and then
// gets the result. If that run failed or died, the caller runs its own fn. With [NoWait] it gets
// [ErrInFlight] at once instead, which tells when to retry. Callers of one process that wait for
// one key share one request to Redis, but for those with [Every].
//
// # The same key, another request
//
// The request is what the key stands for; only its SHA-256 is kept. A key that is done refuses
// another request with [ErrKeyReused]; nil matches every request. While the key is in flight no
// request is refused, because another request may run if that run fails.
//
// # Failures
//
//   - fn returns an error or panics: nothing is recorded, the claim is released, the next caller
//     runs.
//   - The runner dies: its claim expires after [Config.InFlight], and one of the waiting callers
//     runs.
//   - The runner is cut off from Redis, or is stopped, for longer than that: its context ends, and
//     its result is refused.
//   - The reply to a request is lost: it is sent again; a result that was recorded already counts
//     as recorded.
//   - Redis does not answer, or refuses: nobody runs. The error is [lease.ErrUnreachable] or
//     [lease.ErrRefused]; a refusal that passes soon is tried again first, and its error is that of
//     all callers of this process that wait for the key. If that happens to the recording, the
//     error is [ErrNotRecorded] as well.
//   - The caller's context ends: the call returns within 50 ms. A result that fn had returned is
//     recorded in the background.
//
// # Rights
//
// docs/leases.md lists the rights that the client's user needs. Without one of them the error is
// [lease.ErrRefused].
//
// # What it does not give you
//
// "Exactly once". Redis may forget a result (eviction, a fail-over, [Config.Done]), and a run that
// was given up for dead may still have its effect. So use this package alone where a second run
// costs only work: caches, reports, webhooks whose receiver is idempotent. Where the effect is in
// Postgres and must not happen twice, fencedb.Once keeps the key in the transaction of the effect.
// It decides; this package in front of it is the fast path that keeps duplicates away from
// Postgres, both with a key that the caller sends or that [Key] makes of a name and its arguments:
//
//	answer, _, err := keys.Do(ctx, key, body, func(ctx context.Context, claim *lease.Lease) (answer []byte, err error) {
//		err = fencedb.Tx(ctx, pool, claim, func(tx pgx.Tx) error {
//			answer, _, err = fencedb.Once(ctx, tx, key, body, func() ([]byte, error) { return charge(ctx, tx) })
//			return err
//		})
//		return answer, err
//	})
//
// The claim is the grant of that transaction: once the run that replaced it has entered one, an
// older run cannot commit. It does not cover the rows of a protected table, which need the token of
// their own resource (fencedb.ErrWrongResource). For these acquire the lease of the row as well,
// within the work, and pass both:
//
//	err = leases.Do(ctx, "table:12", func(ctx context.Context, l *lease.Lease) error {
//		return fencedb.Tx(ctx, pool, fencedb.All(claim, l), ...)
//	})
package once

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/internal/protocol"
	"github.com/fencedb/fencedb/lease"
)

// Errors of package lease are used as they are: [lease.ErrInvalid], [lease.ErrUnreachable],
// [lease.ErrCorrupt].
var (
	// ErrInFlight: another caller runs the work of this key; this call has run nothing. The error
	// is an [*InFlightError].
	ErrInFlight = protocol.Lost("once: in flight")

	// ErrKeyReused: the key is done, for another request. This call has run nothing, and does not
	// return the result.
	ErrKeyReused = errors.New("once: key was used for another request")

	// ErrNotRecorded: fn has run and returned a result that was not recorded, or may not have been:
	// the claim was over by then, the result was too large or, for [DoJSON], no JSON, or Redis did
	// not answer. What fn did stays done. Another caller may run it, or has run it.
	ErrNotRecorded = protocol.Settled("once: result not recorded")
)

// InFlightError is the ordinary answer under contention; errors.Is(err, ErrInFlight) holds for it.
type InFlightError struct {
	Key string

	// Holder is the label of who runs the work, program@host:pid, as in [lease.HeldError]; "" if
	// that is not known: callers of this process waited for one of their own.
	Holder string

	// RetryAfter is when to retry at the latest: the run may end sooner, or renew its claim. Zero
	// if this call has waited.
	RetryAfter time.Duration

	// Cause is why waiting ended, [context.Cause] of the caller's context; nil if there was no
	// waiting.
	Cause error
}

func (e *InFlightError) Error() string {
	by := ""
	if e.Holder != "" {
		by = fmt.Sprintf(" in %q", e.Holder)
	}
	if e.Cause != nil {
		return fmt.Sprintf("once: %q is still in flight%s: %s", e.Key, by, protocol.WhyEnded(e.Cause))
	}
	return fmt.Sprintf("once: %q is in flight%s, retry after %v", e.Key, by, e.RetryAfter)
}

// Is makes every InFlightError an [ErrInFlight].
func (e *InFlightError) Is(target error) bool { return target == ErrInFlight }

// LeaseLost is for [lease.IsLost].
func (e *InFlightError) LeaseLost() bool { return true }

// Unwrap gives the reason why waiting ended.
func (e *InFlightError) Unwrap() error { return e.Cause }

// Config is what all keys of a [Once] have in common. [New] checks it.
type Config struct {
	// InFlight is how long a claim lasts without renewal, and so how long a key stays blocked after
	// its runner has died. A living runner renews it. At least 1ms. Defaults to 10 seconds.
	InFlight time.Duration

	// MaxRun bounds a run: its claim is not renewed beyond it. At least InFlight, or
	// [lease.Unlimited]. Defaults to one hour, or InFlight if that is longer.
	MaxRun time.Duration

	// Done is how long a result is replayed. Then the key is absent, and the next caller runs. At
	// least 1ms. Defaults to 24 hours.
	Done time.Duration

	// Namespace keeps the keys of several tenants or environments apart in one Redis. At most 128
	// bytes of UTF-8. Defaults to none.
	Namespace string

	// HashKeys stores a SHA-256 instead of the key in Redis, for keys that are personal data. All
	// programs that share keys must agree on it. Defaults to false.
	HashKeys bool

	// Tracers are called for the claims, which are leases on "once:<key>": for their acquisition,
	// with its waiting, their life, renewals and release. A call that replays a result acquires
	// nothing. Defaults to none.
	Tracers []lease.Tracer
}

// Limits, in bytes.
const (
	// MaxKey is the greatest length of a key.
	MaxKey = 500
	// MaxResult is the greatest length of a result: 1 MiB, as in fencedb.Once.
	MaxResult = 1 << 20
)

func (o *Once) check(key string) error {
	if o == nil || o.redis == nil {
		return protocol.Invalid("the Once was not made by once.New")
	}
	return protocol.CheckRequired("key", key, "order:7", MaxKey)
}

// Once runs work once for each key. One per process and [Config] is enough; it is safe for
// concurrent use. A program that shuts down calls [Once.Close].
type Once struct {
	redis      *protocol.Sender
	cfg        Config
	claims     *lease.Issuer
	flights    flights
	recordings sync.Map // of channels, each closed when the result is recorded and its claim released
}

// New checks the configuration; errors are [lease.ErrInvalid] and name the field. It does not talk
// to Redis. The client stays the caller's: it is not closed here, and its own retries are not used.
func New(client redis.UniversalClient, cfg Config) (*Once, error) {
	cfg.InFlight = cmp.Or(cfg.InFlight, 10*time.Second)
	cfg.Done = cmp.Or(cfg.Done, 24*time.Hour)
	switch {
	case cfg.InFlight < time.Millisecond:
		return nil, protocol.Invalid("InFlight must be at least 1ms; it is %v", cfg.InFlight)
	case cfg.Done < time.Millisecond:
		return nil, protocol.Invalid("Done must be at least 1ms; it is %v", cfg.Done)
	case cfg.MaxRun != 0 && cfg.MaxRun != lease.Unlimited && cfg.MaxRun < cfg.InFlight:
		return nil, protocol.Invalid("MaxRun (%v) must be at least InFlight (%v), or lease.Unlimited", cfg.MaxRun, cfg.InFlight)
	}
	claims, err := lease.New(client, // which checks what has the same name there
		lease.Config{TTL: cfg.InFlight, MaxHold: cfg.MaxRun, Namespace: cfg.Namespace,
			HashResources: cfg.HashKeys, Tracers: cfg.Tracers})
	if err != nil {
		return nil, err
	}
	return &Once{redis: protocol.Over(client), cfg: cfg, claims: claims,
		flights: flights{byKey: make(map[string]*flight)}}, nil
}

// Func is the work. It gets a context that ends with that of the caller or with the claim,
// whichever is first, and the claim, which is a grant as fencedb.Tx expects it.
type Func = func(ctx context.Context, claim *lease.Lease) ([]byte, error)

// Option changes one call.
type Option func(*call)

// NoWait makes the call fail with [ErrInFlight] instead of waiting for another caller's run.
func NoWait() Option { return func(c *call) { c.noWait = true } }

// Every makes a key one that runs at most once in each period, for schedulers: several ask at about
// the same time, and their clocks differ. The period counts, on Redis's clock, from when it is
// written down that the run begins, right before it. It should be shorter than the interval of the
// schedule by more than clocks and timers differ: 55 minutes for a job of each hour.
//
// The key is done as soon as fn begins, and so also if fn fails, panics or dies with its process:
// what failed is for the next period. What fn returns goes to its own caller. The others get
// replayed and an empty result, at once. Who asks at the very moment at which the run begins, or
// when it has outlasted the period and still has its claim, waits for its end, or gets
// [ErrInFlight] with [NoWait], which schedulers usually want.
//
// After an error of Redis, or of a lost claim, or if ctx ended while Redis was asked, fn has not
// run, and the period may be used up all the same: it may be written down, and the answer lost.
func Every(period time.Duration) Option { return func(c *call) { c.every = &period } }

// Do returns the recorded result of the key, replayed, or runs fn and records what it returns. The
// result belongs to the caller.
//
// The request is what the key stands for; the same key with another request is [ErrKeyReused]. A
// nil request matches every request, other than with fencedb.Once, where nil equals nothing but
// nil. If fn fails, its error is returned, nothing is recorded and the key is free. If the claim
// was lost while fn failed, the cause is joined; if it was lost before, fn is not run, and the
// error is the cause. With [ErrNotRecorded] fn has succeeded and its
// result is returned too, but others may get another one.
//
// Cancelling ctx ends waiting, with [ErrInFlight] and the cause, and ends the context of fn. If fn
// returns a result all the same, it is recorded; if that takes longer than a moment, it goes on in
// the background, and the call returns [ErrNotRecorded]. fn must not call Do with its own key: it
// would wait for itself.
func (o *Once) Do(ctx context.Context, key string, request []byte,
	fn Func, opts ...Option) (result []byte, replayed bool, err error) {
	if err := o.check(key); err != nil {
		return nil, false, err
	}
	if fn == nil {
		return nil, false, protocol.ErrNoFunction
	}
	c := &call{once: o, key: key, fn: fn}
	if request != nil {
		sum := sha256.Sum256(request)
		c.fingerprint = string(sum[:])
	}
	for _, opt := range opts {
		opt(c)
	}
	if c.every != nil && *c.every < time.Millisecond {
		return nil, false, protocol.Invalid("Every(%v) must be at least 1ms", *c.every)
	}
	if c.noWait || c.every != nil { // with Every, the key is done long before the run is over
		return c.attempt(ctx)
	}
	return o.flights.share(ctx, c)
}

// DoJSON is [Once.Do] for a request and a result that encoding/json can write and read. A nil
// request compares with everything.
func DoJSON[T any](ctx context.Context, o *Once, key string, request any,
	fn func(ctx context.Context, claim *lease.Lease) (T, error), opts ...Option) (result T, replayed bool, err error) {
	if fn == nil {
		return result, false, protocol.ErrNoFunction
	}
	asked, err := json.Marshal(request)
	if err != nil {
		return result, false, fmt.Errorf("once: the request of %q: %w", key, err)
	}
	if string(asked) == "null" { // a nil pointer is no request either
		asked = nil
	}
	var own T
	answer, replayed, err := o.Do(ctx, key, asked, func(ctx context.Context, claim *lease.Lease) ([]byte, error) {
		var err error
		if own, err = fn(ctx, claim); err != nil {
			return nil, err
		}
		answer, err := json.Marshal(own)
		if err != nil {
			return nil, fmt.Errorf("%w: the result of %q: %w", ErrNotRecorded, key, err)
		}
		return answer, nil
	}, opts...)
	if err != nil || !replayed {
		return own, false, err
	}
	if len(answer) == 0 { // of a run with [Every]
		return result, true, nil
	}
	if err := json.Unmarshal(answer, &result); err != nil {
		return result, true, fmt.Errorf("once: the recorded result of %q is not a %T: %w", key, result, err)
	}
	return result, true, nil
}

// Close ends the work in good order, for a program that shuts down. It waits for the results that
// are being recorded, and then closes the claims as [lease.Issuer.Close] does: the context of every
// run ends, its claim is released, and calls that would run anything fail with [lease.ErrClosed].
// Results are replayed as before. If ctx ends first, the claims are closed at once, and a result
// that has not been recorded by then may be refused, with [ErrNotRecorded].
func (o *Once) Close(ctx context.Context) error {
	if o == nil {
		return o.check("-")
	}
	var late error
	o.recordings.Range(func(released, _ any) bool {
		select {
		case <-released.(chan struct{}):
		case <-ctx.Done():
			cause := context.Cause(ctx)
			late = protocol.Also(fmt.Errorf("once: close: results are still being recorded: %s", protocol.WhyEnded(cause)), cause)
		}
		return late == nil
	})
	return protocol.Join(late, o.claims.Close(ctx))
}
