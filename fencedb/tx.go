package fencedb

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Tx runs fn in a transaction that holds the fence of grant, and commits it if fn returns nil.
// While it is open, no other holder of the resource can commit. If a newer holder has entered
// already, nothing of fn is written.
//
// BEGIN, enter and fn's first statement travel in one round trip, so fn reads everything behind the
// fence. pgx traces the three as a batch: a tracer that is not a pgx.BatchTracer misses them. Some
// things cannot travel in a batch: CopyFrom, Prepare, LargeObjects and Conn; a statement with a
// semicolon inside, with an option such as QueryExecMode, or with a pgx.QueryRewriter. Then BEGIN
// and enter go first, in a round trip of their own. In the simple protocol BEGIN goes first, alone,
// for balancers that look at the first statement of a string. If fn sends nothing, the fence is
// still checked.
//
// When grant's validity is over, the server ends the transaction; see [Timeout]. If no answer comes
// within 2.5 s, the connection counts as lost and is closed. Tx returns within five seconds of that
// time or, if that is later, of the return of fn. Under a grant without an end, only ctx and the
// contexts of fn's statements bound the transaction.
//
// The error says what is true of the data:
//
//   - nil: committed.
//   - [ErrStale], [ErrNoToken], [ErrWrongResource], [ErrLeaseOver], [ErrTooLong], [ErrBusy],
//     [ErrInvalidGrant]: nothing was written.
//   - an error of fn, or of a statement: rolled back, nothing was written.
//   - [ErrTxEnded]: a statement of fn has ended the transaction; [TxEndedError] has what was
//     written. COMMIT and its like are refused before they are sent, but one can hide in a string
//     of several statements or in a prepared statement, or go through Conn. After such statements
//     Tx asks the server before COMMIT, in one more round trip.
//   - [ErrCommitUnknown]: it may have committed (see "Outcomes" above). Only this error leaves
//     doubt.
//
// Do not call Tx for the same resource within fn: it may wait for itself, until the lease is over.
// A panic in fn rolls back and goes on. tx is for one goroutine at a time: a second one gets an
// error. Do not use tx after fn has returned, and do not call its Commit or Rollback. If db is a
// connection, do not use it beside tx.
//
// tx.Begin makes savepoints. They are released or rolled back even if the context of that call is
// over; if that fails, nothing commits. If the context of a statement was over before the statement
// was sent, only that statement fails, even if it is the first. If ctx is cancelled before COMMIT
// has been sent, Tx rolls back; after that, it still looks up for at most five seconds whether
// COMMIT took effect.
func Tx(ctx context.Context, db DB, grant Grant, fn func(tx pgx.Tx) error, opts ...Option) error {
	if fn == nil {
		return errNoFn
	}
	tx, err := newTx(ctx, db, grant, opts)
	if err != nil {
		return err
	}
	defer tx.trace.end() // after a panic in fn; otherwise both have ended by then
	defer func() {
		tx.mu.Lock()
		defer tx.mu.Unlock()
		tx.end()
	}()
	return tx.finish(fn(tx))
}

// finish commits, or rolls back because of err.
func (tx *fencedTx) finish(err error) error {
	defer tx.trace.end()
	tx.mu.Lock() // a goroutine that fn has started may still wait for an answer
	defer tx.mu.Unlock()
	if err != nil {
		if tx.inner != nil {
			_ = tx.stillOpen() // kept in tx.err
		}
		if tx.err != nil && !errors.Is(err, tx.err) { // fn may have returned another error
			err = fmt.Errorf("%w (then: %w)", tx.err, err)
		}
		return tx.trace.is(tx.abort(err))
	}
	return tx.trace.is(tx.commit())
}

// swallowed returns the error for a COMMIT that rolled back: it names the statement that failed
// although fn returned nil.
func (tx *fencedTx) swallowed(err error) error {
	if tx.failure == nil { // sent through Conn
		return fmt.Errorf("fencedb: rolled back: a statement failed, and the function returned nil: %w", err)
	}
	const most = 200 // characters
	sql := []rune(tx.failed)
	if len(sql) > most {
		sql = append(sql[:most], '…')
	}
	return fmt.Errorf("fencedb: rolled back: a statement failed, and the function returned nil: %q: %w: %w", string(sql), tx.failure, err)
}

// end rolls back if the transaction is still open, and gives the connection back. Calling it again
// does nothing.
func (tx *fencedTx) end() {
	if tx.inner == nil {
		tx.err = pgx.ErrTxClosed // it must not begin any more: nobody would end it
		return
	}
	if tx.inner.Conn().PgConn().TxStatus() != 'I' {
		ctx, cancel := detached(tx.ctx)
		defer cancel()
		_ = tx.inner.Rollback(ctx) // if it fails, pgx has closed the connection, and the server rolls back
	}
	tx.entry.release()
	tx.inner, tx.err = nil, pgx.ErrTxClosed
	tx.conn.Store(nil)
}

// abort rolls back and returns err, explained.
func (tx *fencedTx) abort(err error) error {
	if tx.inner == nil {
		return tx.entry.explain(tx.ctx, nil, false, err)
	}
	defer tx.end()
	conn := tx.inner.Conn()
	lost := conn.IsClosed()
	began := time.Now()
	ctx, cancel := detached(tx.ctx)
	defer cancel()
	_ = tx.inner.Rollback(ctx)
	since := tx.ctx
	if since.Err() != nil { // the time for asking counts from before the rollback
		since, cancel = context.WithDeadline(since, began)
		defer cancel()
	}
	if tx.mayHaveEnded && tx.entry.xid != 0 {
		if ended := tx.entry.ended(since, tx.entry.server, !conn.IsClosed(), err); ended != nil {
			return ended
		}
	}
	return tx.entry.explain(tx.ctx, tx.entry.server, lost, err)
}

// commit opens the transaction if fn has sent nothing, and commits it unless fn left it unfit to
// commit.
func (tx *fencedTx) commit() error {
	if err := tx.open(tx.ctx, true); err != nil {
		return tx.abort(err)
	}
	if tx.ctx.Err() != nil {
		return tx.abort(context.Cause(tx.ctx))
	}
	if tx.inner.Conn().PgConn().IsBusy() {
		return tx.abort(errors.New("fencedb: rolled back: the function left rows or batch results open; close them before it returns"))
	}
	t := tx.entry.trace(tx.ctx, OpCommit)
	defer t.end()
	return t.is(tx.sendCommit(t.ctx))
}

// sendCommit sends COMMIT, and finds out the outcome if the answer is lost.
func (tx *fencedTx) sendCommit(ctx context.Context) error {
	if tx.mayHaveEnded && tx.inner.Conn().PgConn().TxStatus() == 'T' {
		if _, err := tx.inner.Exec(ctx, tx.entry.stillEntered()); err != nil {
			return tx.abort(err)
		}
	}
	conn := tx.inner.Conn()
	notice := listen(conn)
	err := tx.inner.Commit(ctx)
	notice.stop(conn)
	switch {
	case err == nil && bool(*notice):
		err = errNoticed
	case err == nil:
		tx.end()
		return nil
	case errors.Is(err, pgx.ErrTxCommitRollback):
		return tx.abort(tx.swallowed(err))
	case refused(err):
		return tx.abort(err)
	}
	tx.end()
	return tx.entry.findOutcome(tx.ctx, tx.entry.server, err, true, true)
}
