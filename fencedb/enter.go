package fencedb

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Enter takes the fence of grant in a transaction that the application has begun itself, and holds
// it until that transaction ends. It must come first: what the transaction read before it may
// already be old. It must not come after a savepoint, and the server refuses that: rolling back to
// the savepoint would give the fence back.
//
// Above READ COMMITTED the grant must have been sealed before the transaction began, or Enter fails
// with ErrUnsealed.
//
// On error the transaction is aborted: roll it back. Cancelling ctx closes the connection, as in
// every pgx call. Whether the transaction then commits is for the caller to find out; prefer Tx,
// which does it for you. Enter itself returns within five seconds after grant's validity, if that
// has an end; what follows is bounded by the caller's contexts.
func Enter(ctx context.Context, tx pgx.Tx, grant Grant, opts ...Option) error {
	e, err := newEntry(nil, grant, opts)
	if err != nil {
		return err
	}
	t := e.trace(ctx, OpEnter)
	defer t.end()
	return t.is(e.enter(t.ctx, tx))
}

func (e *entry) enter(ctx context.Context, tx pgx.Tx) error {
	sql, args, err := e.query(ctx)
	if err != nil {
		return err
	}
	bounded, cancel := e.untilOverdue(ctx)
	defer cancel()
	if err := e.entered(tx.QueryRow(bounded, sql, args...)); err != nil {
		return e.explain(ctx, nil, tx.Conn().IsClosed(), err)
	}
	return nil
}
