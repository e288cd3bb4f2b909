package once_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/alicebob/miniredis/v2"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/lease/once"
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
	keys, err := once.New(client, once.Config{})
	if err != nil {
		log.Fatal(err)
	}

	request := []byte(`{"order":7,"amount":"12 EUR"}`)
	for range 2 {
		answer, replayed, err := keys.Do(ctx, "order:7", request, func(context.Context, *lease.Lease) ([]byte, error) {
			fmt.Println("charging")
			return []byte("receipt 1"), nil
		})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s (replayed: %v)\n", answer, replayed)
	}

	_, _, err = keys.Do(ctx, "order:7", []byte(`{"order":7,"amount":"99 EUR"}`), nil)
	fmt.Println("another request:", errors.Is(err, once.ErrKeyReused))
	// Output:
	// charging
	// receipt 1 (replayed: false)
	// receipt 1 (replayed: true)
	// another request: true
}

// Redis spares Postgres the duplicates; Postgres remembers what Redis may forget. The key is done in the transaction of its effect.
func Example_durable() {
	charge := func(ctx context.Context, keys *once.Once, pool *pgxpool.Pool, key string, request []byte) (receipt []byte, err error) {
		receipt, _, err = keys.Do(ctx, key, request, func(ctx context.Context, claim *lease.Lease) (receipt []byte, err error) {
			err = fencedb.Tx(ctx, pool, claim, func(tx pgx.Tx) error {
				receipt, _, err = fencedb.Once(ctx, tx, key, request, func() ([]byte, error) {
					_, err := tx.Exec(ctx, `INSERT INTO charges (amount) VALUES ($1)`, 12)
					return []byte("receipt 1"), err
				})
				return err
			})
			return receipt, err
		})
		return receipt, err
	}
	_ = charge
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

		_, _, err = keys.Do(ctx, "report", nil, nil, once.NoWait())
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
