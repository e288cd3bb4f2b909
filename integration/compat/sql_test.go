package compat

import (
	"context"
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	_ "github.com/lib/pq"              // the driver "postgres"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
)

func TestDatabaseSQL(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"pgx", "postgres"} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			holdToContract(t, func(t *testing.T, pool *pgxpool.Pool) library {
				return withDatabaseSQL(openSQL(t, driver, url(pool)))
			})
		})
	}
}

func openSQL(t *testing.T, driver, url string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

const insert = `INSERT INTO bookings (table_id, guest) VALUES ($1, $2)`

func withDatabaseSQL(db *sql.DB) library {
	return library{
		book: func(ctx context.Context, grant fencedb.Grant, table int, guest string) error {
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer tx.Rollback()
			if err := fencedb.EnterSQL(ctx, tx, grant); err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, insert, table, guest); err != nil {
				return fencedb.Explain(err)
			}
			return tx.Commit()
		},
		forget: func(ctx context.Context, table int, guest string) error {
			_, err := db.ExecContext(ctx, insert, table, guest)
			return fencedb.Explain(err)
		},
	}
}

func TestEnteringOutsideATransactionIsRefused(t *testing.T) {
	t.Parallel()
	pool, lease := migrated(t), grant("table:12", 41)
	for _, driver := range []string{"pgx", "postgres"} {
		db := openSQL(t, driver, url(pool))
		require.ErrorContains(t, fencedb.EnterSQL(t.Context(), db, lease), "not in a transaction", driver)
	}
}
