package semaphore_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/lease/semaphore"
)

// connect gives the examples a Redis. Use redis.NewClient(&redis.Options{Addr: ...}), a Sentinel or a Cluster client.
func connect() (client *redis.Client, disconnect func()) {
	server, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	client = redis.NewClient(&redis.Options{Addr: server.Addr()})
	return client, func() {
		_ = client.Close()
		server.Close()
	}
}

func Example() {
	client, disconnect := connect()
	defer disconnect()
	ctx := context.Background()
	exports, err := semaphore.New(client, semaphore.Config{Limit: 2, Lease: lease.Config{TTL: 10 * time.Second}})
	if err != nil {
		log.Fatal(err)
	}
	err = exports.Do(ctx, "tenant:7", func(ctx context.Context, l *lease.Lease) error {
		fmt.Println("one of", l.Resource())
		return nil // work under ctx
	})
	fmt.Println("err:", err)
	// Output:
	// one of tenant:7
	// err: <nil>
}

func ExampleSemaphore_SetLimit() {
	client, disconnect := connect()
	defer disconnect()
	ctx := context.Background()
	exports, err := semaphore.New(client, semaphore.Config{Limit: 1, Lease: lease.Config{TTL: 10 * time.Second}})
	if err != nil {
		log.Fatal(err)
	}
	first, err := exports.TryAcquire(ctx, "tenant:7")
	if err != nil {
		log.Fatal(err)
	}
	defer first.Release(ctx)
	_, err = exports.TryAcquire(ctx, "tenant:7")
	fmt.Println("full:", errors.Is(err, lease.ErrHeld))

	if err := exports.SetLimit(ctx, "tenant:7", 2); err != nil {
		log.Fatal(err)
	}
	second, err := exports.TryAcquire(ctx, "tenant:7")
	if err != nil {
		log.Fatal(err)
	}
	defer second.Release(ctx)
	found, err := exports.Inspect(ctx, "tenant:7")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(found.Holders), "of", found.Limit)
	// Output:
	// full: true
	// 2 of 2
}
