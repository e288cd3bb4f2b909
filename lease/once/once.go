// Package once runs a piece of work one time for each key, and replays its result to all other
// callers. It is for idempotency keys of requests, or for one rebuild of a cache entry that a
// thousand callers read.
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
//	   │   claim expires   │                                        │
//	   └───────────────────┴──────────── Config.Done is over ───────┘
//
// A key is in flight while a lease on it is held. This package calls that lease the claim. Package
// lease grants the claim, renews it, and ends the context of the work when the claim is lost. The
// claim is on the resource "once:<key>", carries a fencing token, and can be inspected and revoked
// like every lease. The script that records a result checks the claim:
//
//	A claims the key with token 41, and is stopped.
//	The claim expires. B claims the key with token 42, runs, records its result.
//	A resumes and tries to record its own result. It is refused, with ErrNotRecorded.
//
// # Waiting
//
// A caller that finds the key in flight waits, within its context, for the run to end, and then
// gets the result. If the run failed or died, the caller runs its own fn. With [NoWait] it gets
// [ErrInFlight] at once instead, with the time after which to retry. Callers of one process that
// wait for one key share one request to Redis, except for those with [Every].
//
// # The same key, another request
//
// Do compares the request with that of the recorded run; only its SHA-256 is kept. A key that is
// done refuses another request with [ErrKeyReused]; a nil request matches every request. While the
// key is in flight no request is refused, because any of them may run if the present run fails.
//
// # Failures
//
//   - fn returns an error or panics: nothing is recorded, the claim is released, and the next
//     caller runs.
//   - The runner dies: its claim expires after [Config.InFlight], and one of the waiting callers
//     runs.
//   - The runner is cut off from Redis, or is stopped, for longer than [Config.InFlight]: its
//     context ends, and its result is refused.
//   - The reply to a request is lost: the request is sent again; a result that was recorded already
//     counts as recorded.
//   - Redis does not answer, or refuses: nobody runs. The error is [lease.ErrUnreachable] or
//     [lease.ErrRefused]. A transient refusal is tried again first. All callers of this process
//     that wait for the key get the error of an outage. If the recording fails in this way, the
//     error is [ErrNotRecorded] as well.
//   - The caller's context ends: the call returns within 50 ms; if fn runs, within 50 ms after fn
//     has returned. A result of fn is still recorded, in the background.
//
// # Rights
//
// docs/leases.md lists the rights that the client's user needs. Without one of them the error is
// [lease.ErrRefused].
//
// # What it does not give you
//
// "Exactly once". Redis may forget a result (eviction, a fail-over, [Config.Done]), and a run that
// seemed dead may still have its effect. So use this package alone where a second run costs only
// work: caches, reports, webhooks whose receiver is idempotent. Where the effect is in Postgres and
// must not happen twice, use fencedb.Once, which keeps the key in the transaction of the effect and
// has the last word. This package in front of it keeps most duplicates away from Postgres. Give
// both the same key: one that the caller sends, or one that [Key] makes of a name and arguments.
// In Postgres a key has no namespace: [Config.Namespace] does not reach fencedb.Once. So where
// tenants share a database, make the tenant part of the key: Key("charge", tenant, idempotencyKey).
//
//	answer, _, err := keys.Do(ctx, key, body, func(ctx context.Context, claim *lease.Lease) (answer []byte, err error) {
//		err = fencedb.Tx(ctx, pool, claim, func(tx pgx.Tx) error {
//			answer, _, err = fencedb.Once(ctx, tx, key, body, func() ([]byte, error) { return charge(ctx, tx) })
//			return err
//		})
//		return answer, err
//	})
//
// The claim is the grant of that transaction: once a newer run of the key has entered a
// transaction, an older run cannot commit. The claim does not cover the rows of a protected table,
// which need the token of their own resource (fencedb.ErrWrongResource). For these, also acquire a
// lease on the resource of the row, within the work, and pass both:
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

// This package also returns errors of package lease: [lease.ErrInvalid], [lease.ErrUnreachable],
// [lease.ErrCorrupt] and [lease.ErrRefused].
var (
	// ErrInFlight: another caller runs the work of this key; this call has run nothing. The error
	// is an [*InFlightError].
	ErrInFlight = protocol.Lost("once: in flight")

	// ErrKeyReused: the key is done, for another request. This call has run nothing, and does not
	// return the result.
	ErrKeyReused = errors.New("once: key was used for another request")

	// ErrNotRecorded: fn has run and returned a result that was not recorded, or may not have been:
	// the claim was over by then; the result was too large; [DoJSON] could not write it as JSON; or
	// Redis did not answer or refused. What fn did stays done. Another caller may run its own fn,
	// or has done so.
	ErrNotRecorded = protocol.NotLost("once: result not recorded")
)

