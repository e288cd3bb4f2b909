package store

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"

	"github.com/pressly/goose/v3"

	"github.com/fencedb/fencedb/migrations"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrate brings the database up: the fences first, then the tables of this application. It does nothing where nothing is missing.
func Migrate(ctx context.Context, db *sql.DB) error {
	dir, err := fs.Sub(files, "migrations")
	if err != nil {
		return err
	}
	return migrations.Apply(ctx, db, dir, "goose_db_version")
}

// Pending reports whether the database lacks a migration, of the fences or of this application: for a readiness check.
func Pending(ctx context.Context, db *sql.DB) (bool, error) {
	if pending, err := migrations.Pending(ctx, db); pending || err != nil {
		return true, err
	}
	own, err := provider(db)
	if err != nil {
		return true, fmt.Errorf("booking migrations: %w", err)
	}
	pending, err := own.HasPending(ctx)
	if err != nil {
		return true, fmt.Errorf("booking migrations: %w", err)
	}
	return pending, nil
}

func provider(db *sql.DB) (*goose.Provider, error) {
	dir, err := fs.Sub(files, "migrations")
	if err != nil {
		return nil, err
	}
	return goose.NewProvider(goose.DialectPostgres, db, dir, goose.WithDisableGlobalRegistry(true))
}
