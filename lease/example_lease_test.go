package lease_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/fencedb/fencedb/lease"
)

// A lease is a grant as package fencedb takes it: a resource, a token, a lease id.
func ExampleLease() {
	i, disconnect := issuer()
	defer disconnect()
	ctx := context.Background()

	first, err := i.Acquire(ctx, "table:12", lease.NoWait())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(first.Resource(), "for", time.Until(first.ValidUntil()).Round(5*time.Second))
	_ = first.Release(ctx)

	second, err := i.Acquire(ctx, "table:12", lease.NoWait())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("a higher token:", second.Token() > first.Token())
	fmt.Println("another id:", second.LeaseID() != first.LeaseID())
	_ = second.Release(ctx)
	// Output:
	// table:12 for 10s
	// a higher token: true
	// another id: true
}

// The issuer renews leases; call Extend where that is turned off, or before a long step.
func ExampleLease_Extend() {
	client, disconnect := connect()
	defer disconnect()
	ctx := context.Background()
	i, err := lease.New(client, lease.Config{TTL: 10 * time.Second, RenewEvery: lease.Never})
	if err != nil {
		log.Fatal(err)
	}
	l, err := i.Acquire(ctx, "table:12", lease.NoWait())
	if err != nil {
		log.Fatal(err)
	}
	before := l.ValidUntil()

	fmt.Println("err:", l.Extend(ctx))
	fmt.Println("longer:", l.ValidUntil().After(before))

	_ = l.Release(ctx)
	fmt.Println("err:", errors.Is(l.Extend(ctx), lease.ErrReleased))
	// Output:
	// err: <nil>
	// longer: true
	// err: true
}

// Err costs nothing, so ask it between the steps of long work.
func ExampleLease_Err() {
	i, disconnect := issuer()
	defer disconnect()
	ctx := context.Background()
	l, err := i.Acquire(ctx, "table:12", lease.NoWait())
	if err != nil {
		log.Fatal(err)
	}
	for step := 1; l.Err() == nil; step++ {
		fmt.Println("step", step)
		if step == 2 {
			_ = l.Release(ctx)
		}
	}
	fmt.Println(l.Err())
	// Output:
	// step 1
	// step 2
	// lease: released
}

// A release that comes too late harms no other holder, and returns an error.
func ExampleLease_Release() {
	client, disconnect := connect()
	defer disconnect()
	ctx := context.Background()
	i, err := lease.New(client, lease.Config{TTL: 10 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	l, err := i.Acquire(ctx, "table:12", lease.NoWait())
	if err != nil {
		log.Fatal(err)
	}
	client.FlushAll(ctx) // Redis forgets, and another gets the next lease
	next, err := i.Acquire(ctx, "table:12", lease.NoWait())
	if err != nil {
		log.Fatal(err)
	}

	fmt.Println("lost:", errors.Is(l.Release(ctx), lease.ErrLost))
	standing, _ := next.Verify(ctx)
	fmt.Println("the next lease:", standing)
	fmt.Println("err:", next.Release(ctx))
	// Output:
	// lost: true
	// the next lease: current
	// err: <nil>
}

func ExampleLeases_Release() {
	i, disconnect := issuer()
	defer disconnect()
	ctx := context.Background()
	leases, err := i.AcquireAll(ctx, []string{"sku:3", "sku:7"}, lease.NoWait())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("err:", leases.Release(ctx))

	_, err = i.AcquireAll(ctx, []string{"sku:3", "sku:7"}, lease.NoWait())
	fmt.Println("free again:", err == nil)
	// Output:
	// err: <nil>
	// free again: true
}

// Work under a context of the caller's own, such as an HTTP request's, that ends with the lease as
// well.
func ExampleLease_Bind() {
	i, disconnect := issuer()
	defer disconnect()
	request := context.Background()
	l, err := i.Acquire(request, "table:12", lease.NoWait())
	if err != nil {
		log.Fatal(err)
	}
	ctx, unbind := l.Bind(request)
	defer unbind()

	_ = l.Release(request)

	<-ctx.Done()
	fmt.Println(context.Cause(ctx))
	// Output: lease: released
}

func ExampleLeases_Bind() {
	i, disconnect := issuer()
	defer disconnect()
	request := context.Background()
	leases, err := i.AcquireAll(request, []string{"sku:3", "sku:7"}, lease.NoWait())
	if err != nil {
		log.Fatal(err)
	}
	ctx, unbind := leases.Bind(request)
	defer unbind()

	_ = leases[1].Release(request) // the first to end ends the work

	<-ctx.Done()
	fmt.Println(context.Cause(ctx))
	_ = leases.Release(request)
	// Output: lease: released
}

// A supervisor has found the holder of this token dead. Of two that take over, one succeeds.
func ExampleIssuer_TakeOver() {
	i, disconnect := issuer()
	defer disconnect()
	ctx := context.Background()
	dead, err := i.Acquire(ctx, "job:9", lease.NoWait())
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

// fencedb.Seal takes a revocation as a grant: then the former holder cannot write.
func ExampleRevocation() {
	i, disconnect := issuer()
	defer disconnect()
	ctx := context.Background()
	l, err := i.Acquire(ctx, "job:9", lease.NoWait())
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

// The data store has seen a higher token than Redis remembers.
func ExampleIssuer_Raise() {
	i, disconnect := issuer()
	defer disconnect()
	ctx := context.Background()
	stored := time.Now().Add(time.Hour).UnixMicro()

	fence, err := i.Raise(ctx, "table:12", stored)
	if err != nil {
		log.Fatal(err)
	}
	l, err := i.Acquire(ctx, "table:12", lease.NoWait())
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
	l, err := i.Acquire(ctx, "table:12", lease.NoWait())
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

// Check before a service reports that it is ready. Package observe/ready makes an HTTP handler of
// it.
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

// A warning is for people: leases are granted all the same.
func ExampleHealth_Warnings() {
	health := lease.Health{Servers: []lease.ServerHealth{
		{Addr: "10.0.0.7:6379", Warnings: []lease.Warning{{Code: lease.WarnUnlogged, Text: "a crash forgets leases"}}},
	}}
	for _, warning := range health.Warnings() {
		fmt.Println(warning)
	}
	// Output: 10.0.0.7:6379: a crash forgets leases
}
