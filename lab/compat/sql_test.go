package compat

import (
	"context"
	"database/sql"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/jmoiron/sqlx"
	"github.com/jmoiron/sqlx/reflectx"
	_ "github.com/lib/pq" // the driver "postgres"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/testenv"
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
			entry, err := fencedb.EnterSQL(ctx, tx, grant)
			if err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, insert, table, guest); err != nil {
				return fencedb.Explain(err)
			}
			if err := tx.Commit(); err != nil {
				return entry.OutcomeSQL(ctx, db, err)
			}
			return nil
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
		_, err := fencedb.EnterSQL(t.Context(), db, lease)
		require.ErrorContains(t, err, "not in a transaction", driver)
	}
}

// txSQL is each library within TxSQL, on a connection of each driver.
var txSQL = map[string]struct {
	open func(t *testing.T, url string) *sql.DB
	book func(tx *sql.Tx, table int, guest string) error
}{
	"pgx":      {openWith("pgx"), bookPlain},
	"lib/pq":   {openWith("postgres"), bookPlain},
	"pgdriver": {openPgdriver, bookBun},
	"sqlx": {openWith("pgx"), func(tx *sql.Tx, table int, guest string) error {
		x := &sqlx.Tx{Tx: tx, Mapper: reflectx.NewMapperFunc("db", sqlx.NameMapper)}
		return x.Get(&guest, insert+` RETURNING guest`, table, guest)
	}},
	"bun": {openWith("pgx"), bookBun},
	"GORM": {openWith("pgx"), func(tx *sql.Tx, table int, guest string) error {
		db, err := gorm.Open(postgres.New(postgres.Config{Conn: tx}),
			&gorm.Config{Logger: logger.Discard, SkipDefaultTransaction: true})
		if err != nil {
			return err
		}
		return db.Create(&Booking{TableID: table, Guest: guest}).Error
	}},
	"ent": {openWith("pgx"), func(tx *sql.Tx, table int, guest string) error {
		return createWithEnt(context.Background(), entIn(tx), table, guest)
	}},
}

func openWith(driver string) func(*testing.T, string) *sql.DB {
	return func(t *testing.T, url string) *sql.DB { return openSQL(t, driver, url) }
}

func bookPlain(tx *sql.Tx, table int, guest string) error {
	_, err := tx.Exec(insert, table, guest)
	return err
}

func bookBun(tx *sql.Tx, table int, guest string) error {
	_, err := bun.NewDB(new(sql.DB), pgdialect.New()).NewInsert().Conn(tx).
		Model(&bunBooking{TableID: table, Guest: guest}).Exec(context.Background())
	return err
}

// Each library reaches Postgres directly, and behind a PgBouncer in transaction mode that has one
// connection for all.
func TestTxSQL(t *testing.T) {
	t.Parallel()
	for name, l := range txSQL {
		for place, url := range map[string]func(*testing.T, *pgxpool.Pool) string{
			"direct": func(_ *testing.T, pool *pgxpool.Pool) string { return url(pool) },
			"behind PgBouncer": func(t *testing.T, pool *pgxpool.Pool) string {
				behind := testenv.PgBouncer(t, url(pool), "transaction").URL()
				if name == "lib/pq" || name == "pgdriver" { // which name no prepared statements in it
					return behind
				}
				return behind + "&default_query_exec_mode=exec"
			},
		} {
			t.Run(name+"/"+place, func(t *testing.T) {
				t.Parallel()
				holdToContract(t, func(t *testing.T, pool *pgxpool.Pool) library {
					db := l.open(t, url(t, pool))
					return library{
						book: func(ctx context.Context, grant fencedb.Grant, table int, guest string) error {
							return fencedb.TxSQL(ctx, db, grant, func(tx *sql.Tx) error { return l.book(tx, table, guest) })
						},
						forget: withDatabaseSQL(db).forget,
					}
				})
			})
		}
	}
}

// S6 with every driver: none of them tells a COMMIT that was lost from one that was refused.
func TestTxSQLFindsOutWhatBecameOfALostCommit(t *testing.T) {
	t.Parallel()
	for name, l := range txSQL {
		cutCommits(t, name, func(t *testing.T, url string) library {
			db := l.open(t, url)
			return library{book: func(ctx context.Context, grant fencedb.Grant, table int, guest string) error {
				return fencedb.TxSQL(ctx, db, grant, func(tx *sql.Tx) error { return l.book(tx, table, guest) })
			}}
		})
	}
}

