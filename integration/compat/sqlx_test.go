package compat

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jmoiron/sqlx"

	"github.com/fencedb/fencedb/fencedb"
)

func TestSqlx(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"pgx", "postgres"} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			holdToContract(t, func(t *testing.T, pool *pgxpool.Pool) library {
				return withSqlx(sqlx.NewDb(openSQL(t, driver, url(pool)), driver))
			})
		})
	}
}

func withSqlx(db *sqlx.DB) library {
	type booking struct {
		Table int    `db:"table_id"`
		Guest string `db:"guest"`
	}
	const insert = `INSERT INTO bookings (table_id, guest) VALUES (:table_id, :guest)`
	return library{
		book: func(ctx context.Context, grant fencedb.Grant, table int, guest string) error {
			tx, err := db.BeginTxx(ctx, nil)
			if err != nil {
				return err
			}
			defer tx.Rollback()
			if err := fencedb.EnterSQL(ctx, tx, grant); err != nil {
				return err
			}
			if _, err := tx.NamedExecContext(ctx, insert, booking{table, guest}); err != nil {
				return fencedb.Explain(err)
			}
			return tx.Commit()
		},
		forget: func(ctx context.Context, table int, guest string) error {
			_, err := db.NamedExecContext(ctx, insert, booking{table, guest})
			return fencedb.Explain(err)
		},
	}
}
