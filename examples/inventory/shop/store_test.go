package shop_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/examples/inventory/shop"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
)

// A sweep finds a cart overdue, and until it has its turn the cart may have become something else.
func TestExpireLooksAgain(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	for name, tc := range map[string]struct {
		keep    time.Duration
		sell    bool
		expires bool
	}{
		"overdue":     {0, false, true},
		"not overdue": {time.Hour, false, false},
		"sold":        {0, true, false},
	} {
		id := uuid.New()
		grant := fencedb.NewGrant("cart:"+id.String(), 41, uuid.New(), fencedb.NoEnd)
		var expired, again bool
		err := fencedb.Tx(t.Context(), db, grant, func(tx pgx.Tx) error {
			_, err := shop.In(tx).AddCart(t.Context(), id, "ann", []shop.Line{{SKU: "a", Units: 1, Cents: 1}}, tc.keep)
			if err == nil && tc.sell {
				_, err = tx.Exec(t.Context(), `INSERT INTO payments (cart_id, cents) VALUES ($1, 1)`, id)
				_, sold := shop.In(tx).Sell(t.Context(), id)
				err = errors.Join(err, sold)
			}
			if err != nil {
				return err
			}
			if expired, err = shop.In(tx).Expire(t.Context(), id); err != nil {
				return err
			}
			again, err = shop.In(tx).Expire(t.Context(), id)
			return err
		})
		require.NoError(t, err, name)
		require.Equal(t, tc.expires, expired, name)
		require.False(t, again, "%s: once", name)
	}
}

// newDB has one SKU.
func newDB(t *testing.T) *pgxpool.Pool {
	t.Helper()
	db := testenv.Postgres(t)
	plain := stdlib.OpenDBFromPool(db)
	require.NoError(t, errors.Join(shop.Migrate(t.Context(), plain), plain.Close()))
	err := fencedb.Tx(t.Context(), db, fencedb.NewGrant("sku:a", 41, uuid.New(), fencedb.NoEnd), func(tx pgx.Tx) error {
		return shop.In(tx).AddLevels(t.Context(), []shop.Level{{SKU: "a", Start: 9, Cents: 1}})
	})
	require.NoError(t, err)
	return db
}
