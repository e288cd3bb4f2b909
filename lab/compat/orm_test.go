package compat

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	"github.com/uptrace/bun/driver/pgdriver"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/fencedb/fencedb/fencedb"
)

func TestGORM(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]*gorm.Config{
		"plain":               {},
		"prepared statements": {PrepareStmt: true},
		"translated errors":   {TranslateError: true},
	} {
		config.Logger = logger.Discard
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			holdToContract(t, func(t *testing.T, pool *pgxpool.Pool) library {
				own := *config // GORM keeps its state in it
				return withGORM(openGORM(t, pool, &own))
			})
		})
	}
}

func openGORM(t *testing.T, pool *pgxpool.Pool, config *gorm.Config) *gorm.DB {
	t.Helper()
	db, err := gorm.Open(postgres.New(postgres.Config{Conn: openSQL(t, "pgx", url(pool))}), config)
	require.NoError(t, err)
	return db
}

type Booking struct {
	ID      int64
	TableID int
	Guest   string
}

func withGORM(db *gorm.DB) library {
	return library{
		book: func(ctx context.Context, grant fencedb.Grant, table int, guest string) error {
			var entry *fencedb.Entry
			err := db.WithContext(ctx).Transaction(func(tx *gorm.DB) (err error) {
				if entry, err = fencedb.EnterSQL(ctx, tx.Statement.ConnPool, grant); err != nil {
					return err
				}
				return tx.Create(&Booking{TableID: table, Guest: guest}).Error
			})
			if err != nil {
				pool, _ := db.DB()
				return entry.OutcomeSQL(ctx, pool, err)
			}
			return nil
		},
		forget: func(ctx context.Context, table int, guest string) error {
			return fencedb.Explain(db.WithContext(ctx).Create(&Booking{TableID: table, Guest: guest}).Error)
		},
	}
}

// A transaction inside another is a savepoint to GORM. What entered behind it goes back with it.
func TestGORMEntersInTheOuterTransaction(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	db := openGORM(t, pool, &gorm.Config{Logger: logger.Discard})
	own := grant("table:12", 41)
	enter := func(tx *gorm.DB) error {
		_, err := fencedb.EnterSQL(t.Context(), tx.Statement.ConnPool, own)
		return err
	}

	err := db.Transaction(func(tx *gorm.DB) error { return tx.Transaction(enter) })
	require.NoError(t, err)
	err = db.Transaction(func(tx *gorm.DB) error {
		gaveUp := errors.New("gave up")
		require.ErrorIs(t, tx.Transaction(func(nested *gorm.DB) error { return errors.Join(enter(nested), gaveUp) }), gaveUp)
		return tx.Create(&Booking{TableID: 12, Guest: "late"}).Error
	})
	require.ErrorIs(t, fencedb.Explain(err), fencedb.ErrNoToken)

	err = db.Transaction(func(tx *gorm.DB) error {
		require.NoError(t, enter(tx))
		return tx.Transaction(func(nested *gorm.DB) error {
			return nested.Create(&Booking{TableID: 12, Guest: "ann"}).Error
		})
	})
	require.NoError(t, err)
	require.Equal(t, []string{"ann"}, guests(t, pool))
}

// The session outside a transaction has the same type, so forgetting the transaction compiles.
func TestGORMOutsideATransactionIsRefused(t *testing.T) {
	t.Parallel()
	pool, lease := migrated(t), grant("table:12", 41)
	for _, prepare := range []bool{false, true} {
		db := openGORM(t, pool, &gorm.Config{Logger: logger.Discard, PrepareStmt: prepare})
		_, err := fencedb.EnterSQL(t.Context(), db.Statement.ConnPool, lease)
		require.ErrorContains(t, err, "not in a transaction")
	}
}

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

// Bun's own QueryContext writes arguments into the text in place of question marks, so enter on the
// transaction inside.
func withBun(db *bun.DB) library {
	return library{
		book: func(ctx context.Context, grant fencedb.Grant, table int, guest string) error {
			var entry *fencedb.Entry
			err := db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) (err error) {
				if entry, err = fencedb.EnterSQL(ctx, tx.Tx, grant); err != nil {
					return err
				}
				_, err = tx.NewInsert().Model(&bunBooking{TableID: table, Guest: guest}).Exec(ctx)
				return err
			})
			if err != nil {
				return entry.OutcomeSQL(ctx, db.DB, err)
			}
			return nil
		},
		forget: func(ctx context.Context, table int, guest string) error {
			_, err := db.NewInsert().Model(&bunBooking{TableID: table, Guest: guest}).Exec(ctx)
			return fencedb.Explain(err)
		},
	}
}
