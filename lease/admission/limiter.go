// Package admission limits how many requests of a key are admitted in a window of time. Redis
// counts the requests of all processes together.
//
//	limiter, err := admission.New(client, admission.Config{
//		Limit: 100, Window: time.Minute, OnError: admission.FailOpen,
//	})
//	...
//	d, err := limiter.Allow(ctx, "tenant:7")
//	if !d.Allowed {
//		// tell the caller to come back after d.RetryAfter
//	}
//
// [Middleware] does that for net/http.
//
// # Windows
//
// A fixed window begins with a request and ends by Redis's clock; the next request begins the next
// window. It costs one small key in Redis for each key, and can admit nearly twice the limit around
// the end of a window:
//
//	limit 2      a.........b|cd                 b, c and d within a moment
//
// A sliding window ([Config.Sliding]) admits a request if fewer than the limit were admitted in the
// window that ends with it, so that cannot happen. It keeps one entry for each admission, about 100
// bytes, and its limit is at most 10,000.
//
// In both cases one script decides and counts, so concurrent callers cannot exceed the limit. It
// sets count and expiry together, so no key stays without an expiry. RetryAfter is exact: a request
// after that time is admitted unless others come first, and an earlier request is not. Refused
// requests do not count.
//
// # Failures
//
// If Redis does not answer within [Config.Timeout], or answers with an error, there is no decision.
// The request is then admitted or refused as [Config.OnError] says, and [Decision.Err] has the
// reason, an error of package lease such as [lease.ErrUnreachable] or [lease.ErrRefused]. OnError
// has no default: use [FailClosed] to protect a downstream system, and usually [FailOpen] for
// fairness.
//
// A request is sent once. It is not repeated if it was not answered or was refused, because a late
// answer is of no use. If the reply was lost, Redis may have counted the request, so fewer requests
// may be admitted in the window, but never more.
//
// # Rights
//
// docs/leases.md lists the rights that the client's user needs. Without one of them the error is
// [lease.ErrRefused].
//
// # What it does not give you
//
// A limit on what runs at the same time: use [lease.Semaphore]. Order or fairness between callers
// of one key. Limits that survive the loss of Redis's data: counting then starts again.
package admission

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/internal/protocol"
)

// Policy says what happens to a request if Redis does not decide.
type Policy int

const (
	// FailOpen admits it.
	FailOpen Policy = iota + 1
	// FailClosed refuses it.
	FailClosed
)

// Config holds the settings of a [Limiter]. [New] checks it. Programs that share keys should agree
// on it, because each applies its own limit and window.
type Config struct {
	// Limit is how many requests of one key are admitted in a window. At least 1; at most 10,000 if
	// the window slides, 1,000,000,000 if not. Required.
	Limit int

	// Window is how long a window lasts. Whole milliseconds, at least one; a fraction is cut off.
	// At most 366 days. Required.
	Window time.Duration

	// Sliding makes the window one that ends with each request, instead of fixed windows. Defaults
	// to false.
	Sliding bool

	// OnError says whether requests are admitted if Redis does not decide: [FailOpen] or
	// [FailClosed]. Required.
	OnError Policy

	// Timeout is how long to wait for Redis. Positive. Defaults to 250ms.
	Timeout time.Duration

	// Namespace keeps the keys of several limiters, tenants or environments apart in one Redis. At
	// most 128 bytes of UTF-8. Defaults to none.
	Namespace string

	// HashKeys stores a SHA-256 instead of the key in Redis, for keys that are personal data, such
	// as addresses. Defaults to false.
	HashKeys bool

	// Tracers are called for every decision. Free when unused. Defaults to none.
	Tracers []Tracer
}

// Tracer is called for the decisions of a [Limiter], in pairs: each start is followed by one end.
// The context that the start returns goes to the request to Redis in between and to the end. A
// Tracer is called on the path of the request, by many goroutines at once, and must be quick.
type Tracer interface {
	TraceAdmissionStart(ctx context.Context, s TraceStart) context.Context
	TraceAdmissionEnd(ctx context.Context, e TraceEnd)
}

// TraceStart is what is known when Redis is about to be asked.
type TraceStart struct {
	Namespace string // [Config.Namespace]
	Key       string // as the caller gave it, even with [Config.HashKeys]
}

// TraceEnd is what is known after the decision.
type TraceEnd struct {
	TraceStart
	Took     time.Duration
	Decision Decision
}

// MaxKey is the greatest length of a key in bytes.
const MaxKey = 512

// The doc comments of [Config] name these bounds.
const (
	maxLimit        = 1_000_000_000
	maxSlidingLimit = 10_000
	maxWindow       = 366 * 24 * time.Hour
)

// Limiter decides about requests. One per process and [Config] is enough; it is safe for concurrent
// use and needs no closing.
type Limiter struct {
	redis *protocol.Sender
	cfg   Config
}

