// Command cache lets a thousand readers miss one hot key at the same moment, and counts how often
// it is built.
//
//	go run ./examples/cache     # exits with 0 if it was built once
//
// It leaves nothing behind but keys that expire. See README.md.
package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/fencedb/fencedb/lease"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "cache:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
	options, err := redis.ParseURL(os.Getenv("FENCEDB_REDIS_URL"))
	if err != nil {
		return errors.New("FENCEDB_REDIS_URL must be the URL of a Redis, such as redis://user:password@host:6379/0")
	}
	ttl, err := time.ParseDuration(cmp.Or(os.Getenv("CACHE_TTL"), "5s"))
	if err != nil {
		return fmt.Errorf("CACHE_TTL: %w", err)
	}
	builds, slowest, err := stampede(ctx, options, ttl, "demo_"+rand.Text())
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d readers in %d processes, all at once: built %d times, the slowest waited %v for a build "+
		"of %v\n",
		processes*readers, processes, builds, slowest.Round(time.Millisecond), buildTime)
	if builds != 1 {
		return fmt.Errorf("built %d times", builds)
	}
	return nil
}

const (
	processes = 4 // connections and caches of their own: to Redis they look like processes
	readers   = 250
	buildTime = 300 * time.Millisecond
)

// stampede lets everybody read the same key, and returns how often it was built and how long it took
// until the slowest reader had it.
func stampede(
	ctx context.Context, options *redis.Options, ttl time.Duration, namespace string,
) (builds int64, slowest time.Duration, err error) {
	var built atomic.Int64
	build := func(ctx context.Context, _ string) (dishes []string, err error) {
		built.Add(1)
		select {
		case <-time.After(buildTime): // a slow query
			return []string{"soup", "fish"}, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	var all errgroup.Group
	start := time.Now()
	for range processes {
		own := *options
		client := redis.NewClient(&own)
		defer client.Close()
		cache, err := NewCache(client, lease.Config{TTL: ttl, Namespace: namespace}, time.Minute, build)
		if err != nil {
			return 0, 0, err
		}
		for range readers {
			all.Go(func() error {
				dishes, err := cache.Get(ctx, "menu:today")
				if err == nil && len(dishes) != 2 {
					err = fmt.Errorf("read %v", dishes)
				}
				return err
			})
		}
	}
	err = all.Wait()
	return built.Load(), time.Since(start), err
}
