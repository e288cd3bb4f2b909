package main

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/lease/once"
)

// Cache keeps values that are expensive to build. However many readers of however many processes
// miss one at the same moment, one of them builds it, and the others wait for that.
//
// A builder that dies or is stopped is replaced after cfg.InFlight, and cannot put its late value
// over the newer one. A build that fails is tried again by the next reader who waits. What is
// cached is only as good as Redis's memory: a value that is lost is built again.
type Cache[T any] struct {
	values *once.Once
	build  func(ctx context.Context, key string) (T, error)
}

// NewCache returns a cache whose values last for cfg.Done.
func NewCache[T any](
	client redis.UniversalClient, cfg once.Config, build func(ctx context.Context, key string) (T, error),
) (*Cache[T], error) {
	values, err := once.New(client, cfg)
	if err != nil {
		return nil, err
	}
	return &Cache[T]{values, build}, nil
}

// Get returns the value, building it if need be. While Redis does not answer it fails; a reader
// that would rather build for itself then, does so on [lease.ErrUnreachable].
func (c *Cache[T]) Get(ctx context.Context, key string) (T, error) {
	value, _, err := once.DoJSON(ctx, c.values, key, nil, func(ctx context.Context, _ *lease.Lease) (T, error) {
		return c.build(ctx, key)
	})
	return value, err
}

// Drop makes the next reader build the value anew. A build under way is not stopped, and its value
// is kept.
func (c *Cache[T]) Drop(ctx context.Context, key string) error { return c.values.Forget(ctx, key) }
