package lease_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/lease"
)

// connect gives the examples a Redis. Use redis.NewClient(&redis.Options{Addr: ...}), a Sentinel or
// a Cluster client.
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

	issuer, err := lease.New(client, lease.Config{TTL: 10 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	err = issuer.Do(ctx, "table:12", func(ctx context.Context, l *lease.Lease) error {
		fmt.Println("holding", l.Resource())
		return nil // work under ctx; pass l to fencedb.Tx for what must not be written late
	})
	fmt.Println("err:", err)
	// Output:
	// holding table:12
	// err: <nil>
}

func ExampleIssuer_TryAcquire() {
	client, disconnect := connect()
	defer disconnect()
	ctx := context.Background()
	issuer, err := lease.New(client, lease.Config{TTL: 10 * time.Second})
	if err != nil {
		log.Fatal(err)
	}

	first, err := issuer.TryAcquire(ctx, "table:12")
	if err != nil {
		log.Fatal(err)
	}
	defer first.Release(ctx)

	_, err = issuer.TryAcquire(ctx, "table:12")
	if held := (*lease.HeldError)(nil); errors.As(err, &held) {
		fmt.Println(held.Resource, "is taken; try again in", held.RetryAfter.Round(10*time.Second))
	}
	// Output: table:12 is taken; try again in 10s
}

func ExampleIssuer_Acquire() {
	client, disconnect := connect()
	defer disconnect()
	ctx := context.Background()
	issuer, err := lease.New(client, lease.Config{TTL: 10 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	first, err := issuer.Acquire(ctx, "table:12")
	if err != nil {
		log.Fatal(err)
	}
	defer first.Release(ctx)

	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err = issuer.Acquire(ctx, "table:12")
	fmt.Println("held by another:", errors.Is(err, lease.ErrHeld))
	fmt.Println("waited in vain:", errors.Is(err, context.DeadlineExceeded))
	// Output:
	// held by another: true
	// waited in vain: true
}

func ExampleLease_Context() {
	client, disconnect := connect()
	defer disconnect()
	ctx := context.Background()
	issuer, err := lease.New(client, lease.Config{TTL: time.Second, RenewEvery: lease.Never})
	if err != nil {
		log.Fatal(err)
	}
	l, err := issuer.Acquire(ctx, "table:12")
	if err != nil {
		log.Fatal(err)
	}

	<-l.Context().Done() // work that takes too long
	fmt.Println(context.Cause(l.Context()))
	// Output: lease: expired
}

func ExampleLease_Verify() {
	client, disconnect := connect()
	defer disconnect()
	ctx := context.Background()
	issuer, err := lease.New(client, lease.Config{TTL: 10 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	l, err := issuer.Acquire(ctx, "table:12")
	if err != nil {
		log.Fatal(err)
	}
	verdict, _ := l.Verify(ctx)
	fmt.Println(verdict)

	client.FlushAll(ctx)
	verdict, _ = l.Verify(ctx)
	fmt.Println(verdict)
	fmt.Println(l.Err())
	// Output:
	// current
	// lease lost
	// lease: lost: redis no longer has it
}

func ExampleConfig_seal() {
	client, disconnect := connect()
	defer disconnect()
	ctx := context.Background()
	issuer, err := lease.New(client, lease.Config{
		TTL: 10 * time.Second,
		Seal: func(ctx context.Context, l lease.Grant) error {
			fmt.Println("sealing", l.Resource()) // with Postgres: Seal: fencedb.Sealer(pool)
			return nil
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	l, err := issuer.Acquire(ctx, "table:12")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("holding", l.Resource())
	_ = l.Release(ctx)
	// Output:
	// sealing table:12
	// holding table:12
}

func ExampleIssuer_AcquireAll() {
	client, disconnect := connect()
	defer disconnect()
	ctx := context.Background()
	issuer, err := lease.New(client, lease.Config{TTL: 10 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	leases, err := issuer.AcquireAll(ctx, []string{"sku:7", "sku:3"}, lease.WaitAtMost(time.Second))
	if err != nil {
		log.Fatal(err)
	}
	for _, l := range leases { // fencedb.All(leases...) makes one grant of them
		fmt.Println("holding", l.Resource())
	}
	fmt.Println("err:", leases.Release(ctx))
	// Output:
	// holding sku:3
	// holding sku:7
	// err: <nil>
}

func ExampleIssuer_Revoke() {
	client, disconnect := connect()
	defer disconnect()
	ctx := context.Background()
	issuer, err := lease.New(client, lease.Config{TTL: 10 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	l, err := issuer.Acquire(ctx, "job:9")
	if err != nil {
		log.Fatal(err)
	}
	revocation, err := issuer.Revoke(ctx, "job:9") // then fencedb.Seal(ctx, pool, revocation)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("fence moved on:", revocation.Token() > l.Token())
	fmt.Println("holder told:", errors.Is(l.Extend(ctx), lease.ErrRevoked))
	// Output:
	// fence moved on: true
	// holder told: true
}

func ExampleIssuer_Heal() {
	client, disconnect := connect()
	defer disconnect()
	ctx := context.Background()
	issuer, err := lease.New(client, lease.Config{TTL: 10 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	l, err := issuer.Acquire(ctx, "table:12")
	if err != nil {
		log.Fatal(err)
	}
	stored := l.Token() + 1_000_000 // what the data store said it had seen, refusing l
	healed, err := issuer.Heal(ctx, l, stored)
	if err != nil {
		log.Fatal(err)
	}
	defer healed.Release(ctx)
	fmt.Println("above what is stored:", healed.Token() > stored)
	fmt.Println("the old lease:", l.Err())
	// Output:
	// above what is stored: true
	// the old lease: lease: fencing token is stale: exchanged for a lease with a newer token
}

func ExampleLease_Expiring() {
	client, disconnect := connect()
	defer disconnect()
	ctx := context.Background()
	issuer, err := lease.New(client, lease.Config{TTL: 3 * time.Second, RenewEvery: lease.Never})
	if err != nil {
		log.Fatal(err)
	}
	l, err := issuer.Acquire(ctx, "table:12")
	if err != nil {
		log.Fatal(err)
	}
	select {
	case until := <-l.Expiring():
		fmt.Println("time left to stop:", time.Until(until) > 0)
	case <-l.Context().Done():
	}
	// Output: time left to stop: true
}
