package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/fencedb/fencedb/internal/demo/worker"
	"github.com/fencedb/fencedb/lease"
)

// brief is short enough to wait for, and outlasts the making of a sample.
const brief = 20 * time.Second

const (
	sample   = 100_000 // leases to weigh
	together = 1000    // that one call acquires
	leasers  = 64      // goroutines that lease one resource after the other
)

// memory weighs leases, and leases so many different resources once each to see that nothing stays.
func (b *bench) memory(ctx context.Context) error {
	issuer, err := lease.New(b.client, lease.Config{TTL: brief, RenewEvery: lease.Never, FenceRetention: brief})
	if err != nil {
		return err
	}
	held, remembered, err := weigh(ctx, b.client, issuer)
	if err != nil {
		return err
	}
	fmt.Fprintf(b.out, "Redis's memory: %.0f bytes for a lease that is held, %.0f for a resource whose last token is remembered\n", held, remembered)

	before, err := usedMemory(ctx, b.client)
	if err != nil {
		return err
	}
	start := time.Now()
	peak, err := leaseEachOnce(ctx, b.client, issuer, b.resources)
	if err != nil {
		return err
	}
	took := time.Since(start)
	if err := emptied(ctx, b.client, 2*brief); err != nil {
		return err
	}
	after, err := usedMemory(ctx, b.client)
	fmt.Fprintf(b.out, "%d resources leased once in %v: up to %d keys; when the last token was forgotten, after %v: 0 keys, %+.0f kB\n",
		b.resources, took.Round(time.Second), peak, brief, (after-before)/1024)
	return err
}

// weigh holds a sample of leases and gives them back. It leaves nothing.
func weigh(ctx context.Context, client *redis.Client, issuer *lease.Issuer) (held, remembered float64, err error) {
	var all lease.Leases
	var weights []float64
	for _, step := range []func() error{
		func() error { return emptied(ctx, client, 0) },
		func() (err error) { all, err = hold(ctx, issuer, sample); return err },
		func() error { return release(ctx, all) },
	} {
		if err := step(); err != nil {
			return 0, 0, err
		}
		weight, err := usedMemory(ctx, client)
		if err != nil {
			return 0, 0, err
		}
		weights = append(weights, weight)
	}
	return (weights[1] - weights[0]) / sample, (weights[2] - weights[0]) / sample, emptied(ctx, client, 2*brief)
}

// hold acquires so many leases.
func hold(ctx context.Context, issuer *lease.Issuer, count int) (all lease.Leases, err error) {
	for len(all) < count && err == nil {
		var names []string
		for n := range min(together, count) {
			names = append(names, lease.Resource("table", len(all)+n))
		}
		var some lease.Leases
		some, err = issuer.AcquireAll(ctx, names)
		all = append(all, some...)
	}
	return all, err
}

// release gives them back, not all at once: each release has some seconds to end.
func release(ctx context.Context, all lease.Leases) error {
	for some := range slices.Chunk(all, together) {
		if err := some.Release(ctx); err != nil {
			return err
		}
	}
	return nil
}

// leaseEachOnce acquires and releases so many resources and returns the most keys that were seen on the way.
func leaseEachOnce(ctx context.Context, client *redis.Client, issuer *lease.Issuer, resources int) (peak int64, err error) {
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(leasers)
	for n := range resources {
		all.Go(func() error {
			l, err := issuer.TryAcquire(ctx, lease.Resource("order", n))
			if err != nil {
				return err
			}
			return l.Release(ctx)
		})
		if n%100 == 0 {
			peak = max(peak, client.DBSize(ctx).Val())
		}
	}
	return peak, all.Wait()
}

// emptied returns when Redis has no key any more.
func emptied(ctx context.Context, client *redis.Client, within time.Duration) error {
	for over := time.Now().Add(within); ; {
		keys, err := client.DBSize(ctx).Result()
		switch {
		case err != nil || keys == 0:
			return err
		case !time.Now().Before(over):
			return fmt.Errorf("redis has %d keys still", keys)
		}
		_ = worker.Sleep(ctx, 50*time.Millisecond) // the next question fails if ctx has ended
	}
}

// usedMemory is how many bytes Redis has taken.
func usedMemory(ctx context.Context, client *redis.Client) (float64, error) {
	return info(ctx, client, "memory", "used_memory")
}
