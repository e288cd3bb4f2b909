package sale

import (
	"context"
	"errors"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedb/fencedb/examples/inventory/shop"
	"github.com/fencedb/fencedb/lease"
)

// rival is package shop's Shop without a fence, in one of the three ways in which a sale is usually
// done. It is there to be measured beside it:
//
//   - Lock: the leases of package shop and nothing else. Wrong: a buyer that is stopped between
//     reading the stock and writing it writes over what others have written since.
//   - ForUpdate: SELECT ... FOR UPDATE. Right. A buyer that is stopped keeps its rows locked until
//     it goes on, and everyone who wants one of them waits.
//   - Optimistic: UPDATE ... WHERE remaining = what was read, and again if that has changed. Right,
//     since nothing else decides; and nobody waits for anybody. The more buyers want the same, the
//     more work is thrown away.
//
// The last two have nothing to keep a cart for its payer while the bank takes its time, since a
// transaction should not be open for so long. A reservation that runs out meanwhile is lost, and
// the money goes back.
//
// It is safe for concurrent use.
type rival struct {
	*shop.Shop // for what all of them do alike
	mode       Mode
	load       Load
	db         *pgxpool.Pool
	leases     *lease.Issuer
	bank       shop.Bank
}

// errChanged: what was read is not true any more. Nothing was written.
var errChanged = errors.New("the stock has changed")

// alone runs fn in one transaction on a cart and its SKUs: under leases on them, or, if fn finds
// that somebody else was faster, again for as long as the context allows.
func (s *rival) alone(ctx context.Context, c shop.Cart, fn func(pgx.Tx, lease.Leases) error) error {
	var held lease.Leases
	if s.mode == Lock {
		resources := []string{lease.Resource("cart", c.ID)}
		for _, sku := range c.SKUs() {
			resources = append(resources, lease.Resource("sku", sku))
		}
		var err error
		if held, err = s.leases.AcquireAll(ctx, resources); err != nil {
			return err
		}
		defer func() { _ = held.Release(ctx) }()
	}
	for {
		err := pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error { return fn(tx, held) })
		if !errors.Is(err, errChanged) {
			return err
		}
	}
}

func (s *rival) levels(ctx context.Context, tx pgx.Tx, skus []string) ([]shop.Level, error) {
	if s.mode != ForUpdate {
		return shop.In(tx).Levels(ctx, skus)
	}
	return lock(ctx, tx, skus)
}

// lock locks the rows until tx ends, in one order, so that two transactions never wait for each
// other.
func lock(ctx context.Context, tx pgx.Tx, skus []string) ([]shop.Level, error) {
	rows, _ := tx.Query(ctx, `
		SELECT sku, start, remaining, cents FROM stock WHERE sku = ANY ($1) ORDER BY sku FOR UPDATE`, skus)
	return pgx.CollectRows(rows, pgx.RowToStructByPos[shop.Level])
}

// setLevels looks at the leases before the write, as careful code does; a process that is stopped
// after it has looked cannot know.
func (s *rival) setLevels(ctx context.Context, tx pgx.Tx, held lease.Leases, read, levels []shop.Level) error {
	for _, l := range held {
		if err := l.Err(); err != nil {
			return err
		}
	}
	if s.mode != Optimistic {
		return shop.In(tx).SetLevels(ctx, levels)
	}
	unchanged := 0
	var b pgx.Batch
	for i, l := range levels {
		b.Queue(`UPDATE stock SET remaining = $2 WHERE sku = $1 AND remaining = $3`, l.SKU, l.Remaining, read[i].Remaining).
			Exec(func(tag pgconn.CommandTag) error {
				unchanged += int(tag.RowsAffected())
				return nil
			})
	}
	err := tx.SendBatch(ctx, &b).Close()
	if err == nil && unchanged < len(levels) {
		return errChanged
	}
	return err
}

// Reserve is as in package shop.
func (s *rival) Reserve(ctx context.Context, buyer string, lines []shop.Line) (shop.Cart, error) {
	c := shop.Cart{ID: uuid.New(), Buyer: buyer, Lines: lines}
	if err := c.Validate(); err != nil {
		return c, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.load.wait())
	defer cancel()
	err := s.alone(ctx, c, func(tx pgx.Tx, held lease.Leases) error {
		levels, err := s.levels(ctx, tx, c.SKUs())
		if err != nil {
			return err
		}
		after, priced, err := shop.Take(levels, c)
		if err != nil {
			return err
		}
		if err := s.setLevels(ctx, tx, held, levels, after); err != nil {
			return err
		}
		c, err = shop.In(tx).AddCart(ctx, priced, s.load.TTL)
		return err
	})
	return c, err
}

// Pay is as in package shop.
func (s *rival) Pay(ctx context.Context, id uuid.UUID) error {
	if s.mode == Lock {
		l, err := s.leases.Acquire(ctx, lease.Resource("cart", id), lease.NoWait())
		if err != nil {
			return err
		}
		defer func() { _ = l.Release(ctx) }()
	}
	var cents int64
	err := pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) (err error) {
		cents, err = shop.In(tx).BeginPayment(ctx, id)
		return err
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return shop.ErrExpired
	}
	if err != nil {
		return err
	}
	if err := s.bank.Charge(ctx, id, cents); err != nil {
		return err
	}
	// The condition on the state decides: a cart goes one way only.
	return pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error { return shop.In(tx).Sell(ctx, id) })
}

// Sweep is as in package shop, but in all processes at once.
func (s *rival) Sweep(ctx context.Context) error {
	refund := func(ctx context.Context, id uuid.UUID) error {
		if err := s.bank.Refund(ctx, id); err != nil {
			return err
		}
		return pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error { return shop.In(tx).Refunded(ctx, id) })
	}
	return errors.Join(s.Each(ctx, shop.Overdue, s.expire), s.Each(ctx, shop.RefundsDue, refund))
}

func (s *rival) expire(ctx context.Context, id uuid.UUID) error {
	ctx, cancel := context.WithTimeout(ctx, s.load.wait())
	defer cancel()
	c, err := s.Cart(ctx, id)
	if err != nil {
		return err
	}
	return s.alone(ctx, c, func(tx pgx.Tx, _ lease.Leases) error {
		if _, err := lock(ctx, tx, c.SKUs()); err != nil {
			return err
		}
		return shop.In(tx).Expire(ctx, id)
	})
}
