package compat

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"entgo.io/ent/dialect/sql/sqlgraph"
	"entgo.io/ent/schema/field"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
)

func TestEnt(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"pgx", "postgres"} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			holdToContract(t, func(t *testing.T, pool *pgxpool.Pool) library {
				return withEnt(openSQL(t, driver, url(pool)))
			})
		})
	}
}

// entTx is an open transaction to ent: those that ent begins are part of it. A generated client on
// it is ent.NewClient(ent.Driver(entTx{...})).
type entTx struct{ dialect.Driver }

func (d entTx) Tx(context.Context) (dialect.Tx, error) { return dialect.NopTx(d), nil }

func entIn(tx entsql.ExecQuerier) dialect.Driver {
	return entTx{entsql.NewDriver(dialect.Postgres, entsql.Conn{ExecQuerier: tx})}
}

// withEnt begins and commits through ent's driver.
func withEnt(db *sql.DB) library {
	driver := entsql.OpenDB(dialect.Postgres, db)
	return library{
		book: func(ctx context.Context, grant fencedb.Grant, table int, guest string) error {
			tx, err := driver.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer tx.Rollback()
			entry, err := fencedb.EnterSQL(ctx, tx.(*entsql.Tx), grant)
			if err != nil {
				return err
			}
			if err := createWithEnt(ctx, entIn(tx.(*entsql.Tx)), table, guest); err != nil {
				return fencedb.Explain(err)
			}
			if err := tx.Commit(); err != nil {
				return entry.OutcomeSQL(ctx, db, err)
			}
			return nil
		},
		forget: func(ctx context.Context, table int, guest string) error {
			return fencedb.Explain(createWithEnt(ctx, driver, table, guest))
		},
	}
}

// createWithEnt does what the generated client.Booking.Create() does when it is saved.
func createWithEnt(ctx context.Context, driver dialect.Driver, table int, guest string) error {
	spec := sqlgraph.NewCreateSpec("bookings", sqlgraph.NewFieldSpec("id", field.TypeInt64))
	spec.SetField("table_id", field.TypeInt, table)
	spec.SetField("guest", field.TypeString, guest)
	return sqlgraph.CreateNode(ctx, driver, spec)
}

// ent begins a transaction for each update of a row.
func TestWhatEntCommitsIsPartOfTheTransaction(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	db := openSQL(t, "pgx", url(pool))
	require.NoError(t, withEnt(db).book(t.Context(), grant("table:12", 41), 12, "ann"))
	update := sqlgraph.NewUpdateSpec("bookings", []string{"id"}, sqlgraph.NewFieldSpec("id", field.TypeInt64))
	update.Node.ID.Value = one[int64](t, pool, `SELECT id FROM bookings`)
	update.SetField("guest", field.TypeString, "ben")
	update.ScanValues = func([]string) ([]any, error) { return []any{new(int64)}, nil }
	update.Assign = func([]string, []any) error { return nil }

	for _, after := range []error{errors.New("changed my mind"), nil} {
		err := fencedb.TxSQL(t.Context(), db, grant("table:12", 42), func(tx *sql.Tx) error {
			require.NoError(t, sqlgraph.UpdateNode(t.Context(), entIn(tx), update))
			return after
		})
		require.ErrorIs(t, err, after)
		require.Equal(t, after == nil, guests(t, pool)[0] == "ben")
	}
}
