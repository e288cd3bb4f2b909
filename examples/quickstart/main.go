package main

import (
	"context"
	"errors"
	"log"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/lease"
)

func main() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("FENCEDB_POSTGRES_URL"))
	check("FENCEDB_POSTGRES_URL", err)
	options, err := redis.ParseURL(os.Getenv("FENCEDB_REDIS_URL"))
	check("FENCEDB_REDIS_URL", err)
	issuer, err := lease.New(redis.NewClient(options), lease.Config{TTL: 10 * time.Second})
	check("leases", err)
	check("set up FENCEDB_POSTGRES_URL", setUp(ctx, pool))
	desk := guard.New(issuer, pool)
	check("book", desk.Do(ctx, "table:12", func(ctx context.Context, h *guard.Holder) error {
		var guest string // From here on, what pool reads of table 12 stays true until h writes.
		err := pool.QueryRow(ctx, `SELECT guest FROM reservations WHERE table_id = 12`).Scan(&guest)
		if errors.Is(err, pgx.ErrNoRows) { // It is free: check a card, then book.
			_, err = h.Exec(ctx, `INSERT INTO reservations (table_id, guest) VALUES (12, 'Ann')`)
		} else if err == nil && guest != "Ann" {
			err = errors.New("table 12 is taken")
		}
		return err
	}))
}

func check(what string, err error) {
	if err != nil {
		log.Fatal(what, ": ", err)
	}
}
