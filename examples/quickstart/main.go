package main

import (
	"context"
	"log"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/fencedb"
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
	check("book", issuer.Do(ctx, "table:12", func(ctx context.Context, l *lease.Lease) error {
		return fencedb.Tx(ctx, pool, l, func(tx pgx.Tx) error {
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
