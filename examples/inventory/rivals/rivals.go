// Package rivals has the same sale without a fence, in the three ways in which it is usually done. It is there to be measured
// beside package shop:
//
//   - [Lock]: the leases of package shop and nothing else. Wrong: a buyer that is stopped between reading the stock and writing
//     it writes over what others have written since.
//   - [ForUpdate]: SELECT ... FOR UPDATE. Right. A buyer that is stopped keeps its rows locked, and with them everyone who
//     wants one of them, until it goes on.
//   - [Optimistic]: UPDATE ... WHERE version = what was read, and again if that has changed. Right, and nobody waits for anybody;
//     the more buyers want the same, the more of the work is done in vain.
//
// The last two have nothing to keep a cart for its payer while the bank takes its time, since a transaction should not be
// open for so long. A reservation that runs out meanwhile is lost, and the money goes back.
package rivals

import (
	"context"
	"errors"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/fencedb/fencedb/examples/inventory/shop"
	"github.com/fencedb/fencedb/examples/inventory/store"
)

// Shop is package shop's Shop in another way. It is safe for concurrent use.
type Shop struct {
	shop.Config
	way
}

// way is what the three differ in.
type way interface {
	// alone runs fn in one transaction on a cart and its SKUs.
	alone(ctx context.Context, id uuid.UUID, skus []string, fn func(tx transaction) error) error
	// paying runs fn while nobody else is at the cart, if the way can do that.
	paying(ctx context.Context, id uuid.UUID, fn func() error) error
}

type transaction interface {
	pgx.Tx
	levels(ctx context.Context, skus []string) ([]store.Level, error)
	setLevels(ctx context.Context, levels []store.Level) error
}

// Unprotect lets writes without a token into the tables of the shop.
func Unprotect(ctx context.Context, db *pgxpool.Pool) error {
	_, err := db.Exec(ctx, `
		SELECT fencedb.unprotect('stock'), fencedb.unprotect('carts'), fencedb.unprotect('cart_lines'), fencedb.unprotect('payments')`)
	return err
}

// Stock is as in package shop.
func (s *Shop) Stock(ctx context.Context, levels []store.Level) error {
	return pgx.BeginFunc(ctx, s.DB, func(tx pgx.Tx) error { return store.AddLevels(ctx, tx, levels) })
}

// Reserve is as in package shop.
func (s *Shop) Reserve(ctx context.Context, buyer string, lines []store.Line) (c store.Cart, err error) {
	if err := shop.Validate(buyer, lines); err != nil {
		return store.Cart{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.Wait)
	defer cancel()
	id, skus := uuid.New(), shop.SKUs(lines)
	err = s.alone(ctx, id, skus, func(tx transaction) error {
		levels, err := tx.levels(ctx, skus)
		if err != nil {
			return err
		}
		after, priced, err := shop.Take(levels, lines)
		if err != nil {
			return err
		}
		if err := tx.setLevels(ctx, after); err != nil {
			return err
		}
		c = shop.NewCart(id, buyer, priced)
		c.Expires, err = store.AddCart(ctx, tx, c, s.Keep)
		return err
	})
	return c, err
}

// Pay is as in package shop.
func (s *Shop) Pay(ctx context.Context, id uuid.UUID) error {
	return s.paying(ctx, id, func() error {
		var cents int64
		err := s.DB.QueryRow(ctx, store.BeginPayment, id).Scan(&cents)
		if errors.Is(err, pgx.ErrNoRows) {
			return shop.ErrExpired
		}
		if err != nil {
			return err
		}
		if err := s.Bank.Charge(ctx, id, cents); err != nil {
			return err
		}
		// The condition on the state decides: a cart goes one way only.
		tag, err := s.DB.Exec(ctx, store.Sell, id)
		if err == nil && tag.RowsAffected() == 0 {
			return shop.ErrExpired
		}
		return err
	})
}

const (
	sweepBatch = 200
	sweepers   = 8
)

// Sweep is as in package shop, but in all processes at once.
func (s *Shop) Sweep(ctx context.Context) error {
	overdue, err := store.Overdue(ctx, s.DB, sweepBatch)
	if err != nil {
		return err
	}
	due, err := store.RefundsDue(ctx, s.DB, sweepBatch)
	if err != nil {
		return err
	}
	var all errgroup.Group
	all.SetLimit(sweepers)
	for _, id := range overdue {
		all.Go(func() error { return s.expire(ctx, id) })
	}
	for _, id := range due {
		all.Go(func() error { return s.refund(ctx, id) })
	}
	return all.Wait()
}

func (s *Shop) expire(ctx context.Context, id uuid.UUID) error {
	ctx, cancel := context.WithTimeout(ctx, s.Wait)
	defer cancel()
	lines, err := store.Lines(ctx, s.DB, id)
	if err != nil {
		return err
	}
	skus := shop.SKUs(lines)
	return s.alone(ctx, id, skus, func(tx transaction) error {
		expired, err := store.Expire(ctx, tx, id)
		if err != nil || !expired {
			return err
		}
		levels, err := tx.levels(ctx, skus)
		if err != nil {
			return err
		}
		return tx.setLevels(ctx, shop.PutBack(levels, lines))
	})
}

func (s *Shop) refund(ctx context.Context, id uuid.UUID) error {
	if err := s.Bank.Refund(ctx, id); err != nil {
		return err
	}
	_, err := s.DB.Exec(ctx, store.Refunded, id)
	return err
}
