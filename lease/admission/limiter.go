package admission

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	protocol "github.com/fencedb/fencedb/lease/internal/redis"
)

// Limiter judges requests. One per process and [Config] is enough; it is safe for concurrent use and needs no closing.
type Limiter struct {
	client redis.UniversalClient
	cfg    Config
}

// New checks the configuration; errors are [lease.ErrInvalid] and name the field. It does not talk to Redis. The client stays
// the caller's: it is not closed here, and its own retries are not used.
func New(client redis.UniversalClient, cfg Config) (*Limiter, error) {
	if client == nil {
		return nil, protocol.Invalid("client is nil")
	}
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	return &Limiter{client, cfg}, nil
}

// Decision is the answer to one request.
type Decision struct {
	Allowed bool

	// Limit is that of the limiter, Count what was admitted in the window, with this request if it was, and Remaining how
	// many more would be admitted now.
	Limit, Count, Remaining int

	// RetryAfter is when a refused request can be admitted: not sooner, and then unless others come first. Zero if this one was.
	RetryAfter time.Duration

	// ResetAfter is when the whole limit is available again if nobody comes before.
	ResetAfter time.Duration

	// Unjudged is why Redis has not judged, nil if it has: [lease.ErrUnreachable], also when [Config.Timeout] is over; [lease.ErrCorrupt];
	// one of the errors that package lease has for refusals, such as [lease.ErrReadOnly]; or the cause of a ctx that ended before Redis
	// was asked. Allowed is then what [Config.WhenUnjudged] says, the numbers are zero, and after ErrUnreachable the request may
	// have been counted.
	Unjudged error
}

// Allow judges one request of the key, and counts it if it is admitted.
//
// An error means that nothing was asked: [lease.ErrInvalid] for a key that cannot be, or the cause of ctx if that is over. The
// decision is then a refusal. When ctx ends while Redis is asked, the request is unjudged.
func (l *Limiter) Allow(ctx context.Context, key string) (Decision, error) {
	if l == nil || l.client == nil {
		return Decision{}, protocol.Invalid("the Limiter was not made by admission.New")
	}
	if err := checkKey(key); err != nil {
		return Decision{}, err
	}
	if ctx.Err() != nil {
		return Decision{}, fmt.Errorf("admission: %w", context.Cause(ctx))
	}
	ctx, cancel := protocol.Within(ctx, l.cfg.Timeout)
	defer cancel()
	d, err := l.judge(ctx, l.cfg.name(key))
	if err != nil {
		return Decision{
			Allowed:  l.cfg.WhenUnjudged == FailOpen,
			Limit:    l.cfg.Limit,
			Unjudged: fmt.Errorf("admission: %q: %w", key, err),
		}, nil
	}
	return d, nil
}

func (l *Limiter) judge(ctx context.Context, name string) (Decision, error) {
	judge, args := protocol.AdmissionFixed, []any{l.cfg.Limit, l.cfg.Window.Milliseconds()}
	if l.cfg.Sliding {
		judge, args = protocol.AdmissionSliding, append(args, uuid.NewString())
	}
	r, err := judge.Call([]string{name}, args...).Run(ctx, l.client)
	if err != nil {
		return Decision{}, err
	}
	return decode(r, l.cfg)
}

func decode(r protocol.Reply, cfg Config) (Decision, error) {
	switch {
	case r.Is("admitted", 2):
		n, err := numbers(r)
		if err != nil {
			return Decision{}, err
		}
		return Decision{Allowed: true, Limit: cfg.Limit, Count: int(n[0]), Remaining: cfg.Limit - int(n[0]), ResetAfter: ms(n[1])}, nil
	case r.Is("refused", 3):
		n, err := numbers(r)
		if err != nil {
			return Decision{}, err
		}
		return Decision{Limit: cfg.Limit, Count: int(n[0]), RetryAfter: ms(n[1]), ResetAfter: ms(n[2])}, nil
	}
	return Decision{}, r.Unknown()
}

// numbers reads all arguments, which are positive.
func numbers(r protocol.Reply) ([]int64, error) {
	n := make([]int64, len(r.Args))
	for i := range n {
		var err error
		if n[i], err = r.Number(i, 1); err != nil {
			return nil, err
		}
	}
	return n, nil
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