// The libraries that begin and commit by themselves.
func TestOutcomeSQLFindsOutWhatBecameOfALostCommit(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T, url string) library{
		"pgx":    func(t *testing.T, url string) library { return withDatabaseSQL(openSQL(t, "pgx", url)) },
		"lib/pq": func(t *testing.T, url string) library { return withDatabaseSQL(openSQL(t, "postgres", url)) },
		"sqlx":   func(t *testing.T, url string) library { return withSqlx(sqlx.NewDb(openSQL(t, "pgx", url), "pgx")) },
		"GORM": func(t *testing.T, url string) library {
			db, err := gorm.Open(postgres.New(postgres.Config{Conn: openSQL(t, "pgx", url)}), &gorm.Config{Logger: logger.Discard})
			require.NoError(t, err)
			return withGORM(db)
		},
		"bun": func(t *testing.T, url string) library {
			return withBun(bun.NewDB(openSQL(t, "pgx", url), pgdialect.New()))
		},
		"ent": func(t *testing.T, url string) library { return withEnt(openSQL(t, "pgx", url)) },
		"bun and pgdriver": func(t *testing.T, url string) library {
			return withBun(bun.NewDB(openPgdriver(t, url), pgdialect.New()))
		},
	} {
		cutCommits(t, name, open)
	}
}

// cutCommits loses the connection before and behind the COMMIT of a library.
func cutCommits(t *testing.T, name string, open func(t *testing.T, url string) library) {
	isCommit := func(msg pgproto3.FrontendMessage) bool {
		q, ok := msg.(*pgproto3.Query)
		return ok && strings.EqualFold(strings.TrimSpace(q.String), "COMMIT")
	}
	isCommitted := func(msg pgproto3.BackendMessage) bool {
		c, ok := msg.(*pgproto3.CommandComplete)
		return ok && string(c.CommandTag) == "COMMIT"
	}
	for place, committed := range map[string]bool{"before COMMIT arrives": false, "before the answer": true} {
		t.Run(name+"/"+place, func(t *testing.T) {
			t.Parallel()
			pool := migrated(t)
			proxy := faulty.NewPostgresProxy(t, url(pool))
			l := open(t, proxy.URL())
			var cut atomic.Bool
			proxy.OnClient(func(msg pgproto3.FrontendMessage) faulty.Fate {
				if !committed && isCommit(msg) && !cut.Swap(true) {
					return faulty.Cut
				}
				return faulty.Pass
			})
			proxy.OnServer(func(msg pgproto3.BackendMessage) faulty.Fate {
				if committed && isCommitted(msg) && !cut.Swap(true) {
					return faulty.Cut
				}
				return faulty.Pass
			})

			err := l.book(t.Context(), grant("table:12", 41), 12, "ann")

			require.True(t, cut.Load())
			if committed {
				require.NoError(t, err)
				require.Equal(t, []string{"ann"}, guests(t, pool))
			} else {
				require.ErrorContains(t, err, "rolled back: ")
				require.Empty(t, guests(t, pool))
			}
		})
	}
}

// pgdriver does not look at what COMMIT of a transaction answers that has failed.
func TestOutcomeSQLIsRightWhereTheDriverIsWrong(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	db := openPgdriver(t, url(pool))
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	entry, err := fencedb.EnterSQL(t.Context(), tx, grant("table:12", 41))
	require.NoError(t, err)
	_, err = tx.ExecContext(t.Context(), `INSERT INTO bookings (table_id, guest) VALUES (12, 'ann'), (12, NULL)`)
	require.Error(t, err)

	err = tx.Commit()

	require.NoError(t, err, "when pgdriver answers this rightly, the test can go")
	require.ErrorContains(t, entry.OutcomeSQL(t.Context(), db, err), "rolled back")
	require.Empty(t, guests(t, pool))
}

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
			entry, err := fencedb.EnterSQL(ctx, tx, grant)
			if err != nil {
				return err
			}
			if _, err := tx.NamedExecContext(ctx, insert, booking{table, guest}); err != nil {
				return fencedb.Explain(err)
			}
			if err := tx.Commit(); err != nil {
				return entry.OutcomeSQL(ctx, db.DB, err)
			}
			return nil
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

	exec(`SELECT fencedb.protect('tables', 'table:{id}', mode => 'observe')`)

	require.ErrorContains(t, read(byName), "cached plan must not change result type", "once")
	require.ErrorContains(t, read(byName), "last_fencing_token")
	require.Error(t, read(scan))
	require.Error(t, named())
	require.ErrorContains(t, named(), "missing destination name last_fencing_token")
	require.NoError(t, db.Unsafe().Select(new([]row), all))
	exec(`INSERT INTO tables VALUES (13, 2)`)
}
