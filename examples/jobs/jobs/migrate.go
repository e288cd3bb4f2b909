package jobs

import (
	"context"
	"database/sql"
	"embed"
	"io/fs"

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
