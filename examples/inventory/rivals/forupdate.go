package rivals

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedb/fencedb/examples/inventory/shop"
	"github.com/fencedb/fencedb/examples/inventory/store"
)

// ForUpdate is the sale under row locks.
func ForUpdate(c shop.Config) *Shop { return &Shop{c, forUpdate{c.DB}} }

type forUpdate struct{ db *pgxpool.Pool }

func (w forUpdate) alone(ctx context.Context, _ uuid.UUID, _ []string, fn func(tx transaction) error) error {
	return pgx.BeginFunc(ctx, w.db, func(tx pgx.Tx) error { return fn(rowLocking{tx}) })
}

func (forUpdate) paying(_ context.Context, _ uuid.UUID, fn func() error) error { return fn() }

type rowLocking struct{ pgx.Tx }

func (tx rowLocking) levels(ctx context.Context, skus []string) ([]store.Level, error) {
	return store.LockLevels(ctx, tx, skus)
}

func (tx rowLocking) setLevels(ctx context.Context, levels []store.Level) error {
	return store.SetLevels(ctx, tx, levels)
}
