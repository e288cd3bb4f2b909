package once_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/lease/once"
	"github.com/fencedb/fencedb/migrations"
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

func ExampleKey() {
	fmt.Println(once.Key("report", "acme", 2026, time.November))
	// Output: ["report","acme",2026,11]
}

func Example() {
	client, disconnect := connect()
	defer disconnect()
	ctx := context.Background()
	keys, err := once.New(client, once.Config{})
	if err != nil {
		log.Fatal(err)
	}

	request := []byte(`{"order":7,"amount":"12 EUR"}`)
	charge := func(context.Context, *lease.Lease) ([]byte, error) {
		fmt.Println("charging")
		return []byte("receipt 1"), nil
	}
	for range 2 {
		answer, replayed, err := keys.Do(ctx, "order:7", request, charge)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s (replayed: %v)\n", answer, replayed)
	}

	_, _, err = keys.Do(ctx, "order:7", []byte(`{"order":7,"amount":"99 EUR"}`), charge)
	fmt.Println("another request:", errors.Is(err, once.ErrKeyReused))
	// Output:
	// charging
	// receipt 1 (replayed: false)
	// receipt 1 (replayed: true)
	// another request: true
}

// database is the Postgres of the example, migrated, with a table that it writes to.
var database = sync.OnceValue(func() *pgxpool.Pool {
	ctx := context.Background()
	servers, err := testenv.Start(ctx, testenv.Options{}) // ends with the test binary
	if err != nil {
		log.Fatal(err)
	}
	pool, err := pgxpool.New(ctx, servers.PostgresURL)
	if err != nil {
		log.Fatal(err)
	}
	if err := migrations.Up(ctx, stdlib.OpenDBFromPool(pool)); err != nil {
		log.Fatal(err)
	}
	if _, err := pool.Exec(ctx, `CREATE TABLE charges (amount int)`); err != nil {
		log.Fatal(err)
	}
	return pool
})

// Redis spares Postgres the duplicates; Postgres remembers what Redis may forget. The key is done
// in the transaction of its effect.
func Example_durable() {
	client, disconnect := connect()
	defer disconnect()
	ctx, pool := context.Background(), database()
	keys, err := once.New(client, once.Config{})
	if err != nil {
		log.Fatal(err)
	}
	charge := func(key string, request []byte) (receipt []byte, err error) {
		receipt, _, err = keys.Do(ctx, key, request,
			func(ctx context.Context, claim *lease.Lease) (receipt []byte, err error) {
				err = fencedb.Tx(ctx, pool, claim, func(tx pgx.Tx) error {
					receipt, _, err = fencedb.Once(ctx, tx, key, request, func() ([]byte, error) {
						fmt.Println("charging")
						_, err := tx.Exec(ctx, `INSERT INTO charges (amount) VALUES ($1)`, 12)
						return []byte("receipt 1"), err
					})
					return err
				})
				return receipt, err
			})
		return receipt, err
	}

	for range 2 {
		receipt, err := charge("order:7", []byte("12 EUR"))
		fmt.Println(string(receipt), err)
		client.FlushAll(ctx) // Redis forgets
	}
	// Output:
	// charging
	// receipt 1 <nil>
	// receipt 1 <nil>
}

func ExampleDoJSON() {
	client, disconnect := connect()
	defer disconnect()
	keys, err := once.New(client, once.Config{})
	if err != nil {
		log.Fatal(err)
	}
	type price struct{ Cents int }

	for range 2 {
		p, replayed, err := once.DoJSON(context.Background(), keys, "price:7", nil, func(context.Context, *lease.Lease) (price, error) {
			return price{1200}, nil
		})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(p.Cents, replayed)
	}
	// Output:
	// 1200 false
	// 1200 true
}

