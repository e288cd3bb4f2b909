package once

import (
	"context"
	"crypto/sha256"

	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/lease"
)

// Once runs work once for each key. One per process and [Config] is enough; it is safe for concurrent use. A program
// that shuts down calls [Once.Close].
type Once struct {
	client     redis.UniversalClient
	cfg        Config
	claims     *lease.Issuer
	flights    flights
	recordings recordings
}

// New checks the configuration; errors are [lease.ErrInvalid] and name the field. It does not talk to Redis. The client stays
// the caller's: it is not closed here, and its own retries are not used.
func New(client redis.UniversalClient, cfg Config) (*Once, error) {
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	claims, err := lease.New(client, cfg.lease())
	if err != nil {
		return nil, err
	}
	return &Once{client: client, cfg: cfg, claims: claims}, nil
}

// Func is the work. It gets a context that ends with that of the caller or with the claim, whichever is first, and the
// claim, which is a grant as fencedb.Tx expects it.
type Func = func(ctx context.Context, claim *lease.Lease) ([]byte, error)

// Option changes one call.
type Option func(*call)

// NoWait makes the call fail with [ErrInFlight] instead of waiting for another caller's run.
func NoWait() Option { return func(c *call) { c.noWait = true } }

// Do returns the recorded result of the key, replayed, or runs fn and records what it returns. The result belongs to the caller.
//
// The request is what the key stands for; the same key with another one is [ErrKeyReused]. If fn fails, its error is returned, nothing
// is recorded and the key is free. If the claim was lost while fn failed, the cause is joined. With [ErrNotRecorded] fn
// has succeeded and what it returned is returned too, but it may not be what others get.
//
// Cancelling ctx ends waiting, with [ErrInFlight] and the cause, and ends the context of fn. A result that fn returns
// all the same is recorded; if that takes longer than a moment, behind the call, which answers [ErrNotRecorded] then.
// fn must not call Do with its own key: it would wait for itself.
func (o *Once) Do(ctx context.Context, key string, request []byte, fn Func, opts ...Option) (result []byte, replayed bool, err error) {
	if err := o.check(key); err != nil {
		return nil, false, err
	}
	c := &call{once: o, key: key, names: o.cfg.names(key), fn: fn}
	if request != nil {
		sum := sha256.Sum256(request)
		c.fingerprint = string(sum[:])
	}
	for _, opt := range opts {
		opt(c)
	}
	if c.noWait {
		return c.attempt(ctx)
	}
	return o.flights.share(ctx, c)
}
