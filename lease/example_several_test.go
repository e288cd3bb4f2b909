package lease_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/fencedb/fencedb/lease"
)

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
	// the old lease: lease: fencing token is stale: exchanged for one that is not
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
