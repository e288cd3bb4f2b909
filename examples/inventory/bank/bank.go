// Package bank stands for a payment provider: slow, not ours, and not fenced.
//
// It has the two properties that a provider must have for this to come out right, and that real ones have: a key that
// makes asking twice the same as asking once, and a refund that also stops a charge which has not arrived yet. Its books are in
// the same Postgres, so that the processes of the demo share them; the shop never looks at them.
package bank

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ErrVoid: the charge was refused, because it had been given back before. No money has moved.
var ErrVoid = errors.New("bank: the charge was given back")

// Bank is safe for concurrent use.
type Bank struct {
	db    *pgxpool.Pool
	delay func() time.Duration
}

// New returns a bank that needs that long to answer to a charge. db stays the caller's.
func New(db *pgxpool.Pool, delay func() time.Duration) *Bank { return &Bank{db, delay} }

// Open makes the books, if there are none.
func (b *Bank) Open(ctx context.Context) error {
	_, err := b.db.Exec(ctx, `
		CREATE SCHEMA IF NOT EXISTS bank;
		CREATE TABLE IF NOT EXISTS bank.charges (
			key   uuid   PRIMARY KEY,
			cents bigint NOT NULL,
			state text   NOT NULL CHECK (state IN ('CHARGED', 'REFUNDED', 'VOID'))
		)`)
	return err
}

// Charge takes the money, once for each key, however often it is called. When ctx ends, that may have happened or not.
func (b *Bank) Charge(ctx context.Context, key uuid.UUID, cents int64) error {
	var state string
	err := b.db.QueryRow(ctx, `
		INSERT INTO bank.charges AS c (key, cents, state) VALUES ($1, $2, 'CHARGED')
		ON CONFLICT (key) DO UPDATE SET state = c.state
		RETURNING state`, key, cents).Scan(&state)
	if err != nil {
		return err
	}
	// The money has moved by now; the answer takes its time.
	if err := wait(ctx, b.delay()); err != nil {
		return err
	}
	if state != "CHARGED" {
		return ErrVoid
	}
	return nil
}

// Refund gives the money back, or refuses the charge should it come later. Again is as good as once.
func (b *Bank) Refund(ctx context.Context, key uuid.UUID) error {
	_, err := b.db.Exec(ctx, `
		INSERT INTO bank.charges AS c (key, cents, state) VALUES ($1, 0, 'VOID')
		ON CONFLICT (key) DO UPDATE SET state = CASE c.state WHEN 'CHARGED' THEN 'REFUNDED' ELSE c.state END`, key)
	return err
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
