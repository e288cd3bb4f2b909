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

const (
	processes = 4 // connections and caches of their own: to Redis they look like processes
	readers   = 250
	buildTime = 300 * time.Millisecond
)

// run lets everybody read the same key, and counts how often it is built.
func run(ctx context.Context, out io.Writer) error {
	options, err := redis.ParseURL(os.Getenv("FENCEDB_REDIS_URL"))
	if err != nil {
		return errors.New("FENCEDB_REDIS_URL must be the URL of a Redis, such as redis://user:password@host:6379/0")
	}
	ttl, err := time.ParseDuration(cmp.Or(os.Getenv("CACHE_TTL"), "5s"))
	if err != nil {
		return fmt.Errorf("CACHE_TTL: %w", err)
	}
	var builds atomic.Int64
	build := func(ctx context.Context, _ string) (dishes []string, err error) {
		builds.Add(1)
		select {
		case <-time.After(buildTime): // a slow query
			return []string{"soup", "fish"}, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	cfg := lease.Config{TTL: ttl, Namespace: "demo_" + rand.Text()}
	var all errgroup.Group
	start := time.Now()
	for range processes {
		client := redis.NewClient(options)
		defer client.Close()
		cache, err := NewCache(client, cfg, time.Minute, build)
		if err != nil {
			return err
		}
		for range readers {
			all.Go(func() error {
				_, err := cache.Get(ctx, "menu:today")
				return err
			})
		}
	}
	if err := all.Wait(); err != nil {
		return err
	}
	fmt.Fprintf(out, "%d readers in %d processes, all at once: built %d times, the slowest waited %v for a build of %v\n",
		processes*readers, processes, builds.Load(), time.Since(start).Round(time.Millisecond), buildTime)
	if builds.Load() != 1 {
		return errors.New("it should have been built once")
	}
	return nil
}
