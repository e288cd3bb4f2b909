package lease

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	protocol "github.com/fencedb/fencedb/lease/internal/redis"
)

// Issuer grants leases. One per process and [Config] is enough; it is safe for concurrent use. What runs in the
// background ends with the last lease and the last waiter; a program that shuts down calls [Issuer.Close], so that
// nothing stays blocked behind it.
type Issuer struct {
	cfg      Config
	store    store
	watchdog *watchdog
	lines    *lines
	open     *open
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
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	return &Issuer{
		cfg:      cfg,
		store:    s,
		watchdog: newWatchdog(s, cfg),
		lines:    &lines{open: s.listen, byChannel: make(map[string]*line)},
		open:     newOpen(),
	}, nil
}

// ready refuses an Issuer that New has not made.
func (i *Issuer) ready() error {
	if i == nil || i.store == nil {
		return protocol.Invalid("the Issuer was not made by lease.New or lease.NewQuorum")
	}
	return nil
}

// trustedUntil is the trust window: the clock read before the request was sent, plus what was asked for, less the margin.
func (i *Issuer) trustedUntil(sent time.Time, ttl time.Duration) time.Time {
	return sent.Add(ttl - i.cfg.Margin)
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
