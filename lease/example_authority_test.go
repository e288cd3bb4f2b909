package lease_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/fencedb/fencedb/lease"
)

// A supervisor has found the holder of token dead. Of two that take over one succeeds.
func ExampleIssuer_TakeOver() {
	i, disconnect := issuer()
	defer disconnect()
	ctx := context.Background()
	dead, err := i.TryAcquire(ctx, "job:9")
	if err != nil {
		log.Fatal(err)
	}

	for range 2 {
		_, err = i.TakeOver(ctx, "job:9", dead.Token()) // then fencedb.Seal(ctx, pool, revocation)
		fmt.Println("taken over:", err == nil, "too late:", errors.Is(err, lease.ErrStale))
	}
	// Output:
	// taken over: true too late: false
	// taken over: false too late: true
}

// A revocation is a grant as package fencedb takes it: sealed, it shuts the former holder out.
func ExampleRevocation() {
	i, disconnect := issuer()
	defer disconnect()
	ctx := context.Background()
	l, err := i.TryAcquire(ctx, "job:9")
	if err != nil {
		log.Fatal(err)
	}

	revocation, err := i.Revoke(ctx, "job:9")
	if err != nil {
		log.Fatal(err)
	}

	id, token, held := revocation.Holder()
	fmt.Println("it was held:", held && id == l.LeaseID() && token == l.Token())
	fmt.Println(revocation.Resource(), "with a higher token:", revocation.Token() > token)
	fmt.Println("and an id of its own:", revocation.LeaseID() != id)
	// Output:
	// it was held: true
	// job:9 with a higher token: true
	// and an id of its own: true
}

// The store of the data has seen a higher token than Redis remembers.
func ExampleIssuer_Raise() {
	i, disconnect := issuer()
	defer disconnect()
	ctx := context.Background()
	stored := time.Now().Add(time.Hour).UnixMicro()

	fence, err := i.Raise(ctx, "table:12", stored)
	if err != nil {
		log.Fatal(err)
	}
	l, err := i.TryAcquire(ctx, "table:12")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("at the stored one:", fence == stored)
	fmt.Println("the next is above it:", l.Token() > stored)
	_ = l.Release(ctx)
	// Output:
	// at the stored one: true
	// the next is above it: true
}

func ExampleIssuer_Inspect() {
	i, disconnect := issuer()
	defer disconnect()
	ctx := context.Background()
	l, err := i.TryAcquire(ctx, "table:12")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Release(ctx)

	found, err := i.Inspect(ctx, "table:12")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("ours:", found.Holder == l.LeaseID() && found.Token == l.Token())
	fmt.Println("for", found.ExpiresIn.Round(time.Second), "with", found.Waiters, "waiting")
	// Output:
	// ours: true
	// for 10s with 0 waiting
}

// Before a service says that it is ready. Package observe/ready makes an HTTP handler of it.
func ExampleIssuer_Check() {
	client, disconnect := connect()
	i, err := lease.New(client, lease.Config{TTL: 10 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()

	health, err := i.Check(ctx)
	fmt.Println(len(health.Servers), "server, err:", err)

	disconnect()
	_, err = i.Check(ctx)
	fmt.Println("unreachable:", errors.Is(err, lease.ErrUnreachable))
	// Output:
	// 1 server, err: <nil>
	// unreachable: true
}

// What a person should look at is a warning: leases are granted all the same.
func ExampleHealth_Warnings() {
	health := lease.Health{Servers: []lease.ServerHealth{
		{Addr: "10.0.0.7:6379", Warnings: []lease.Warning{{Code: lease.WarnUnlogged, Text: "a crash forgets leases"}}},
	}}
	for _, warning := range health.Warnings() {
		fmt.Println(warning)
	}
	// Output: 10.0.0.7:6379: a crash forgets leases
}