func ExampleNoWait() {
	client, disconnect := connect()
	defer disconnect()
	ctx := context.Background()
	keys, err := once.New(client, once.Config{})
	if err != nil {
		log.Fatal(err)
	}
	_, _, err = keys.Do(ctx, "report", nil, func(ctx context.Context, _ *lease.Lease) ([]byte, error) {
		state, err := keys.State(ctx, "report")
		if err != nil {
			return nil, err
		}
		fmt.Println("the key is", state.Phase)

		again := func(context.Context, *lease.Lease) ([]byte, error) { return nil, errors.New("a second run") }
		_, _, err = keys.Do(ctx, "report", nil, again, once.NoWait())
		fmt.Println("a duplicate is told:", errors.Is(err, once.ErrInFlight))
		return nil, nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// the key is in flight
	// a duplicate is told: true
}

// A job of each hour, in every replica of a program.
func ExampleEvery() {
	client, disconnect := connect()
	defer disconnect()
	ctx := context.Background()
	keys, err := once.New(client, once.Config{})
	if err != nil {
		log.Fatal(err)
	}
	for _, replica := range []string{"one", "two"} {
		send := func(context.Context, *lease.Lease) error {
			fmt.Println(replica, "sends them")
			return nil
		}
		_, replayed, err := keys.Do(ctx, "reminders", nil, func(ctx context.Context, claim *lease.Lease) ([]byte, error) {
			return nil, send(ctx, claim)
		}, once.Every(55*time.Minute), once.NoWait())
		fmt.Println(replica, replayed, err)
	}
	// Output:
	// one sends them
	// one false <nil>
	// two true <nil>
}

func ExampleNew() {
	client, disconnect := connect()
	defer disconnect()

	_, err := once.New(client, once.Config{InFlight: -time.Second})

	fmt.Println("refused:", errors.Is(err, lease.ErrInvalid))
	// Output: refused: true
}

// A run that fails leaves the key free.
func ExampleOnce_Do() {
	client, disconnect := connect()
	defer disconnect()
	ctx := context.Background()
	keys, err := once.New(client, once.Config{})
	if err != nil {
		log.Fatal(err)
	}

	for _, bank := range []error{errors.New("the bank is closed"), nil, nil} {
		receipt, replayed, err := keys.Do(ctx, "order:7", nil, func(context.Context, *lease.Lease) ([]byte, error) {
			return []byte("receipt 1"), bank
		})
		fmt.Printf("%q replayed: %v err: %v\n", receipt, replayed, err)
	}
	// Output:
	// "" replayed: false err: the bank is closed
	// "receipt 1" replayed: false err: <nil>
	// "receipt 1" replayed: true err: <nil>
}

func ExampleOnce_State() {
	client, disconnect := connect()
	defer disconnect()
	ctx := context.Background()
	keys, err := once.New(client, once.Config{Done: time.Hour})
	if err != nil {
		log.Fatal(err)
	}
	before, err := keys.State(ctx, "order:7")
	if err != nil {
		log.Fatal(err)
	}
	_, _, err = keys.Do(ctx, "order:7", nil, func(context.Context, *lease.Lease) ([]byte, error) { return []byte("receipt 1"), nil })
	if err != nil {
		log.Fatal(err)
	}

	after, err := keys.State(ctx, "order:7")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(before.Phase)
	fmt.Printf("%v: %s, for %v\n", after.Phase, after.Result, after.ExpiresIn.Round(time.Minute))
	// Output:
	// absent
	// done: receipt 1, for 1h0m0s
}

func ExampleOnce_Forget() {
	client, disconnect := connect()
	defer disconnect()
	ctx := context.Background()
	keys, err := once.New(client, once.Config{})
	if err != nil {
		log.Fatal(err)
	}
	menu := func() {
		_, replayed, err := keys.Do(ctx, "menu", nil, func(context.Context, *lease.Lease) ([]byte, error) { return []byte("soup"), nil })
		fmt.Println("replayed:", replayed, "err:", err)
	}

	menu()
	menu()
	if err := keys.Forget(ctx, "menu"); err != nil {
		log.Fatal(err)
	}
	menu()
	// Output:
	// replayed: false err: <nil>
	// replayed: true err: <nil>
	// replayed: false err: <nil>
}
