package store

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/fencedb/fencedb/migrations"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrate brings the database up: the fences first, then the tables of the shop, each with a version table of its own. It does
// nothing where nothing is missing.
func Migrate(ctx context.Context, db *sql.DB) error {
	if err := migrations.Up(ctx, db); err != nil {
		return err
	}
	dir, err := fs.Sub(files, "migrations")
	if err != nil {
		return err
	}
	inTurn, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 60)) // asks every second, for a minute
	if err != nil {
		return err
	}
	own, err := goose.NewProvider(goose.DialectPostgres, db, dir,
		goose.WithSessionLocker(inTurn), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("inventory migrations: %w", err)
	}
	if _, err := own.Up(ctx); err != nil {
		return fmt.Errorf("inventory migrations: %w", err)
	}
	return nil
}
