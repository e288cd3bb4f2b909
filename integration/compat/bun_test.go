package compat

import (
	"context"
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	"github.com/uptrace/bun/driver/pgdriver"

	"github.com/fencedb/fencedb/fencedb"
)

func TestBun(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*testing.T, *pgxpool.Pool) *sql.DB{
		"pgx":      func(t *testing.T, pool *pgxpool.Pool) *sql.DB { return openSQL(t, "pgx", url(pool)) },
		"pgdriver": func(t *testing.T, pool *pgxpool.Pool) *sql.DB { return openPgdriver(t, url(pool)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			holdToContract(t, func(t *testing.T, pool *pgxpool.Pool) library {
				return withBun(bun.NewDB(open(t, pool), pgdialect.New()))
			})
		})
	}
}

func openPgdriver(t *testing.T, url string) *sql.DB {
	t.Helper()
	db := sql.OpenDB(pgdriver.NewConnector(pgdriver.WithDSN(url)))
	t.Cleanup(func() { _ = db.Close() })
	return db
}

type bunBooking struct {
	bun.BaseModel `bun:"table:bookings"`
	TableID       int
	Guest         string
}

// Bun's own QueryContext writes arguments into the text in place of question marks, so enter on the transaction inside.
func withBun(db *bun.DB) library {
	return library{
		book: func(ctx context.Context, grant fencedb.Grant, table int, guest string) error {
			return db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
				if err := fencedb.EnterSQL(ctx, tx.Tx, grant); err != nil {
					return err
				}
				_, err := tx.NewInsert().Model(&bunBooking{TableID: table, Guest: guest}).Exec(ctx)
				return fencedb.Explain(err)
			})
		},
		forget: func(ctx context.Context, table int, guest string) error {
			_, err := db.NewInsert().Model(&bunBooking{TableID: table, Guest: guest}).Exec(ctx)
			return fencedb.Explain(err)
		},
	}
}
