// Command quickstart is the program in the README: one booking, under a lease and behind a fence.
//
//	make up                                # or any Postgres and Redis of your own
//	export FENCEDB_POSTGRES_URL='postgres://fencedb:fencedb@127.0.0.1:55432/fencedb?sslmode=disable'
//	export FENCEDB_REDIS_URL='redis://127.0.0.1:56379/0'
//	go run ./examples/quickstart
package main

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/fencedb/fencedb/migrations"
)

// setUp belongs into an application's own migrations. It may run again: what is there stays.
func setUp(ctx context.Context, pool *pgxpool.Pool) error {
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	if err := migrations.Up(ctx, db); err != nil {
		return err
	}
	_, err := pool.Exec(ctx, `
		CREATE TABLE IF NOT EXISTS bookings (table_id int PRIMARY KEY, guest text NOT NULL);
		SELECT fencedb.protect('bookings', resource => $$ 'table:' || table_id $$)`)
	return err
}
