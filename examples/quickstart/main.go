package main

import (
	"context"
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
		// What pool says of table 12 now stays true until h writes: look, check a card, decide.
		return h.Tx(ctx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO reservations (table_id, guest) VALUES (12, 'Ann') ON CONFLICT DO NOTHING`)
			return err
		})
	}))
}

func check(what string, err error) {
	if err != nil {
		log.Fatal(what, ": ", err)
	}
}
