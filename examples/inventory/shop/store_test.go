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
		t.Run(name, func(t *testing.T) {
			c := shop.Cart{ID: uuid.New(), Buyer: "ann", Cents: 1, Lines: []shop.Line{{SKU: "a", Units: 1, Cents: 1}}}
			left := func(in shop.Tables) int {
				levels, err := in.Levels(t.Context(), []string{"a"})
				require.NoError(t, err)
				return levels[0].Remaining
			}
			err := fencedb.Tx(t.Context(), db, grants(c.ID), func(tx pgx.Tx) error {
				in := shop.In(tx)
				_, err := in.AddCart(t.Context(), c, tc.keep)
				require.NoError(t, err)
				require.ErrorIs(t, in.Sell(t.Context(), uuid.New()), shop.ErrExpired)
				if tc.sell {
					_, err = tx.Exec(t.Context(), `INSERT INTO payments (cart_id, cents) VALUES ($1, 1)`, c.ID)
					require.NoError(t, err)
					require.NoError(t, in.Sell(t.Context(), c.ID))
				}
				before := left(in)
				require.NoError(t, in.Expire(t.Context(), c.ID))
				require.NoError(t, in.Expire(t.Context(), c.ID), "again")
				got, err := in.Cart(t.Context(), c.ID)
				require.NoError(t, err)
				require.Equal(t, tc.expires, got.State == shop.Expired)
				require.Equal(t, tc.expires, left(in) == before+1, "once")
				return nil
			})
			require.NoError(t, err)
		})
	}
}

// grants are those of a cart and of the SKU.
func grants(cart uuid.UUID) fencedb.Grant {
	return fencedb.All(fencedb.NewGrant("cart:"+cart.String(), 41, uuid.New(), fencedb.NoEnd),
		fencedb.NewGrant("sku:a", time.Now().UnixMicro(), uuid.New(), fencedb.NoEnd))
}

// newDB has one SKU.
func newDB(t *testing.T) *pgxpool.Pool {
	t.Helper()
	db := testenv.Postgres(t)
	plain := stdlib.OpenDBFromPool(db)
	require.NoError(t, errors.Join(shop.Migrate(t.Context(), plain), plain.Close()))
	_, err := fencedb.Exec(t.Context(), db, fencedb.NewGrant("sku:a", 41, uuid.New(), fencedb.NoEnd),
		`INSERT INTO stock (sku, start, remaining, cents) VALUES ('a', 9, 9, 1)`)
	require.NoError(t, err)
	return db
}
