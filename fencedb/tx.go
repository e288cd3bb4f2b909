package fencedb

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Tx runs fn in a transaction that holds the fence of grant, and commits it if fn returns nil.
// While it is open no other holder of the resource can commit; if another holder has come since
// grant was given, nothing of fn is written.
//
// The transaction opens with fn's first statement, in the same round trip: BEGIN, enter and the
// statement travel together. So what fn reads, it reads behind the fence. pgx reports the three to
// its tracers as a batch: a tracer that is not a pgx.BatchTracer misses them. Some things pgx sends
// in another way: CopyFrom, Prepare, LargeObjects and Conn, a statement with a semicolon within or
// with an option such as QueryExecMode, and what a pgx.QueryRewriter makes. Then the opening goes
// first, in the round trip of pgx's own BEGIN. In the simple protocol BEGIN goes before, alone, for
// balancers that look at the first statement of a string. A function that sends nothing checks the
// fence all the same. The server ends the transaction when grant's validity is over; see Hold. If
// no answer comes by then, the connection counts as lost and is closed; Tx returns within five
// seconds of that time, or as soon as fn has returned. A transaction under a grant without an end
// is bounded only by ctx and the contexts of fn's statements.
//
// The error says what is true of the data:
//
//   - nil: committed.
//   - ErrStale, ErrNoToken, ErrWrongResource, ErrLeaseOver, ErrTooLong, ErrBusy, ErrInvalidGrant:
//     nothing was written.
//   - an error of fn, or of a statement: rolled back, nothing was written.
//   - ErrTxEnded: a statement of fn has ended the transaction. COMMIT and its like are refused
//     before they are sent, but one can hide in a string of several statements, in a prepared
//     statement, or go through Conn. After such statements Tx asks the server before COMMIT, in one
//     more round trip. TxEndedError says what was written.
//   - ErrCommitUnknown: it may have committed (see "Outcomes" above). Only this error leaves a
//     doubt.
//
// Do not call Tx for the same resource within fn: it would wait for itself, until the lease is
// over. A panic in fn rolls back and goes on. tx is for one goroutine at a time: a second one gets
// an error. It must not be used after fn has returned, and only Tx may call its Commit and
// Rollback. Where db is a connection, it must not be used beside tx. Begin of tx makes savepoints.
// They are released or rolled back even if the context of that call is over; if that fails, nothing
// commits. If the context of a statement was over before the statement was sent, only that
// statement fails, even if it is the first. Cancelling ctx before COMMIT has been sent rolls back;
// after that Tx still looks up, for at most five seconds, whether it took effect.
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
	tx.mu.Lock() // a goroutine that fn has left behind may still wait for an answer
	defer tx.mu.Unlock()
	if err != nil {
		if tx.inner != nil {
			_ = tx.stillOpen() // kept in tx.err
		}
		if tx.err != nil && !errors.Is(err, tx.err) { // fn may have lost it on the way
			err = fmt.Errorf("%w (then: %w)", tx.err, err)
		}
		return tx.trace.is(tx.abort(err))
	}
	return tx.trace.is(tx.commit())
}

// swallowed says which statement has failed although the function returned nil.
func (tx *fencedTx) swallowed(err error) error {
	if tx.failure == nil { // sent past us
		return fmt.Errorf("fencedb: rolled back: a statement failed, and the function returned nil: %w", err)
	}
	const most = 200 // characters
	sql := []rune(tx.failed)
	if len(sql) > most {
		sql = append(sql[:most], '…')
	}
	return fmt.Errorf("fencedb: rolled back: a statement failed, and the function returned nil: %q: %w: %w", string(sql), tx.failure, err)
}

// end rolls back what is still open and gives the connection back. There is nothing to do after the
// first time.
func (tx *fencedTx) end() {
	if tx.inner == nil {
		tx.err = pgx.ErrTxClosed // it must not begin later, when nobody would end it
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

// abort rolls back and returns what err means.
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
	if since.Err() != nil { // rolling back does not make its end any later
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

// commit commits, if there is nothing in the way.
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

// sendCommit finds out what became of COMMIT when the answer is lost.
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
	return tx.entry.settle(tx.ctx, tx.entry.server, err, true, true)
}
