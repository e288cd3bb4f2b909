package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
)

// resource is what a scheduler holds while it works.
const resource = "cron:reminders"

// scheduler sends reminders. It is safe for concurrent use.
type scheduler struct {
	Name   string // of this one, for the record
	DB     *pgxpool.Pool
	Leases *lease.Issuer

	// Deliver hands a reminder over in the same transaction, as to an outbox table that a mailer
	// reads. Its error stops the run.
	Deliver func(ctx context.Context, tx pgx.Tx, guest string) error
}

// Tick is one run: it sends what is due and returns how much that was. While another scheduler
// works, that is 0, and no error.
//
// On error the reminders sent until then are sent, and the others are still due: the next tick goes
// on. With [fencedb.ErrStale] another scheduler has taken over, with [fencedb.ErrLeaseOver] one
// could have.
func (s *scheduler) Tick(ctx context.Context) (sent int, err error) {
	err = s.Leases.Do(ctx, resource, func(ctx context.Context, l *lease.Lease) (err error) {
		sent, err = s.sendAll(ctx, l)
		return err
	}, lease.NoWait())
	if errors.Is(err, lease.ErrWorkDone) || errors.Is(err, lease.ErrHeld) {
		return sent, nil
	}
	return sent, err
}

func (s *scheduler) sendAll(ctx context.Context, l *lease.Lease) (sent int, err error) {
	for {
		found, err := s.sendNext(ctx, l)
		var stale *fencedb.StaleError
		if errors.As(err, &stale) { // if Redis has gone backwards, the next tick's token must be higher
			_, raiseErr := s.Leases.Raise(ctx, resource, stale.Stored)
			err = errors.Join(err, raiseErr)
		}
		if err != nil {
			return sent, fmt.Errorf("reminders: after %d: %w", sent, err)
		}
		if !found {
			return sent, nil
		}
		sent++
	}
}

// sendNext is one transition, in a transaction of its own: a crash loses no more than one, and that
// one rolls back.
func (s *scheduler) sendNext(ctx context.Context, grant fencedb.Grant) (found bool, err error) {
	err = fencedb.Tx(ctx, s.DB, grant, func(tx pgx.Tx) error {
		var guest string
		err := tx.QueryRow(ctx, `
			UPDATE reminders SET sent_at = now(), sent_by = $1
			WHERE id = (SELECT id FROM reminders WHERE sent_at IS NULL AND due_at <= now() ORDER BY due_at, id LIMIT 1)
			  AND sent_at IS NULL
			RETURNING guest`, s.Name).Scan(&guest)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		found = true
		return s.Deliver(ctx, tx, guest)
	})
	return found && err == nil, err
}
