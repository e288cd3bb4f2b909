package guard_test

import (
	"context"
	"database/sql"
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

// halves are the two servers of the examples: an issuer of leases, and a database with a table that
// is protected.
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
		INSERT INTO stock SELECT sku, 10 FROM generate_series(1, 30) sku;
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
	})
	if err != nil {
		log.Fatal(err)
	}
	return issuer, pool
})

// opened is a desk on both.
func opened() *guard.Desk { return guard.New(halves()) }

var errSoldOut = errors.New("sold out")

// charge stands for a slow call to a bank.
func charge(context.Context) error { return nil }

// One desk serves a whole program: Do for work that decides first, Exec for a write alone.
func ExampleDesk() {
	ctx, desk := context.Background(), opened()

	sell := func(sku int) error {
		return desk.Do(ctx, fmt.Sprint("sku:", sku), func(ctx context.Context, h *guard.Holder) error {
			if err := charge(ctx); err != nil {
				return err
			}
			_, err := h.Exec(ctx, `UPDATE stock SET pieces = pieces - 1 WHERE sku = $1`, sku)
			return err
		})
	}
	restock := func(sku, pieces int) error {
		_, err := desk.Exec(ctx, fmt.Sprint("sku:", sku), `UPDATE stock SET pieces = pieces + $2 WHERE sku = $1`, sku, pieces)
		return err
	}

	fmt.Println(sell(2), restock(2, 5))
	// Output: <nil> <nil>
}

// Options may depend on the configuration of a program.
func ExampleOption() {
	issuer, pool := halves()
	var opts []guard.Option
	if decidesInTransactionsOnly := true; decidesInTransactionsOnly {
		opts = append(opts, guard.Unsealed())
	}

	_, err := guard.New(issuer, pool, opts...).Exec(context.Background(), "sku:29", `UPDATE stock SET pieces = 1 WHERE sku = 29`)

	fmt.Println(err)
	// Output: <nil>
}

// One desk for each issuer and database.
func ExampleNew() {
	issuer, pool := halves()

	desk := guard.New(issuer, pool)
	impatient := guard.New(issuer.With(lease.NoWait()), pool)
	serializable := guard.New(issuer, fencedb.With(pool, fencedb.TxOptions(pgx.TxOptions{IsoLevel: pgx.Serializable})))

	for _, d := range []*guard.Desk{desk, impatient, serializable} {
		fmt.Println(d.Exec(context.Background(), "sku:1", `UPDATE stock SET pieces = pieces - 1 WHERE sku = 1`))
	}
	// Output:
	// UPDATE 1 <nil>
	// UPDATE 1 <nil>
	// UPDATE 1 <nil>
}

// Read, ask a bank, write: no other holder changes in between what was read.
func ExampleDesk_Do() {
	ctx := context.Background()
	issuer, pool := halves()
	desk := guard.New(issuer, pool)

	err := desk.Do(ctx, "sku:3", func(ctx context.Context, h *guard.Holder) error {
		var left int
		if err := pool.QueryRow(ctx, `SELECT pieces FROM stock WHERE sku = 3`).Scan(&left); err != nil {
			return err
		}
		if left == 0 {
			return errSoldOut
		}
		if err := charge(ctx); err != nil {
			return err
		}
		return h.Tx(ctx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `UPDATE stock SET pieces = $1 WHERE sku = 3`, left-1)
			return err
		})
	}, lease.WaitAtMost(2*time.Second))

	fmt.Println(err)
	// Output: <nil>
}

