package lease_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strings"
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

func ExampleNoWait_retryAfter() {
	client, disconnect := connect()
	defer disconnect()
	ctx := context.Background()
	issuer, err := lease.New(client, lease.Config{TTL: 10 * time.Second})
	if err != nil {
		log.Fatal(err)
	}

	first, err := issuer.Acquire(ctx, "table:12", lease.NoWait())
	if err != nil {
		log.Fatal(err)
	}
	defer first.Release(ctx)

	_, err = issuer.Acquire(ctx, "table:12", lease.NoWait())
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
	standing, _ := l.Verify(ctx)
	fmt.Println(standing)

	client.FlushAll(ctx)
	standing, _ = l.Verify(ctx)
	fmt.Println(standing)
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
		Seal: func(ctx context.Context, grants ...lease.Grant) error {
			fmt.Println("sealing", grants[0].Resource()) // with Postgres: Seal: fencedb.Sealer(pool)
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
	fmt.Println("a new last token:", revocation.Token() > l.Token())
	fmt.Println("the holder learns of it:", errors.Is(l.Extend(ctx), lease.ErrRevoked))
	// Output:
	// a new last token: true
	// the holder learns of it: true
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

// issuer gives the examples an issuer with leases of ten seconds.
func issuer() (i *lease.Issuer, disconnect func()) {
	client, disconnect := connect()
	i, err := lease.New(client, lease.Config{TTL: 10 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	return i, disconnect
}

// A configuration that cannot work is refused before anything is sent; the error names the field.
func ExampleNew() {
	client, disconnect := connect()
	defer disconnect()

	_, err := lease.New(client, lease.Config{TTL: 10 * time.Second, RenewEvery: time.Minute})

	fmt.Println("refused:", errors.Is(err, lease.ErrInvalid))
	// Output: refused: true
}

// CLIENT LIST then shows the program, host and process of each connection.
func ExampleClientName() {
	options := &redis.Options{Addr: "127.0.0.1:6379", ClientName: lease.ClientName("booking desk")}

	program, _, _ := strings.Cut(options.ClientName, "@") // before the host and the process
	fmt.Println(program)
	// Output: booking_desk
}

func ExampleResource() {
	fmt.Println(lease.Resource("table", 12))
	// Output: table:12
}

// The lease is released even if the work fails.
func ExampleIssuer_Do() {
	i, disconnect := issuer()
	defer disconnect()
	ctx := context.Background()

	err := i.Do(ctx, "table:12", func(ctx context.Context, l *lease.Lease) error {
		_, err := i.Acquire(ctx, "table:12", lease.NoWait())
		fmt.Println("meanwhile held:", errors.Is(err, lease.ErrHeld))
		return errors.New("the kitchen is closed")
	})
	fmt.Println("err:", err)

	l, err := i.Acquire(ctx, "table:12", lease.NoWait())
	fmt.Println("free again:", err == nil)
	_ = l.Release(ctx)
	// Output:
	// meanwhile held: true
	// err: the kitchen is closed
	// free again: true
}

// One process has the role at a time, until its function returns; then the next term begins.
func ExampleIssuer_Lead() {
	i, disconnect := issuer()
	defer disconnect()
	ctx, stop := context.WithCancelCause(context.Background())
	night := errors.New("it is night")

	terms := 0
	err := i.Lead(ctx, "role:report-builder", func(ctx context.Context, l *lease.Lease) error {
		if terms++; terms == 1 {
			return errors.New("the printer is out of paper")
		}
		fmt.Println("leading again")
		stop(night)
		<-ctx.Done() // the work heeds its context
		return context.Cause(ctx)
	}, lease.OnTerm(func(err error) { fmt.Println("term:", err) }))
	fmt.Println("err:", err)
	// Output:
	// term: the printer is out of paper
	// leading again
	// term: it is night
	// err: it is night
}

func ExampleIssuer_DoAll() {
	i, disconnect := issuer()
	defer disconnect()

	err := i.DoAll(context.Background(), []string{"sku:7", "sku:3"}, func(ctx context.Context, ls lease.Leases) error {
		fmt.Println("holding", len(ls)) // fencedb.All(ls...) makes one grant of them
		return nil
	})
	fmt.Println("err:", err)
	// Output:
	// holding 2
	// err: <nil>
}

// Work that another process does at this moment is skipped.
func ExampleNoWait() {
	i, disconnect := issuer()
	defer disconnect()
	ctx := context.Background()

	refresh := func(ctx context.Context, l *lease.Lease) error {
		return i.Do(ctx, "cache:menu", func(context.Context, *lease.Lease) error { return nil }, lease.NoWait())
	}
	err := i.Do(ctx, "cache:menu", refresh, lease.NoWait())
	fmt.Println("skipped:", errors.Is(err, lease.ErrHeld))
	// Output: skipped: true
}

// All or none: if one resource is held, none is acquired.
func ExampleIssuer_AcquireAll_allOrNone() {
	i, disconnect := issuer()
	defer disconnect()
	ctx := context.Background()
	other, err := i.Acquire(ctx, "sku:7", lease.NoWait())
	if err != nil {
		log.Fatal(err)
	}
	defer other.Release(ctx)

	_, err = i.AcquireAll(ctx, []string{"sku:3", "sku:7"}, lease.NoWait())
	if held := (*lease.HeldError)(nil); errors.As(err, &held) {
		fmt.Println("held:", held.Resource)
	}
	found, err := i.Inspect(ctx, "sku:3")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("sku:3 is free:", found.Token == 0)
	// Output:
	// held: sku:7
	// sku:3 is free: true
}

// An HTTP handler that answers 409 instead of waiting for long.
func ExampleWaitAtMost() {
	i, disconnect := issuer()
	defer disconnect()
	ctx := context.Background()
	other, err := i.Acquire(ctx, "table:12", lease.NoWait())
	if err != nil {
		log.Fatal(err)
	}
	defer other.Release(ctx)

	_, err = i.Acquire(ctx, "table:12", lease.WaitAtMost(time.Second))
	if held := (*lease.HeldError)(nil); errors.As(err, &held) {
		fmt.Println("held; Retry-After:", held.RetryAfter.Round(10*time.Second))
	}
	// Output: held; Retry-After: 10s
}
