package sale

import (
	"context"
	"errors"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/fencedb/fencedb/examples/inventory/shop"
	"github.com/fencedb/fencedb/lease"
)

// rival is package shop's Shop without a fence, in one of the three ways in which a sale is usually
// done. It is there to be measured beside it:
//
//   - locking: the leases of package shop and nothing else. Wrong: a buyer that is stopped between
//     reading the stock and writing it writes over what others have written since.
//   - forUpdate: SELECT ... FOR UPDATE. Right. A buyer that is stopped keeps its rows locked until
//     it goes on, and everyone who wants one of them waits.
//   - optimistic: UPDATE ... WHERE version = what was read, and again if that has changed. Right,
//     and nobody waits for anybody; the more buyers want the same, the more work is thrown away.
//
// The last two have nothing to keep a cart for its payer while the bank takes its time, since a
// transaction should not be open for so long. A reservation that runs out meanwhile is lost, and
// the money goes back.
//
// It is safe for concurrent use.
type rival struct {
	shop.Config
	way
	levels func(ctx context.Context, tx shop.Reader, skus []string) ([]shop.Level, error)
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
	setLevels(ctx context.Context, levels []shop.Level) error
}

// Stock is as in package shop.
func (s *rival) Stock(ctx context.Context, levels []shop.Level) error {
	return pgx.BeginFunc(ctx, s.DB, func(tx pgx.Tx) error { return shop.AddLevels(ctx, tx, levels) })
}

// Reserve is as in package shop.
func (s *rival) Reserve(ctx context.Context, buyer string, lines []shop.Line) (c shop.Cart, err error) {
	if err := shop.Validate(buyer, lines); err != nil {
		return shop.Cart{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.Wait)
	defer cancel()
	id, skus := uuid.New(), shop.SKUs(lines)
	err = s.alone(ctx, id, skus, func(tx transaction) error {
		levels, err := s.levels(ctx, tx, skus)
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
		c.Expires, err = shop.AddCart(ctx, tx, c, s.Keep)
		return err
	})
	return c, err
}

// Pay is as in package shop.
func (s *rival) Pay(ctx context.Context, id uuid.UUID) error {
	return s.paying(ctx, id, func() error {
		var cents int64
		err := s.DB.QueryRow(ctx, shop.BeginPayment, id).Scan(&cents)
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
		tag, err := s.DB.Exec(ctx, shop.Sell, id)
		if err == nil && tag.RowsAffected() == 0 {
			return shop.ErrExpired
		}
		return err
	})
}

// Sweep is as in package shop, but in all processes at once.
func (s *rival) Sweep(ctx context.Context) error {
	const sweepBatch, sweepers = 200, 8
	overdue, err := shop.Overdue(ctx, s.DB, sweepBatch)
	if err != nil {
		return err
	}
	due, err := shop.RefundsDue(ctx, s.DB, sweepBatch)
	if err != nil {
		return err
	}
	var all errgroup.Group
	all.SetLimit(sweepers)
	for _, id := range overdue {
		all.Go(func() error { return s.expire(ctx, id) })
	}
	for _, id := range due {
		all.Go(func() error {
			if err := s.Bank.Refund(ctx, id); err != nil {
				return err
			}
			_, err := s.DB.Exec(ctx, shop.Refunded, id)
			return err
		})
	}
	return all.Wait()
}

func (s *rival) expire(ctx context.Context, id uuid.UUID) error {
	ctx, cancel := context.WithTimeout(ctx, s.Wait)
	defer cancel()
	lines, err := shop.Lines(ctx, s.DB, id)
	if err != nil {
		return err
	}
	skus := shop.SKUs(lines)
	return s.alone(ctx, id, skus, func(tx transaction) error {
		expired, err := shop.Expire(ctx, tx, id)
		if err != nil || !expired {
			return err
		}
		levels, err := s.levels(ctx, tx, skus)
		if err != nil {
			return err
		}
		return tx.setLevels(ctx, shop.PutBack(levels, lines))
	})
}

// locking is the sale under leases alone. It looks at its lease before each write to the stock, as
// careful code does; a process that is stopped after it has looked cannot know.
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

// Without leases it only writes: under row locks there is nothing to look at.
func (tx locked) setLevels(ctx context.Context, levels []shop.Level) error {
	for _, l := range tx.leases {
		if err := l.Err(); err != nil {
			return err
		}
	}
	return shop.SetLevels(ctx, tx, levels)
}

// forUpdate is the sale under row locks.
type forUpdate struct{ db *pgxpool.Pool }

func (w forUpdate) alone(ctx context.Context, _ uuid.UUID, _ []string, fn func(tx transaction) error) error {
	return pgx.BeginFunc(ctx, w.db, func(tx pgx.Tx) error { return fn(locked{tx, nil}) })
}

func (forUpdate) paying(_ context.Context, _ uuid.UUID, fn func() error) error { return fn() }

func levelsForUpdate(ctx context.Context, tx shop.Reader, skus []string) ([]shop.Level, error) {
	rows, _ := tx.Query(ctx, `
		SELECT sku, start, remaining, cents, version FROM stock WHERE sku = ANY ($1) ORDER BY sku FOR UPDATE`, skus)
	return pgx.CollectRows(rows, pgx.RowToStructByPos[shop.Level])
}

// optimistic is the sale that begins anew when somebody else was faster, for as long as the context
// allows.
type optimistic struct{ db *pgxpool.Pool }

// errChanged: what was read is not true any more. Nothing was written.
var errChanged = errors.New("the stock has changed")

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

func (tx checking) setLevels(ctx context.Context, levels []shop.Level) error {
	unchanged := 0
	var b pgx.Batch
	for _, l := range levels {
		b.Queue(`UPDATE stock SET remaining = $2, version = version + 1 WHERE sku = $1 AND version = $3`,
			l.SKU, l.Remaining, l.Version).
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
