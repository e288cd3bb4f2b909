package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/urfave/cli/v3"
)

// openPostgres does not connect yet.
func openPostgres(ctx context.Context, cmd *cli.Command) (*pgxpool.Pool, error) {
	address := cmd.String(flagPostgres)
	if address == "" {
		return nil, usage("no Postgres: set --%s or FENCEDB_POSTGRES_URL", flagPostgres)
	}
	config, err := pgxpool.ParseConfig(address)
	if err != nil {
		return nil, usage("--%s: %w", flagPostgres, err) // pgx blanks the password
	}
	if config.ConnConfig.RuntimeParams["application_name"] == "" {
		config.ConnConfig.RuntimeParams["application_name"] = "fencedb"
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	return pool, nil
}

// postgres connects, so that a server that is away is reported as that and before anything is changed.
func postgres(ctx context.Context, cmd *cli.Command) (*pgxpool.Pool, error) {
	pool, err := openPostgres(ctx, cmd)
	if err != nil {
		return nil, err
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, fmt.Errorf("postgres: %w", err)
	}
	return pool, nil
}

// database is postgres for package migrations.
func database(ctx context.Context, cmd *cli.Command) (*sql.DB, func(), error) {
	pool, err := postgres(ctx, cmd)
	if err != nil {
		return nil, nil, err
	}
	db := stdlib.OpenDBFromPool(pool)
	return db, func() {
		_ = db.Close()
		pool.Close()
	}, nil
}

// SQLSTATEs that a set-up causes.
const insufficientPrivilege, undefinedTable, undefinedSchema, undefinedFunction = "42501", "42P01", "3F000", "42883"

// explained adds what to do to errors that a set-up causes.
func explained(err error) error {
	refused := new(pgconn.PgError)
	if !errors.As(err, &refused) {
		return err
	}
	switch refused.Code {
	case insufficientPrivilege:
		return fmt.Errorf("%w: %w", errMayNot, err)
	case undefinedTable, undefinedSchema, undefinedFunction:
		return fmt.Errorf("postgres: the schema fencedb is missing or older than this command; run fencedb migrate up: %w", err)
	}
	return err
}
