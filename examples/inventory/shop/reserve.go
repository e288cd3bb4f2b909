package shop

import (
	"context"
	"errors"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/fencedb/fencedb/examples/inventory/store"
	"github.com/fencedb/fencedb/guard"
)

// Reserve takes all lines out of the stock for a new cart, or none.
//
// Nil means reserved until Cart.Expires. [lease.ErrHeld] says that others were at these SKUs for as long as we were willing to
// wait, and when to ask again. After any other error nothing is reserved either, except that [fencedb.ErrCommitUnknown] leaves
// it open; then the reservation, if there is one, runs out by itself.
func (s *Shop) Reserve(ctx context.Context, buyer string, lines []store.Line) (c store.Cart, err error) {
	if err := Validate(buyer, lines); err != nil {
		return store.Cart{}, err
	}
	id, skus := uuid.New(), SKUs(lines)
	err = s.alone(ctx, append(skuResources(lines), cartResource(id)), func(ctx context.Context, tx pgx.Tx) error {
		levels, err := store.Levels(ctx, tx, skus) // true until we commit: no other holder can write them before
		if err != nil {
			return err
		}
		after, priced, err := Take(levels, lines)
		if err != nil {
			return err
		}
		if err := store.SetLevels(ctx, tx, after); err != nil {
			return err
		}
		c = NewCart(id, buyer, priced)
		c.Expires, err = store.AddCart(ctx, tx, c, s.Keep)
		return err
	})
	if err != nil {
		return store.Cart{}, err
	}
	return c, nil
}

// alone runs fn in one transaction behind the fences of all resources, when it is our turn for all of them.
func (s *Shop) alone(ctx context.Context, resources []string, fn func(ctx context.Context, tx pgx.Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.Wait)
	defer cancel()
	return guard.TxAll(ctx, s.Leases, s.DB, resources, fn)
}

// Stock puts SKUs up for sale. Those that are there already stay as they are.
func (s *Shop) Stock(ctx context.Context, levels []store.Level) error {
	var resources []string
	for _, l := range levels {
		resources = append(resources, skuResource(l.SKU))
	}
	return guard.TxAll(ctx, s.Leases, s.DB, resources, func(ctx context.Context, tx pgx.Tx) error {
		return store.AddLevels(ctx, tx, levels)
	})
}

// Levels tells what is left. It needs no lease, and is out of date when it arrives.
func (s *Shop) Levels(ctx context.Context) ([]store.Level, error) { return store.AllLevels(ctx, s.DB) }

// Cart finds a cart, or fails with [ErrNoCart].
func (s *Shop) Cart(ctx context.Context, id uuid.UUID) (store.Cart, error) {
	c, err := store.FindCart(ctx, s.DB, id)
	if errors.Is(err, pgx.ErrNoRows) {
		return store.Cart{}, ErrNoCart
	}
	return c, err
}
