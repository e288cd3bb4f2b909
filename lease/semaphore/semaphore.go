package semaphore

import (
	"context"
	_ "embed"

	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/lease/internal/kind"
	"github.com/fencedb/fencedb/lease/internal/script"
)

// MaxLimit is the greatest limit: scripts look at each holder.
const MaxLimit = 1000

// Config is what all resources of a [Semaphore] have in common. [New] checks it.
type Config struct {
	// Limit is how many may hold a resource at once, unless [Semaphore.SetLimit] has changed it. From 1 to [MaxLimit].
	// Programs that share resources should agree on it; where they do not, each is let in by its own. Required.
	Limit int

	// Lease is how each place is held. Its TTL is required.
	Lease lease.Config
}

// Semaphore gives out places. One per process and [Config] is enough; it is safe for concurrent use. A program that
// shuts down calls [Semaphore.Close].
type Semaphore struct {
	client redis.UniversalClient
	cfg    Config
	issuer *lease.Issuer
}

// New checks the configuration; errors are [lease.ErrInvalid] and name the field. It does not talk to Redis. The client stays
// the caller's: it is not closed here, and its own retries are not used.
func New(client redis.UniversalClient, cfg Config) (*Semaphore, error) {
	if err := checkLimit(cfg.Limit); err != nil {
		return nil, err
	}
	issuer, err := lease.NewKind(client, cfg.Lease, kindOf(cfg.Limit))
	if err != nil {
		return nil, err
	}
	return &Semaphore{client, cfg, issuer}, nil
}

func checkLimit(limit int) error {
	if limit < 1 || limit > MaxLimit {
		return script.Invalid("Limit must be from 1 to %d; it is %d", MaxLimit, limit)
	}
	return nil
}

// TryAcquire asks once and does not wait: [lease.ErrHeld] with the time after which to ask again, if all places are taken or
// others wait for one. Otherwise it is like the method of [lease.Issuer].
func (s *Semaphore) TryAcquire(ctx context.Context, resource string, opts ...lease.Option) (*lease.Lease, error) {
	if err := s.check(resource); err != nil {
		return nil, err
	}
	return s.issuer.TryAcquire(ctx, resource, opts...)
}

// Acquire waits for a place: first come, first served, bounded by ctx and [lease.WaitAtMost]. Otherwise it is like the method of
// [lease.Issuer].
func (s *Semaphore) Acquire(ctx context.Context, resource string, opts ...lease.Option) (*lease.Lease, error) {
	if err := s.check(resource); err != nil {
		return nil, err
	}
	return s.issuer.Acquire(ctx, resource, opts...)
}

// Do acquires a place, runs fn under a context that ends with ctx or with the place, and gives the place back, also when fn
// panics. It is like the method of [lease.Issuer].
func (s *Semaphore) Do(ctx context.Context, resource string, fn func(ctx context.Context, l *lease.Lease) error, opts ...lease.Option) error {
	if err := s.check(resource); err != nil {
		return err
	}
	return s.issuer.Do(ctx, resource, fn, opts...)
}

// Close gives back every place that is held, in good order. It is like the method of [lease.Issuer].
func (s *Semaphore) Close(ctx context.Context) error { return s.issuer.Close(ctx) }

// The scripts are the protocol.
var (
	//go:embed scripts/holders.lua
	holdersLua string
	//go:embed scripts/acquire.lua
	acquireLua string
	//go:embed scripts/extend.lua
	extendLua string
	//go:embed scripts/release.lua
	releaseLua string
	//go:embed scripts/withdraw.lua
	withdrawLua string
	//go:embed scripts/verify.lua
	verifyLua string
)

const kindName = "semaphore"

func scriptOf(name, source string) script.Script {
	return script.New(kindName+"/"+name, script.Common, script.Holder, script.Queue, holdersLua, source)
}

func kindOf(limit int) *kind.Kind {
	return &kind.Kind{
		Name:     kindName,
		Acquire:  scriptOf("acquire", acquireLua),
		Extend:   scriptOf("extend", extendLua),
		Release:  scriptOf("release", releaseLua),
		Withdraw: scriptOf("withdraw", withdrawLua),
		Verify:   scriptOf("verify", verifyLua),
		Ask: func(keys []string, args []any) ([]string, []any) {
			return append(keys, limitKey(keys[0])), append(args, limit)
		},
	}
}