// New makes a Limiter. It checks the configuration: errors are [lease.ErrInvalid] and name the
// field. It does not talk to Redis. The client is not closed, and its retries are not used.
func New(client redis.UniversalClient, cfg Config) (*Limiter, error) {
	cfg.Window = cfg.Window.Truncate(time.Millisecond)
	cfg.Timeout = cmp.Or(cfg.Timeout, 250*time.Millisecond)
	most := maxLimit
	if cfg.Sliding {
		most = maxSlidingLimit
	}
	switch {
	case cfg.Limit < 1 || cfg.Limit > most:
		return nil, protocol.Invalid("Limit must be from 1 to %d; it is %d", most, cfg.Limit)
	case cfg.Window < time.Millisecond || cfg.Window > maxWindow:
		return nil, protocol.Invalid("Window must be from 1ms, the unit in which Redis counts, to %v; it is %v", maxWindow, cfg.Window)
	case cfg.OnError != FailOpen && cfg.OnError != FailClosed:
		return nil, protocol.Invalid("OnError must be FailOpen or FailClosed: say whether requests are admitted while Redis does not decide")
	case cfg.Timeout < 0:
		return nil, protocol.Invalid("Timeout (%v) must be positive", cfg.Timeout)
	}
	namespace := protocol.CheckName("namespace", cfg.Namespace, protocol.MaxNamespace)
	if err := cmp.Or(protocol.CheckClient(client), namespace); err != nil {
		return nil, err
	}
	return &Limiter{protocol.Over(client), cfg}, nil
}

// Decision is the answer to one request.
type Decision struct {
	Allowed bool

	// Limit is that of the limiter. Count is how many requests were admitted in the window, with
	// this one if it was. Remaining is how many more would be admitted now.
	Limit, Count, Remaining int

	// RetryAfter is the time after which a refused request is admitted, unless others come first.
	// It is not admitted sooner. Zero if the request was admitted.
	RetryAfter time.Duration

	// ResetAfter is the time after which the whole limit is available again, unless others come
	// first.
	ResetAfter time.Duration

	// Err is why Redis has not decided; nil if it has. It is [lease.ErrUnreachable], also when
	// [Config.Timeout] is over; [lease.ErrCorrupt]; [lease.ErrRefused]; or the cause of a ctx that
	// ended before Redis was asked. Allowed is then as [Config.OnError] says, and Count, Remaining,
	// RetryAfter and ResetAfter are zero. After ErrUnreachable the request may have been counted.
	Err error
}

// Allow decides about one request of the key, and counts it if it is admitted.
//
// An error means that Redis was not asked: it is [lease.ErrInvalid] for an invalid key, or the
// cause of ctx if ctx had ended. The decision is then a refusal. If ctx ends while Redis is asked,
// the error is in [Decision.Err].
func (l *Limiter) Allow(ctx context.Context, key string) (Decision, error) {
	if l == nil || l.redis == nil {
		return Decision{}, protocol.Invalid("the Limiter was not made by admission.New")
	}
	if err := protocol.CheckRequired("key", key, "tenant:7", MaxKey); err != nil {
		return Decision{}, err
	}
	if ctx.Err() != nil {
		return Decision{}, fmt.Errorf("admission: %w", context.Cause(ctx))
	}
	if len(l.cfg.Tracers) == 0 {
		return l.decide(ctx, key), nil
	}
	e, began := TraceEnd{TraceStart: TraceStart{l.cfg.Namespace, key}}, time.Now()
	for _, t := range l.cfg.Tracers {
		ctx = t.TraceAdmissionStart(ctx, e.TraceStart)
	}
	e.Decision = l.decide(ctx, key)
	e.Took = time.Since(began)
	for _, t := range l.cfg.Tracers {
		t.TraceAdmissionEnd(ctx, e)
	}
	return e.Decision, nil
}

func (l *Limiter) decide(ctx context.Context, key string) Decision {
	// The keys of the two kinds of windows are of different types, so they have different names.
	name := protocol.KeyOf(protocol.AdmissionKind, l.cfg.Namespace, key, l.cfg.HashKeys)
	script, args := protocol.AdmissionFixed, []any{name.For("fixed"), l.cfg.Limit, l.cfg.Window.Milliseconds()}
	if l.cfg.Sliding {
		script, args = protocol.AdmissionSliding, append(args, uuid.NewString())
		args[0] = name.For("sliding")
	}
	d, err := protocol.Query(ctx, l.redis, l.cfg.Timeout, script.Call(1, args...), decode)
	d.Limit = l.cfg.Limit
	if err != nil {
		d.Allowed, d.Err = l.cfg.OnError == FailOpen, fmt.Errorf("admission: %q: %w", key, err)
	} else if d.Allowed {
		d.Remaining = d.Limit - d.Count
	}
	return d
}

// decode reads the answer of both scripts. The limit is not in it.
func decode(r protocol.Reply) (Decision, error) {
	switch {
	case r.Is("admitted", 2):
		return Decision{Allowed: true, Count: int(r.Number(0, 1)), ResetAfter: r.Milliseconds(1, 1)}, r.Err()
	case r.Is("refused", 3):
		return Decision{Count: int(r.Number(0, 1)),
			RetryAfter: r.Milliseconds(1, 1), ResetAfter: r.Milliseconds(2, 1)}, r.Err()
	}
	return Decision{}, r.Unknown()
}
