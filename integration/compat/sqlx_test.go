package compat

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
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

// What happens to readers of all columns when their table gets the stamp.
func TestReadersOfAllColumnsMeetTheStamp(t *testing.T) {
	t.Parallel()
	for _, stamp := range []bool{true, false} {
		pool := testenv.Postgres(t)
		exec := func(sql string, args ...any) {
			_, err := pool.Exec(t.Context(), sql, args...)
			require.NoError(t, err)
		}
		exec(`CREATE TABLE tables (id int NOT NULL, seats int)`)
		exec(`INSERT INTO tables VALUES (12, 4)`)
		const all = `SELECT * FROM tables`
		type row struct{ ID, Seats int }
		byName := func(tx pgx.Tx) error {
			rows, _ := tx.Query(t.Context(), all)
			_, err := pgx.CollectRows(rows, pgx.RowToStructByName[row])
			return err
		}
		scan := func(tx pgx.Tx) error { return tx.QueryRow(t.Context(), all).Scan(new(int), new(int)) }
		conn, err := pgx.Connect(t.Context(), pool.Config().ConnString())
		require.NoError(t, err)
		defer conn.Close(context.Background())
		read := func(how func(pgx.Tx) error) error { return pgx.BeginFunc(t.Context(), conn, how) }
		require.NoError(t, read(byName))
		db := sqlx.NewDb(openSQL(t, "pgx", url(pool)), "pgx")
		named := func() error { return db.Select(new([]row), all) }
		require.NoError(t, named())

		exec(`SELECT fencedb.protect('tables', $$ 'table:' || id $$, mode => 'observe', stamp => $1)`, stamp)

		if !stamp {
			require.NoError(t, read(byName))
			require.NoError(t, named())
			continue
		}
		require.ErrorContains(t, read(byName), "cached plan must not change result type", "once")
		require.ErrorContains(t, read(byName), "last_fencing_token")
		require.Error(t, read(scan))
		require.Error(t, named())
		require.ErrorContains(t, named(), "missing destination name last_fencing_token")
		require.NoError(t, db.Unsafe().Select(new([]row), all))
		exec(`INSERT INTO tables VALUES (13, 2)`)
	}
}
