package guard_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/migrations"
)

// halves are the two servers of the examples: an issuer of sealed leases, and a database with a
// table that is protected.
var halves = sync.OnceValues(func() (*lease.Issuer, *pgxpool.Pool) {
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
	_, err = pool.Exec(ctx, `
		CREATE TABLE stock (sku int PRIMARY KEY, pieces int NOT NULL);
		INSERT INTO stock VALUES (3, 10), (7, 10), (8, 10), (9, 10), (10, 10);
		SELECT fencedb.protect('stock', resource => 'sku:{sku}')`)
	if err != nil {
		log.Fatal(err)
	}
	options, err := redis.ParseURL(servers.RedisURL)
	if err != nil {
		log.Fatal(err)
	}
	issuer, err := lease.New(redis.NewClient(options), lease.Config{
		TTL:       10 * time.Second,
		Namespace: fmt.Sprint("guard_examples_", time.Now().UnixNano()),
		Seal:      fencedb.Sealer(pool),
	})
	if err != nil {
		log.Fatal(err)
	}
	return issuer, pool
})

// Acquire a lease, write behind its fence, give it back.
func ExampleTx() {
	ctx := context.Background()
	issuer, pool := halves()

	var left int
	err := guard.Tx(ctx, issuer, pool, "sku:3", func(ctx context.Context, l *lease.Lease, tx pgx.Tx) error {
		return tx.QueryRow(ctx, `UPDATE stock SET pieces = pieces - 1 WHERE sku = 3 RETURNING pieces`).Scan(&left)
	})

	fmt.Println("left:", left, "err:", err)
	// Output: left: 9 err: <nil>
}

// Rows of several resources, all or none.
func ExampleTxAll() {
	ctx := context.Background()
	issuer, pool := halves()
	errSoldOut := errors.New("sold out")

	buy := func(pieces int) error {
		return guard.TxAll(ctx, issuer, pool, []string{"sku:3", "sku:7"}, func(ctx context.Context, _ lease.Leases, tx pgx.Tx) error {
			for _, sku := range []int{3, 7} {
				var left int
				err := tx.QueryRow(ctx, `UPDATE stock SET pieces = pieces - $2 WHERE sku = $1 RETURNING pieces`, sku, pieces).Scan(&left)
				if err != nil {
					return err
				}
				if left < 0 {
					return errSoldOut // and nothing is written, of either
				}
			}
			return nil
		})
	}

	fmt.Println(buy(2))
	fmt.Println(buy(100))
	// Output:
	// <nil>
	// sold out
}

// One statement, in one round trip behind the acquisition.
func ExampleExec() {
	ctx := context.Background()
	issuer, pool := halves()

	tag, err := guard.Exec(ctx, issuer, pool, "sku:8", `UPDATE stock SET pieces = pieces + $1 WHERE sku = 8`, 5)

	fmt.Println(tag, err)
	// Output: UPDATE 1 <nil>
}

// What the statement returns, and no waiting if somebody else has the resource.
func ExampleQueryRow() {
	ctx := context.Background()
	issuer, pool := halves()

	var left int
	err := guard.QueryRow(ctx, issuer.With(lease.NoWait()), pool, "sku:9", `UPDATE stock SET pieces = pieces - 1 WHERE sku = 9 RETURNING pieces`).Scan(&left)

	fmt.Println("left:", left, "err:", err)
	// Output: left: 9 err: <nil>
}

// The rows have all come when the call returns, and the lease has been given back.
func ExampleQuery() {
	ctx := context.Background()
	issuer, pool := halves()

	pieces, err := guard.Query(ctx, issuer, pool, "sku:10", pgx.RowTo[int], `UPDATE stock SET pieces = 2 * pieces WHERE sku = 10 RETURNING pieces`)

	fmt.Println(pieces, err)
	// Output: [20] <nil>
}
