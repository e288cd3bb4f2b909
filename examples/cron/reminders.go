package main

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/lease"
)

// role is what a scheduler holds while it leads.
const role = "cron:reminders"

// scheduler sends reminders. It is safe for concurrent use.
type scheduler struct {
	Name  string // of this one, for the record
	Desk  *guard.Desk
	Every time.Duration // how often to look for what is due

	// Deliver hands a reminder over in the same transaction, as to an outbox table that a mailer
	// reads. Its error ends the term of this scheduler.
	Deliver func(ctx context.Context, tx pgx.Tx, guest string) error
}

// Run sends what is due for as long as this scheduler leads, and otherwise waits until it does. It
// ends with ctx, whose cause it returns.
//
// A term that ends is told to [lease.OnTerm]: with fencedb.ErrStale another scheduler has taken
// over, with fencedb.ErrLeaseOver one could have. The reminders sent until then are sent, and the
// others are still due: the next term goes on, here or elsewhere.
func (s *scheduler) Run(ctx context.Context, opts ...lease.LeadOption) error {
	return s.Desk.Lead(ctx, role, func(ctx context.Context, h *guard.Holder) error {
		for beat := time.NewTicker(s.Every); ; {
			if err := s.sendAll(ctx, h); err != nil {
				return err
			}
			select {
			case <-beat.C:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}, opts...)
}

func (s *scheduler) sendAll(ctx context.Context, h *guard.Holder) error {
	for {
		if found, err := s.sendNext(ctx, h); err != nil || !found {
			return err
		}
	}
}

// sendNext is one transition, in a transaction of its own: a crash loses no more than one, and that
// one rolls back.
func (s *scheduler) sendNext(ctx context.Context, h *guard.Holder) (found bool, err error) {
	err = h.Tx(ctx, func(tx pgx.Tx) error {
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
