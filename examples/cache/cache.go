package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/singleflight"

	"github.com/fencedb/fencedb/lease"
)

// Cache keeps values that are expensive to build. However many readers of however many processes
// miss one at the same moment, one of them builds it, under a lease, and the others wait for that.
//
// A builder that dies is replaced after the TTL of the lease. One that was stopped, or that read
// before Drop, cannot put its old value over a newer one: Redis refuses it. What is cached is only
// as good as Redis's memory: a value that is lost is built again.
type Cache[T any] struct {
	client    redis.UniversalClient
	builders  *lease.Issuer
	namespace string
	lasts     time.Duration
	build     func(ctx context.Context, name string) (T, error)
	flights   singleflight.Group // of the readers of this process
}

// NewCache returns a cache whose values last for that time. The TTL of cfg is how long a builder
// that has died blocks the others.
func NewCache[T any](client redis.UniversalClient, cfg lease.Config, lasts time.Duration,
	build func(ctx context.Context, name string) (T, error)) (*Cache[T], error) {
	builders, err := lease.New(client, cfg)
	if err != nil {
		return nil, err
	}
	return &Cache[T]{client: client, builders: builders, namespace: cfg.Namespace, lasts: lasts, build: build}, nil
}

// resource is what builders of a value lease, and key where it is kept: on a Cluster in the same
// slot.
func resource(name string) string { return "cache:" + name }

func (c *Cache[T]) key(name string) string {
	return lease.Key{Kind: "cache", Namespace: c.namespace, Resource: resource(name), Field: "value"}.String()
}

// Get returns the value, building it if need be. While Redis does not answer it fails; a reader
// that would rather build for itself then, does so on [lease.ErrUnreachable]. A build goes on when
// the reader's context ends, for those who wait with it. If it panics, all of them get an error.
func (c *Cache[T]) Get(ctx context.Context, name string) (value T, err error) {
	value, err = c.read(ctx, name)
	if !errors.Is(err, redis.Nil) {
		return value, err
	}
	flight := c.flights.DoChan(name, func() (any, error) { return c.fill(context.WithoutCancel(ctx), name) })
	select {
	case landed := <-flight:
		value, _ = landed.Val.(T)
		return value, landed.Err
	case <-ctx.Done():
		return value, context.Cause(ctx)
	}
}

// pause comes before a build that was overtaken is begun again.
const pause = 100 * time.Millisecond

// fill waits until the value is there, or builds it.
func (c *Cache[T]) fill(ctx context.Context, name string) (value T, err error) {
	defer func() {
		if p := recover(); p != nil { // on the goroutine of a flight it would end the process
			err = fmt.Errorf("the build of %q panicked: %v", name, p)
		}
	}()
	for ; ; time.Sleep(pause) {
		held := false // until fn returned
		err = c.builders.Do(ctx, resource(name), func(ctx context.Context, l *lease.Lease) error {
			defer func() { held = l.Err() == nil }()
			if value, err = c.read(ctx, name); !errors.Is(err, redis.Nil) {
				return err // another process has built it
			}
			if value, err = c.build(ctx, name); err != nil {
				return err
			}
			text, err := json.Marshal(value)
			if err != nil {
				return err
			}
			_, err = l.Eval(ctx, `return redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])`,
				[]string{c.key(name)}, text, c.lasts.Milliseconds())
			return err
		})
		switch {
		case errors.Is(err, lease.ErrWorkDone): // it is kept; only the lease ended early
			return value, nil
		case held || !lease.IsLost(err): // held: what the build has lost is something else
			return value, err
		}
		// It was overtaken: what it has built may be old, and was not kept.
	}
}

func (c *Cache[T]) read(ctx context.Context, name string) (value T, err error) {
	text, err := c.client.Get(ctx, c.key(name)).Bytes()
	switch {
	case errors.Is(err, redis.Nil):
		return value, err
	case err != nil:
		return value, fmt.Errorf("%w: %w", lease.ErrUnreachable, err)
	}
	if json.Unmarshal(text, &value) != nil { // written by another release, with another T: as if it were missing
		var none T
		return none, redis.Nil
	}
	return value, nil
}

// Drop makes the next reader build the value anew. Call it when what the value is built from has
// changed: a builder that has read that before loses its lease, and what it has built is not kept.
func (c *Cache[T]) Drop(ctx context.Context, name string) error {
	if _, err := c.builders.Revoke(ctx, resource(name)); err != nil {
		return err
	}
	c.flights.Forget(name)
	return c.client.Del(ctx, c.key(name)).Err()
}
