package reminders

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

// Migrate brings the database up: the fences first, then the reminders. It does nothing where nothing is missing.
func Migrate(ctx context.Context, db *sql.DB) error {
	if err := migrations.Up(ctx, db); err != nil {
		return err
	}
	dir, err := fs.Sub(files, "migrations")
	if err != nil {
		return err
	}
	own, err := goose.NewProvider(goose.DialectPostgres, db, dir, goose.WithDisableGlobalRegistry(true))
	if err == nil {
		_, err = own.Up(ctx)
	}
	if err != nil {
		return fmt.Errorf("reminders: migrate: %w", err)
	}
	return nil
}
