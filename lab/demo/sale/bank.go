package sale

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
)

// errVoid: the charge was refused, because it had been given back before. No money has moved.
var errVoid = errors.New("sale: the charge was given back")

const bankSchema = `
	CREATE SCHEMA bank;
	COMMENT ON SCHEMA bank IS 'The books of the pretend bank.';
	CREATE TABLE bank.charges (
		key   uuid   PRIMARY KEY,
		cents bigint NOT NULL,
		state text   NOT NULL CHECK (state IN ('CHARGED', 'REFUNDED', 'VOID'))
	)`

// pretendBank stands for a payment provider: slow, not ours, and not fenced.
//
// It has the two properties that a provider must have for this to come out right: a key that makes
// asking twice the same as asking once, and a refund that also stops a charge which has not arrived
// yet. Not every API for plain charges has the second. Its books are in the same Postgres, so that
// several processes can share them; the shop never looks at them. It is safe for concurrent use.
type pretendBank struct {
	db    *pgxpool.Pool
	delay func() time.Duration
}

// Charge takes the money, once for each key, however often it is called. When ctx ends, that may
// have happened or not.
func (b *pretendBank) Charge(ctx context.Context, key uuid.UUID, cents int64) error {
	var state string
	err := b.db.QueryRow(ctx, `
		INSERT INTO bank.charges AS c (key, cents, state) VALUES ($1, $2, 'CHARGED')
		ON CONFLICT (key) DO UPDATE SET state = c.state
		RETURNING state`, key, cents).Scan(&state)
	if err != nil {
		return err
	}
	// The money has moved by now; the answer takes its time.
	select {
	case <-time.After(b.delay()):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if state != "CHARGED" {
		return errVoid
	}
	return nil
}

// Refund gives the money back, or refuses the charge should it come later. Again is as good as
// once.
func (b *pretendBank) Refund(ctx context.Context, key uuid.UUID) error {
	_, err := b.db.Exec(ctx, `
		INSERT INTO bank.charges AS c (key, cents, state) VALUES ($1, 0, 'VOID')
		ON CONFLICT (key) DO UPDATE SET state = CASE c.state WHEN 'CHARGED' THEN 'REFUNDED' ELSE c.state END`, key)
	return err
}