// Rows of several resources, all or none.
func ExampleDesk_DoAll() {
	ctx, desk := context.Background(), opened()

	buy := func(pieces int) error {
		return desk.DoAll(ctx, []string{"sku:4", "sku:7"}, func(ctx context.Context, h *guard.Holder) error {
			return h.Tx(ctx, func(tx pgx.Tx) error {
				for _, sku := range []int{4, 7} {
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
		})
	}

	fmt.Println(buy(2))
	fmt.Println(buy(100))
	// Output:
	// <nil>
	// sold out
}

// One process has the role at a time. The writes of the leader are fenced like any other.
func ExampleDesk_Lead() {
	ctx, stop := context.WithCancel(context.Background())
	desk := opened()

	err := desk.Lead(ctx, "sku:5", func(ctx context.Context, h *guard.Holder) error {
		fmt.Println(h.Exec(ctx, `UPDATE stock SET pieces = 10 WHERE sku = 5`))
		stop() // a program goes on until ctx ends
		return nil
	})

	fmt.Println(err)
	// Output:
	// UPDATE 1 <nil>
	// context canceled
}

// The function runs behind the fence from its first line.
func ExampleDesk_Tx() {
	ctx, desk := context.Background(), opened()

	var left int
	err := desk.Tx(ctx, "sku:6", func(ctx context.Context, tx pgx.Tx) error {
		err := tx.QueryRow(ctx, `UPDATE stock SET pieces = pieces - 1 WHERE sku = 6 RETURNING pieces`).Scan(&left)
		if err == nil && left < 0 {
			return errSoldOut // and nothing is written
		}
		return err
	})

	fmt.Println("left:", left, "err:", err)
	// Output: left: 9 err: <nil>
}

// One statement, in one round trip after the acquisition.
func ExampleDesk_Exec() {
	ctx, desk := context.Background(), opened()

	tag, err := desk.Exec(ctx, "sku:8", `UPDATE stock SET pieces = pieces + $1 WHERE sku = 8`, 5)

	fmt.Println(tag, err)
	// Output: UPDATE 1 <nil>
}

// The lease is held until the rows are read to their end.
func ExampleDesk_Query() {
	ctx, desk := context.Background(), opened()

	rows, _ := desk.Query(ctx, "sku:10", `UPDATE stock SET pieces = 2 * pieces WHERE sku = 10 RETURNING pieces`)
	pieces, err := pgx.CollectRows(rows, pgx.RowTo[int])

	fmt.Println(pieces, err)
	// Output: [20] <nil>
}

// The statement returns a row; if nothing is left, it returns none, and the error is pgx.ErrNoRows.
// This desk does not wait for another holder.
func ExampleDesk_QueryRow() {
	ctx := context.Background()
	issuer, pool := halves()
	desk := guard.New(issuer.With(lease.NoWait()), pool)

	var left int
	err := desk.QueryRow(ctx, "sku:9", `UPDATE stock SET pieces = pieces - 1 WHERE sku = 9 AND pieces > 0 RETURNING pieces`).Scan(&left)

	fmt.Println("left:", left, "err:", err)
	// Output: left: 9 err: <nil>
}

// Several statements on several resources, in one round trip.
func ExampleDesk_SendBatch() {
	ctx, desk := context.Background(), opened()

	b := &pgx.Batch{}
	b.Queue(`UPDATE stock SET pieces = pieces - 3 WHERE sku = 11`)
	b.Queue(`UPDATE stock SET pieces = pieces + 3 WHERE sku = 12`)
	err := desk.SendBatch(ctx, []string{"sku:11", "sku:12"}, b)

	fmt.Println(err)
	// Output: <nil>
}

// Work that reads and decides in its transaction needs no seal, which saves a write in Postgres.
func ExampleUnsealed() {
	ctx := context.Background()
	issuer, pool := halves()
	desk := guard.New(issuer, pool, guard.Unsealed())

	err := desk.Do(ctx, "sku:13", func(ctx context.Context, h *guard.Holder) error {
		return h.Tx(ctx, func(tx pgx.Tx) error {
			var left int // read behind the fence
			if err := tx.QueryRow(ctx, `SELECT pieces FROM stock WHERE sku = 13`).Scan(&left); err != nil || left == 0 {
				return errors.Join(err, errSoldOut)
			}
			_, err := tx.Exec(ctx, `UPDATE stock SET pieces = $1 WHERE sku = 13`, left-1)
			return err
		})
	})

	fmt.Println(err)
	// Output: <nil>
}

func ExampleHolder() {
	err := opened().Do(context.Background(), "sku:28", func(ctx context.Context, h *guard.Holder) error {
		tag, err := h.Exec(ctx, `UPDATE stock SET pieces = 8 WHERE sku = 28`)
		fmt.Println(tag)
		return err
	})

	fmt.Println(err)
	// Output:
	// UPDATE 1
	// <nil>
}

// The grant of a holder is for the functions of package fencedb, here with two resources.
func ExampleHolder_Grant() {
	ctx := context.Background()
	issuer, pool := halves()
	desk := guard.New(issuer, pool)

	err := desk.DoAll(ctx, []string{"sku:14", "sku:15"}, func(ctx context.Context, h *guard.Holder) error {
		tag, err := fencedb.Exec(ctx, pool, h.Grant(), `UPDATE stock SET pieces = 0 WHERE sku IN (14, 15)`)
		fmt.Println(tag)
		return err
	})

	fmt.Println(err)
	// Output:
	// UPDATE 2
	// <nil>
}

func ExampleHolder_Leases() {
	err := opened().DoAll(context.Background(), []string{"sku:15", "sku:14"}, func(_ context.Context, h *guard.Holder) error {
		for _, l := range h.Leases() {
			fmt.Println(l.Resource())
		}
		return nil
	})

	fmt.Println(err)
	// Output:
	// sku:14
	// sku:15
	// <nil>
}

// Before a step that cannot be undone and is not fenced. The holder can still be overtaken right
// after Err has returned.
func ExampleHolder_Err() {
	err := opened().Do(context.Background(), "sku:19", func(ctx context.Context, h *guard.Holder) error {
		if err := h.Err(); err != nil {
			return err
		}
		return charge(ctx)
	})

	fmt.Println(err)
	// Output: <nil>
}

func ExampleHolder_ValidUntil() {
	err := opened().Do(context.Background(), "sku:20", func(_ context.Context, h *guard.Holder) error {
		fmt.Println(time.Until(h.ValidUntil()) > time.Second)
		return nil
	})

	fmt.Println(err)
	// Output:
	// true
	// <nil>
}

// Before a long call, so that a whole TTL is left for it.
func ExampleHolder_Extend() {
	err := opened().Do(context.Background(), "sku:21", func(ctx context.Context, h *guard.Holder) error {
		if err := h.Extend(ctx); err != nil {
			return err
		}
		return charge(ctx)
	})

	fmt.Println(err)
	// Output: <nil>
}

// Several transactions under one lease. What each has read stays as it is until that one commits.
func ExampleHolder_Tx() {
	err := opened().Do(context.Background(), "sku:23", func(ctx context.Context, h *guard.Holder) error {
		sell := func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `UPDATE stock SET pieces = pieces - 1 WHERE sku = 23`)
			return err
		}
		if err := h.Tx(ctx, sell); err != nil {
			return err
		}
		if err := charge(ctx); err != nil {
			return err
		}
		return h.Tx(ctx, sell)
	})

	fmt.Println(err)
	// Output: <nil>
}

// database/sql, on the connections of the pool.
func ExampleHolder_TxSQL() {
	ctx := context.Background()
	issuer, pool := halves()
	desk := guard.New(issuer, pool)
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()

	err := desk.Do(ctx, "sku:16", func(ctx context.Context, h *guard.Holder) error {
		return h.TxSQL(ctx, db, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `UPDATE stock SET pieces = 9 WHERE sku = 16`)
			return err
		})
	})

	fmt.Println(err)
	// Output: <nil>
}

