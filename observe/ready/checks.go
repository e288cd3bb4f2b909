package ready

import (
	"context"
	"database/sql"
	"errors"

	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/migrations"
)

// Check is something without which this process cannot work.
type Check struct {
	Name string // what the answer calls it

	// Run returns nil if it is there. ctx ends after [Config.Timeout]; an answer that comes later does not count.
	Run func(ctx context.Context) error
}

// Leases checks that leases can be had and kept, with [lease.Issuer.Check]. Warnings do not count.
func Leases(issuer *lease.Issuer) Check {
	return Check{"leases", func(ctx context.Context) error {
		_, err := issuer.Check(ctx)
		return err
	}}
}

var (
	// ErrNotMigrated: the database lacks a migration that this program knows.
	ErrNotMigrated = errors.New("ready: the schema fencedb is not up to date; migrations.Up or the command fencedb migrate brings it there")

	// ErrReadOnly: the database takes no writes; it is a standby, or set to read-only.
	ErrReadOnly = errors.New("ready: postgres is read-only")
)

// Fences checks that fenced writes can commit: Postgres answers, takes writes, and has every migration that this program
// knows. With pgx, pass stdlib.OpenDBFromPool(pool).
func Fences(db *sql.DB) Check {
	return Check{"fences", func(ctx context.Context) error {
		pending, err := migrations.Pending(ctx, db)
		switch {
		case err != nil:
			return err
		case pending:
			return ErrNotMigrated
		}
		return takesWrites(ctx, db)
	}}
}

func takesWrites(ctx context.Context, db *sql.DB) error {
	var readOnly bool // true of a standby whatever is set there
	err := db.QueryRowContext(ctx, "SELECT current_setting('transaction_read_only')::bool").Scan(&readOnly)
	if err == nil && readOnly {
		return ErrReadOnly
	}
	return err
}
