package fencedb

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Entry is a transaction of the application that has entered. Outcome finds out whether it
// committed, as [Tx] does for its own transactions.
type Entry struct {
	// XID and Epoch are the arguments of SELECT fencedb.outcome(xid, epoch), as in
	// [CommitUnknownError]. If they are stored before COMMIT, another process can ask when this one
	// is gone.
	XID   uint64
	Epoch int64

	entry *entry
}

// Enter enters the fence of grant in a transaction that the application has begun, and holds it
// until that transaction ends. It must come first: what the transaction read before may be old. If
// Enter follows a savepoint, ROLLBACK TO releases the fence, and writes to protected tables are
// then refused until the transaction enters again.
//
// Above READ COMMITTED the grant must have been sealed before the transaction began, or Enter fails
// with [ErrUnsealed].
//
// After an error, roll back: the transaction is aborted, or, if the grant was refused before
// anything was sent, open without a fence. Cancelling ctx closes the connection, as in every pgx
// call. If COMMIT fails, ask [Entry.Outcome] what became of it:
//
//	entry, err := fencedb.Enter(ctx, tx, lease)
//	...
//	if err := tx.Commit(ctx); err != nil {
//		return entry.Outcome(ctx, pool, err)
//	}
//
// [Tx] does all of this by itself. Enter returns within five seconds after the end of grant's
// validity, if it has one; later statements are bounded by the caller's contexts.
func Enter(ctx context.Context, tx pgx.Tx, grant Grant, opts ...Option) (*Entry, error) {
	e, err := newEntry(nil, grant, opts)
	if err != nil {
		return nil, err
	}
	return e.join(ctx, tx, func(ctx context.Context) error { return e.enter(ctx, tx) })
}

func (e *entry) join(ctx context.Context, tx any, enter func(context.Context) error) (*Entry, error) {
	if isNil(tx) {
		return nil, errNoTx
	}
	t := e.trace(ctx, OpEnter)
	defer t.end()
	if err := t.is(enter(t.ctx)); err != nil {
		return nil, err
	}
	return &Entry{XID: e.xid, Epoch: e.epoch, entry: e}, nil
}

var (
	errNoTx = errors.New("fencedb: the transaction is nil; did it begin?")
	errNoDB = errors.New("fencedb: the database is nil; was it opened?")
	errNoFn = errors.New("fencedb: nothing was written: the function is nil")
)

func (e *entry) enter(ctx context.Context, tx pgx.Tx) error {
	sql, args, err := e.query(ctx)
	if err != nil {
		return err
	}
	bounded, cancel := e.untilOverdue(ctx)
	defer cancel()
	var answer string
	err = tx.QueryRow(bounded, sql, args...).Scan(&answer)
	if err := e.admission([]byte(answer), err); err != nil {
		conn := tx.Conn() // nil in a Tx that could not begin
		return e.explain(ctx, nil, conn != nil && conn.IsClosed(), err)
	}
	return nil
}

// Outcome returns whether the transaction has committed. err is the error, or nil, of its COMMIT or
// of the library that commits it. The answers mean the same as those of [Tx]:
//
//   - nil: it has committed, also if err is not nil because the answer was lost.
//   - [ErrCommitUnknown]: the server could not be asked in time, or has crashed or failed over
//     since, or a standby that COMMIT waits for has not answered.
//   - every other error is err, explained as by [Explain]: nothing was written.
//
// A nil [Entry], which [Enter] returns with an error, returns err as it is. So one call is enough
// after a library that begins and commits by itself (pgx.BeginFunc, GORM, bun).
//
// It asks the server of db in one round trip, even if err is nil: some drivers return nil from the
// COMMIT of a failed transaction, and all do if a statement of your own has rolled it back. If you
// trust your driver and your statements, call it only when there is an error. Outcome is not about
// work after a statement that ended the transaction, such as COMMIT AND CHAIN.
//
// The transaction must be over, and its connection given back. If it is still open, or the server
// does not answer, Outcome waits until five seconds after the end of the lease or of ctx, whichever
// is first.
func (e *Entry) Outcome(ctx context.Context, db DB, err error) error {
	return e.outcome(ctx, askOn(new(config).with(db, nil)), err)
}

func (e *Entry) outcome(ctx context.Context, server asker, err error) error {
	switch {
	case e == nil:
		return err
	case e.entry == nil:
		return fmt.Errorf("%w: Enter and EnterSQL return the Entry to ask; this one was made by hand", ErrCommitUnknown)
	}
	if err == nil {
		err = errors.New("fencedb: COMMIT has returned no error")
	}
	t := e.entry.trace(ctx, OpOutcome)
	defer t.end()
	return t.is(e.entry.findOutcome(t.ctx, server, err, brokenConn(err), true))
}
