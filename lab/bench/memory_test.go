package main

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/internal/worker"
	"github.com/fencedb/fencedb/lease"
)

const (
	together = 1000 // leases that one call acquires
	leasers  = 64   // goroutines that lease one resource after the other
)

// What a lease weighs in Redis, and that resources which were leased once leave nothing. make
// make bench BENCH=memory shows it at full size.
func TestMemoryOfResourcesThatWereLeasedOnce(t *testing.T) {
	client := testenv.OwnRedis(t).Client()
	brief := sized(6*time.Second, 20*time.Second) // short enough to wait for, and outlasts the making of a sample
	issuer, err := lease.New(client, lease.Config{TTL: brief, RenewEvery: lease.Never, FenceRetention: brief})
	require.NoError(t, err)
	used := func() float64 {
		return read(t, func(ctx context.Context) (float64, error) { return info(ctx, client, "memory", "used_memory") })
	}

	sample, empty := sized(100, 100_000), used()
	all, err := hold(t.Context(), issuer, sample)
	require.NoError(t, err)
	held := used()
	require.NoError(t, release(t.Context(), all))
	fmt.Printf("\nRedis's memory: %.0f bytes for a lease that is held, %.0f for a resource whose last token is remembered\n",
		(held-empty)/float64(sample), (used()-empty)/float64(sample))
	require.NoError(t, emptied(t.Context(), client, 20*brief))

	resources, before, began := sized(2000, 1_000_000), used(), time.Now()
	peak, err := leaseEachOnce(t.Context(), client, issuer, resources)
	require.NoError(t, err)
	took := time.Since(began)
	require.Positive(t, peak, "or it was not seen that anything was there")
	require.NoError(t, emptied(t.Context(), client, 20*brief))
	fmt.Printf("%d resources leased once in %v: up to %d keys; when the last token was forgotten, after %v: 0 keys, %+.0f kB\n",
		resources, took.Round(time.Second), peak, brief, (used()-before)/1024)
}

func TestWhatStaysIsSeen(t *testing.T) {
	client := testenv.OwnRedis(t).Client()
	require.NoError(t, client.Set(t.Context(), "a", 1, 0).Err())
	require.Error(t, emptied(t.Context(), client, 0))
}

// hold acquires so many leases.
func hold(ctx context.Context, issuer *lease.Issuer, count int) (all lease.Leases, err error) {
	for len(all) < count && err == nil {
		var names []string
		for n := range min(together, count-len(all)) {
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

// leaseEachOnce acquires and releases so many resources and returns the most keys that were seen on
// the way.
func leaseEachOnce(
	ctx context.Context, client *redis.Client, issuer *lease.Issuer, resources int,
) (peak int64, err error) {
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(leasers)
	for n := range resources {
		all.Go(func() error {
			l, err := issuer.Acquire(ctx, lease.Resource("order", n), lease.NoWait())
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
