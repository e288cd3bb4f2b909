package shop

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/fencedb/fencedb/examples/inventory/store"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
)

const (
	sweepBatch = 200 // carts, of what there is to do
	sweepers   = 8   // at a time
)

// Sweep ends reservations that nobody has paid in time, and gives money back that was taken in vain. One process sweeps at a time; in
// the others it returns at once. What is left to do is in Postgres: should the sweeper die, the next one goes on.
//
// An error says that something was left for the next time.
func (s *Shop) Sweep(ctx context.Context) error {
	l, err := s.Leases.TryAcquire(ctx, "sweeper")
	if errors.Is(err, lease.ErrHeld) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = l.Release(ctx) }() // two sweepers at once cost time, nothing else

	overdue, err := store.Overdue(ctx, s.DB, sweepBatch)
	if err != nil {
		return err
	}
	expireErr := each(ctx, overdue, s.expire)
	due, err := store.RefundsDue(ctx, s.DB, sweepBatch)
	if err != nil {
		return errors.Join(expireErr, err)
	}
	return errors.Join(expireErr, each(ctx, due, s.refund))
}

// SweepEvery sweeps until ctx is done.
func (s *Shop) SweepEvery(ctx context.Context, every time.Duration, failed func(error)) {
	for again := time.NewTicker(every); ; {
		if err := s.Sweep(ctx); err != nil && ctx.Err() == nil {
			failed(err)
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return
		}
	}
}

// expire puts the units of a cart back. Not while it is being paid: then the payer has the lease on it.
func (s *Shop) expire(ctx context.Context, id uuid.UUID) error {
	cart, err := s.Leases.TryAcquire(ctx, cartResource(id))
	if err != nil {
		return err
	}
	defer func() { _ = cart.Release(ctx) }()
	lines, err := store.Lines(ctx, s.DB, id)
	if err != nil {
		return err
	}
	skus, err := s.Leases.AcquireAll(ctx, skuResources(lines), lease.WaitAtMost(s.Wait))
	if err != nil {
		return err
	}
	defer func() { _ = skus.Release(ctx) }()

	err = fencedb.Tx(ctx, s.DB, fencedb.All(append(skus, cart)...), func(tx pgx.Tx) error {
		expired, err := store.Expire(ctx, tx, id)
		if err != nil || !expired {
			return err
		}
		levels, err := store.Levels(ctx, tx, SKUs(lines))
		if err != nil {
			return err
		}
		return store.SetLevels(ctx, tx, PutBack(levels, lines))
	})
	var stale *fencedb.StaleError
	if errors.As(err, &stale) { // somebody newer, or Redis has gone backwards: then the next sweep's tokens must be above
		if _, err := s.Leases.Raise(ctx, stale.Resource, stale.Stored); err != nil {
			return err
		}
	}
	return err
}

// refund tells the bank first: if that is all that happens, it is told again.
func (s *Shop) refund(ctx context.Context, id uuid.UUID) error {
	if err := s.Bank.Refund(ctx, id); err != nil {
		return err
	}
	return s.alone(ctx, []string{cartResource(id)}, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, store.Refunded, id)
		return err
	})
}

// each does one thing for all carts, some at a time. One that somebody else is at is left for the next time.
func each(ctx context.Context, ids []uuid.UUID, do func(context.Context, uuid.UUID) error) error {
	var all errgroup.Group
	all.SetLimit(sweepers)
	for _, id := range ids {
		all.Go(func() error {
			if err := do(ctx, id); err != nil && !errors.Is(err, lease.ErrHeld) && !errors.Is(err, fencedb.ErrStale) {
				return fmt.Errorf("cart %s: %w", id, err)
			}
			return nil
		})
	}
	return all.Wait()
}
