package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

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
	fmt.Fprintf(b.out, "Redis's memory: %d bytes for a lease that is held, %d for a resource whose last token is remembered\n", held, remembered)

	before, err := used(ctx, b.client)
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
	after, err := used(ctx, b.client)
	fmt.Fprintf(b.out, "%d resources leased once in %v: up to %d keys; when the last token was forgotten, after %v: 0 keys, %+d kB\n",
		b.resources, took.Round(time.Second), peak, brief, (after-before)/1024)
	return err
}

// weigh holds a sample of leases and gives them back. It leaves nothing.
func weigh(ctx context.Context, client *redis.Client, issuer *lease.Issuer) (held, remembered int64, err error) {
	if err := emptied(ctx, client, 0); err != nil {
		return 0, 0, err
	}
	var weights [3]int64
	weights[0], err = used(ctx, client)
	var all lease.Leases
	for n := 0; n < sample && err == nil; n += together {
		var some lease.Leases
		some, err = issuer.AcquireAll(ctx, names(n, together))
		all = append(all, some...)
	}
	if err == nil {
		weights[1], err = used(ctx, client)
	}
	if err == nil {
		err = all.Release(ctx)
	}
	if err == nil {
		weights[2], err = used(ctx, client)
	}
	if err == nil {
		err = emptied(ctx, client, 2*brief)
	}
	return (weights[1] - weights[0]) / sample, (weights[2] - weights[0]) / sample, err
}

func names(from, count int) (all []string) {
	for n := range count {
		all = append(all, lease.Resource("table", from+n))
	}
	return all
}

// leaseEachOnce acquires and releases so many resources and returns the most keys that were seen on the way.
func leaseEachOnce(ctx context.Context, client *redis.Client, issuer *lease.Issuer, resources int) (peak int64, err error) {
	var next atomic.Int64
	all, ctx := errgroup.WithContext(ctx)
	for range leasers {
		all.Go(func() error {
			for n := next.Add(1); n <= int64(resources); n = next.Add(1) {
				l, err := issuer.TryAcquire(ctx, lease.Resource("order", n))
				if err != nil {
					return err
				}
				if err := l.Release(ctx); err != nil {
					return err
				}
			}
			return nil
		})
	}
	done := make(chan error)
	go func() { done <- all.Wait() }()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for {
		select {
		case err := <-done:
			return peak, err
		case <-look.C:
			peak = max(peak, client.DBSize(ctx).Val())
		}
	}
}

// emptied returns when Redis has no key any more.
func emptied(ctx context.Context, client *redis.Client, within time.Duration) error {
	over := time.After(within)
	for {
		keys, err := client.DBSize(ctx).Result()
		if err != nil || keys == 0 {
			return err
		}
		select {
		case <-over:
			return fmt.Errorf("redis has %d keys still", keys)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// used is how many bytes Redis has taken.
func used(ctx context.Context, client *redis.Client) (int64, error) {
	info, err := client.Info(ctx, "memory").Result()
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(info, "used_memory:")
	number, _, _ := strings.Cut(rest, "\r")
	return strconv.ParseInt(number, 10, 64)
}