// InFlightError is the ordinary answer under contention; errors.Is(err, ErrInFlight) holds for it.
type InFlightError struct {
	Key string

	// Holder is the label of the process that runs the work, program@host:pid, as in
	// [lease.HeldError]; "" if it is not known: this call waited for another call of its process.
	Holder string

	// RetryAfter is the time after which to retry. The run may end sooner, or renew its claim. Zero
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

// LeaseLost is called by [lease.IsLost].
func (e *InFlightError) LeaseLost() bool { return true }

// Unwrap returns the reason why waiting ended.
func (e *InFlightError) Unwrap() error { return e.Cause }

// Config holds the settings of all keys of a [Once]. [New] checks it.
type Config struct {
	// InFlight is how long a claim lasts without renewal, and so how long a key stays blocked after
	// its runner has died. A living runner renews it. At least 1ms. Defaults to 10 seconds.
	InFlight time.Duration

	// MaxRun is how long a run can last: its claim is not renewed further. At least InFlight, or
	// [lease.Unlimited]. Defaults to one hour, or InFlight if that is longer.
	MaxRun time.Duration

	// Done is how long a result is replayed. After that the key is absent, and the next caller
	// runs. At least 1ms. Defaults to 24 hours.
	Done time.Duration

	// Namespace keeps the keys of several tenants or environments apart in one Redis, and not those
	// of fencedb.Once in one database. At most 128 bytes of UTF-8. Defaults to none.
	Namespace string

	// HashKeys stores a SHA-256 instead of the key in Redis, for keys that are personal data. All
	// programs that share keys must agree on it. Defaults to false.
	HashKeys bool

	// Tracers are called for the claims, which are leases on "once:<key>": for their acquisition,
	// waiting, life, renewals and release. A call that finds a result acquires no claim. Defaults
	// to none.
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

// New makes a Once. It checks the configuration: errors are [lease.ErrInvalid] and name the field.
// It does not talk to Redis. The client is as for [lease.New]: it is not closed, and its retries
// are not used.
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
	claims, err := lease.New(client, // checks the client and the fields with the same names
		lease.Config{TTL: cfg.InFlight, MaxHold: cfg.MaxRun, Namespace: cfg.Namespace,
			HashResources: cfg.HashKeys, Tracers: cfg.Tracers})
	if err != nil {
		return nil, err
	}
	return &Once{redis: protocol.Over(client), cfg: cfg, claims: claims,
		flights: flights{byKey: make(map[string]*flight)}}, nil
}

// Func is the work. It gets a context, which ends with that of the caller or with the claim,
// whichever is first, and the claim, which fencedb.Tx takes as a grant.
type Func = func(ctx context.Context, claim *lease.Lease) ([]byte, error)

// Option changes one call.
type Option func(*call)

// NoWait makes a call return [ErrInFlight] instead of waiting for the run of another caller.
func NoWait() Option { return func(c *call) { c.noWait = true } }

// Every makes Do run fn at most once in each period. It is for schedules: several processes ask at
// about the same time, and their clocks differ. The period begins, on Redis's clock, when Do
// records that the run begins, right before it calls fn. The period should be shorter than the
// interval of the schedule, by more than clocks and timers differ: 55 minutes for an hourly job.
//
// The key is done as soon as fn begins, and stays done if fn fails, panics or dies with its
// process: a failed run is not repeated before the next period. The result of fn goes only to its
// own caller. Other callers get replayed and an empty result, at once. A caller waits only if it
// asks at the moment when a run begins, or when a run that has outlasted its period still has its
// claim; with [NoWait], which schedulers usually want, it gets [ErrInFlight] instead.
//
// After an error of Redis or a lost claim, or if ctx ended while Redis was asked, fn has not run.
// The period may be used up all the same: it may have been recorded, and the answer lost.
func Every(period time.Duration) Option { return func(c *call) { c.every = &period } }

// Do returns the recorded result of the key, with replayed true; or it runs fn, and records and
// returns its result. The caller may change the result.
//
// The request is what the caller wants done under the key. The same key with another request is
// [ErrKeyReused]. A nil request matches every request. (With fencedb.Once it matches only nil.)
//
// If fn fails, Do returns its error, records nothing, and releases the key. If the claim was lost
// by then, the cause is joined to the error. If the claim was lost before fn began, fn is not run,
// and the error is the cause. With [ErrNotRecorded], fn has succeeded and its result is returned,
// but other callers may get another result.
//
// Cancelling ctx ends the waiting, with [ErrInFlight] and the cause, and ends the context of fn. If
// fn returns a result all the same, it is recorded. If that takes longer than 30 ms, the recording
// goes on in the background, and Do returns [ErrNotRecorded]. fn must not call Do with its own key:
// it would wait for itself.
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
	if c.noWait || c.every != nil { // with Every, the key is done before the run ends, so nobody waits for it
		return c.attempt(ctx)
	}
	return o.flights.share(ctx, c)
}

// DoJSON is [Once.Do] for a request and a result that encoding/json can write and read. A nil
// request matches every request.
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
	if len(answer) == 0 { // the run was one with Every
		return result, true, nil
	}
	if err := json.Unmarshal(answer, &result); err != nil {
		return result, true, fmt.Errorf("once: the recorded result of %q is not a %T: %w", key, result, err)
	}
	return result, true, nil
}

// Close ends the work in good order, for a program that shuts down. It waits for the results that
// are being recorded, and then ends the claims as [lease.Issuer.Close] does: the context of every
// run ends, its claim is released, and calls that would have to run fn fail with [lease.ErrClosed].
// Recorded results are still replayed. If ctx ends first, the claims end at once, and a result that
// has not been recorded by then may be refused, with [ErrNotRecorded].
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
