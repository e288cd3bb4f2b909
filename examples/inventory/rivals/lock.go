package rivals

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedb/fencedb/examples/inventory/shop"
	"github.com/fencedb/fencedb/examples/inventory/store"
	"github.com/fencedb/fencedb/lease"
)

// Lock is the sale under leases alone. It looks at its lease before each write to the stock, as careful code does; a process that is
// stopped after it has looked cannot know.
func Lock(c shop.Config) *Shop { return &Shop{c, locking{c.DB, c.Leases}} }

type locking struct {
	db     *pgxpool.Pool
	leases *lease.Issuer
}

func (w locking) alone(ctx context.Context, id uuid.UUID, skus []string, fn func(tx transaction) error) error {
	resources := []string{lease.Resource("cart", id)}
	for _, sku := range skus {
		resources = append(resources, lease.Resource("sku", sku))
	}
	leases, err := w.leases.AcquireAll(ctx, resources)
	if err != nil {
		return err
	}
	defer func() { _ = leases.Release(ctx) }()
	return pgx.BeginFunc(ctx, w.db, func(tx pgx.Tx) error { return fn(locked{tx, leases}) })
}

func (w locking) paying(ctx context.Context, id uuid.UUID, fn func() error) error {
	l, err := w.leases.TryAcquire(ctx, lease.Resource("cart", id))
	if err != nil {
		return err
	}
	defer func() { _ = l.Release(ctx) }()
	return fn()
}

type locked struct {
	pgx.Tx
	leases lease.Leases
}

func (tx locked) levels(ctx context.Context, skus []string) ([]store.Level, error) {
	return store.Levels(ctx, tx, skus)
}

func (tx locked) setLevels(ctx context.Context, levels []store.Level) error {
	for _, l := range tx.leases {
		if err := l.Err(); err != nil {
			return err
		}
	}
	return store.SetLevels(ctx, tx, levels)
}
