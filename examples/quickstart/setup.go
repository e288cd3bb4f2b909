// Command quickstart is the program in the README: one booking, under a lease and behind a fence.
//
//	make up                                # or any Postgres and Redis of your own
//	export FENCEDB_POSTGRES_URL='postgres://fencedb:fencedb@127.0.0.1:55432/fencedb?sslmode=disable'
//	export FENCEDB_REDIS_URL='redis://127.0.0.1:56379/0'
//	go run ./examples/quickstart
package main

import (
	"context"
	"embed"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/fencedb/fencedb/migrations"
)

//go:embed *.sql
var files embed.FS

// setUp applies the migrations of fencedb, and then our own. It skips those that are applied
// already.
func setUp(ctx context.Context, pool *pgxpool.Pool) error {
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	return migrations.Apply(ctx, db, files, "quickstart_migrations")
}