func ExampleHolder_Exec() {
	err := opened().Do(context.Background(), "sku:17", func(ctx context.Context, h *guard.Holder) error {
		tag, err := h.Exec(ctx, `UPDATE stock SET pieces = $1 WHERE sku = 17`, 9)
		fmt.Println(tag)
		return err
	})

	fmt.Println(err)
	// Output:
	// UPDATE 1
	// <nil>
}

func ExampleHolder_Query() {
	err := opened().Do(context.Background(), "sku:24", func(ctx context.Context, h *guard.Holder) error {
		rows, _ := h.Query(ctx, `UPDATE stock SET pieces = pieces - 1 WHERE sku = 24 AND pieces > 0 RETURNING pieces`)
		left, err := pgx.CollectRows(rows, pgx.RowTo[int]) // has the error of Query too
		fmt.Println(left)
		return err
	})

	fmt.Println(err)
	// Output:
	// [9]
	// <nil>
}

func ExampleHolder_QueryRow() {
	err := opened().Do(context.Background(), "sku:25", func(ctx context.Context, h *guard.Holder) error {
		var left int
		err := h.QueryRow(ctx, `UPDATE stock SET pieces = pieces - 1 WHERE sku = 25 AND pieces > 0 RETURNING pieces`).Scan(&left)
		fmt.Println(left)
		return err
	})

	fmt.Println(err)
	// Output:
	// 9
	// <nil>
}

func ExampleHolder_SendBatch() {
	err := opened().DoAll(context.Background(), []string{"sku:26", "sku:27"}, func(ctx context.Context, h *guard.Holder) error {
		b := &pgx.Batch{}
		b.Queue(`UPDATE stock SET pieces = pieces - 3 WHERE sku = 26`)
		b.Queue(`UPDATE stock SET pieces = pieces + 3 WHERE sku = 27`)
		return h.SendBatch(ctx, b)
	})

	fmt.Println(err)
	// Output: <nil>
}

// What to answer to the caller of a service.
func ExampleAnswer() {
	over, cancel := context.WithTimeout(context.Background(), 0)
	defer cancel()

	_, err := opened().Exec(over, "sku:28", `UPDATE stock SET pieces = 0 WHERE sku = 28`)

	answer := guard.Answer(err)
	fmt.Println(answer, answer.HTTPStatus(), guard.RetryAfter(err))
	// Output: unavailable 503 1s
}

func ExampleRetryAfter() {
	fmt.Println(guard.RetryAfter(fmt.Errorf("book: %w", &lease.HeldError{RetryAfter: 3 * time.Second})))
	fmt.Println(guard.RetryAfter(fencedb.ErrNoToken))
	// Output:
	// 3s
	// 0s
}

func ExampleOutcome() {
	fmt.Println(guard.Answer(fencedb.ErrStale) == guard.Busy)
	// Output: true
}

func ExampleOutcome_HTTPStatus() {
	for _, o := range []guard.Outcome{guard.Done, guard.Busy, guard.Unavailable, guard.Unknown, guard.Refused} {
		fmt.Println(o.HTTPStatus())
	}
	// Output:
	// 200
	// 409
	// 503
	// 504
	// 500
}

func ExampleOutcome_String() {
	fmt.Println(guard.Answer(lease.ErrHeld))
	// Output: busy
}
