package lease_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/lease"
)

func ExampleSemaphore() {
	client, disconnect := connect()
	defer disconnect()
	ctx := context.Background()
	exports, err := lease.NewSemaphore(client, lease.SemaphoreConfig{Limit: 2, Lease: lease.Config{TTL: 10 * time.Second}})
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

// exports lets two hold a resource at once.
func exports(client *redis.Client) *lease.Semaphore {
	s, err := lease.NewSemaphore(client, lease.SemaphoreConfig{Limit: 2, Lease: lease.Config{TTL: 10 * time.Second}})
	if err != nil {
		log.Fatal(err)
	}
	return s
}

func ExampleNewSemaphore() {
	client, disconnect := connect()
	defer disconnect()

	_, err := lease.NewSemaphore(client, lease.SemaphoreConfig{Lease: lease.Config{TTL: 10 * time.Second}})

	fmt.Println("needs a limit:", errors.Is(err, lease.ErrInvalid))
	// Output: needs a limit: true
}

func ExampleSemaphore_Do() {
	client, disconnect := connect()
	defer disconnect()
	ctx := context.Background()
	s := exports(client)

	err := s.Do(ctx, "tenant:7", func(ctx context.Context, l *lease.Lease) error {
		found, err := s.Inspect(ctx, "tenant:7")
		fmt.Println("held by", len(found.Permits))
		return err // work under ctx, which ends with the permit
	})

	fmt.Println("err:", err)
	// Output:
	// held by 1
	// err: <nil>
}

// Each permit is a lease with a token of its own.
func ExampleSemaphore_Acquire_noWait() {
	client, disconnect := connect()
	defer disconnect()
	ctx := context.Background()
	s := exports(client)

	for range 3 {
		l, err := s.Acquire(ctx, "tenant:7", lease.NoWait())
		if held := (*lease.HeldError)(nil); errors.As(err, &held) {
			fmt.Println("full; again in", held.RetryAfter.Round(10*time.Second))
			continue
		}
		defer l.Release(ctx)
		fmt.Println("in")
	}
	// Output:
	// in
	// in
	// full; again in 10s
}

// First come, first served: a release wakes the next waiter.
func ExampleSemaphore_Acquire() {
	client, disconnect := connect()
	defer disconnect()
	ctx := context.Background()
	s := exports(client)
	var permits []*lease.Lease
	for range 2 {
		l, err := s.Acquire(ctx, "tenant:7")
		if err != nil {
			log.Fatal(err)
		}
		permits = append(permits, l)
	}

	_, err := s.Acquire(ctx, "tenant:7", lease.WaitAtMost(50*time.Millisecond))
	fmt.Println("waited in vain:", errors.Is(err, context.DeadlineExceeded))

	_ = permits[0].Release(ctx)
	l, err := s.Acquire(ctx, "tenant:7")
	fmt.Println("err:", err)
	_, _ = l.Release(ctx), permits[1].Release(ctx)
	// Output:
	// waited in vain: true
	// err: <nil>
}

func ExampleSemaphore_Inspect() {
	client, disconnect := connect()
	defer disconnect()
	ctx := context.Background()
	s := exports(client)
	l, err := s.Acquire(ctx, "tenant:7", lease.NoWait())
	if err != nil {
		log.Fatal(err)
	}
	defer l.Release(ctx)

	found, err := s.Inspect(ctx, "tenant:7")
	if err != nil {
		log.Fatal(err)
	}
	for _, h := range found.Permits {
		fmt.Println("ours:", h.LeaseID == l.LeaseID(), "for", h.ExpiresIn.Round(time.Second))
	}
	// Output: ours: true for 10s
}

// An operator ends one of the permits that Inspect lists.
func ExampleSemaphore_Revoke() {
	client, disconnect := connect()
	defer disconnect()
	ctx := context.Background()
	s := exports(client)
	l, err := s.Acquire(ctx, "tenant:7", lease.NoWait())
	if err != nil {
		log.Fatal(err)
	}

	held, err := s.Revoke(ctx, "tenant:7", l.LeaseID())
	if err != nil {
		log.Fatal(err)
	}

	fmt.Println("it was held:", held)
	fmt.Println("the holder learns of it:", errors.Is(l.Extend(ctx), lease.ErrRevoked))
	// Output:
	// it was held: true
	// the holder learns of it: true
}
