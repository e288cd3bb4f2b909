package rivals

import (
	"context"
	"errors"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedb/fencedb/examples/inventory/shop"
	"github.com/fencedb/fencedb/examples/inventory/store"
)

// Optimistic is the sale that begins anew when somebody else was faster, for as long as the context allows.
func Optimistic(c shop.Config) *Shop { return &Shop{c, optimistic{c.DB}} }

type optimistic struct{ db *pgxpool.Pool }

// errChanged: what was read is not true any more. Nothing was written.
var errChanged = errors.New("rivals: the stock has changed")

func (w optimistic) alone(ctx context.Context, _ uuid.UUID, _ []string, fn func(tx transaction) error) error {
	for {
		err := pgx.BeginFunc(ctx, w.db, func(tx pgx.Tx) error { return fn(checking{tx}) })
		if !errors.Is(err, errChanged) {
			return err
		}
	}
}

func (optimistic) paying(_ context.Context, _ uuid.UUID, fn func() error) error { return fn() }

type checking struct{ pgx.Tx }

func (tx checking) levels(ctx context.Context, skus []string) ([]store.Level, error) {
	return store.Levels(ctx, tx, skus)
}

func (tx checking) setLevels(ctx context.Context, levels []store.Level) error {
	unchanged, err := store.SetLevelsIfUnchanged(ctx, tx, levels)
	if err == nil && unchanged < len(levels) {
		return errChanged
	}
	return err
}
