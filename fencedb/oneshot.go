package fencedb

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Exec runs one statement behind the fence of grant, in a transaction of its own and one round trip. Its errors are those
// of Tx; without one, the statement has committed.
//
// The first time on a connection pgx needs one more round trip, to prepare the statement, and a refusal needs one to
// roll back. So does a statement whose first word does not show that it leaves the transaction open, as the name of a
// prepared one: it is asked first whether it did. One that ends the transaction is refused with ErrTxEnded.
func Exec(ctx context.Context, db DB, grant Grant, sql string, args ...any) (pgconn.CommandTag, error) {
	var tag pgconn.CommandTag
	b := &pgx.Batch{}
	b.Queue(sql, args...).Exec(func(ct pgconn.CommandTag) error {
		tag = ct
		return nil
	})
	err := SendBatch(ctx, db, grant, b)
	return tag, err
}

// QueryRow is Exec for a statement that returns one row, such as INSERT ... RETURNING. It is sent when the row is scanned,
// and Scan returns the errors of Tx, or pgx.ErrNoRows. If the statement has committed but its row was missing or
// could not be scanned, ErrCommitted is in the error as well.
func QueryRow(ctx context.Context, db DB, grant Grant, sql string, args ...any) pgx.Row {
	return oneRow(func(dest ...any) error {
		b := &pgx.Batch{}
		b.Queue(sql, args...).QueryRow(func(row pgx.Row) error { return row.Scan(dest...) })
		return SendBatch(ctx, db, grant, b)
	})
}

type oneRow func(dest ...any) error

func (scan oneRow) Scan(dest ...any) error { return scan(dest...) }

// Query is Exec for a statement that returns rows. Close the rows, or read them to the end, and ask their Err: only
// then is known what became of the statement. It is one of the errors of Tx, and ErrCommitted if the statement has
// committed but its rows did not all come; an error of scanning a row does not undo the statement. Rows can be read for
// as long as grant is valid.
func Query(ctx context.Context, db DB, grant Grant, sql string, args ...any) (pgx.Rows, error) {
	if !keepsOpen(sql, args) {
		return queryTx(ctx, db, grant, sql, args)
	}
	b := &pgx.Batch{}
	b.Queue(sql, args...)
	s, err := send(ctx, db, grant, b, nil)
	if err != nil {
		return noRows(err)
	}
	var rows pgx.Rows
	if s.readErr = s.enter(); s.readErr == nil {
		rows, s.readErr = s.results.Query()
	}
	if s.readErr != nil {
		return noRows(s.end())
	}
	return &firstRows{Rows: rows, close: s.end}, nil
}

// queryTx is Query for a statement that may end the transaction: COMMIT is sent when the rows are closed, and that is
// known.
func queryTx(ctx context.Context, db DB, grant Grant, sql string, args []any) (pgx.Rows, error) {
	e, err := newEntry(grant, nil)
	if err != nil {
		return noRows(err)
	}
	db = e.tracedBy(db)
	t := e.trace(ctx, OpWrite)
	tx := &fencedTx{caller: ctx, ctx: t.ctx, db: db, entry: e}
	finish := func(err error) error {
		defer t.end()
		return t.is(tx.finish(err))
	}
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return noRows(finish(err))
	}
	return &firstRows{Rows: rows, close: func() error { return finish(rows.Err()) }}, nil
}

// SendBatch runs the statements of b behind the fence of grant, in one transaction and one round trip. Read their
// results with the callbacks of pgx.QueuedQuery. All statements commit, or none; the errors are those of Tx. The
// statements must not end the transaction themselves: that is refused with ErrTxEnded. Like Exec it needs a second
// round trip if that is not certain at sight.
//
// Callbacks run after the statements, so an error of one cannot undo them: if they have committed, it comes back
// together with ErrCommitted, and the callbacks after it are not called. A connection that is lost once everything has
// committed, but before every callback has got its result, is ErrCommitted as well.
func SendBatch(ctx context.Context, db DB, grant Grant, b *pgx.Batch, opts ...Option) error {
	if begins(b) {
		return errors.New("fencedb: SendBatch begins the transaction; set its options with TxOptions")
	}
	var callbackErr error
	own := &pgx.Batch{}
	for _, query := range b.QueuedQueries {
		own.QueuedQueries = append(own.QueuedQueries, apart(query, &callbackErr))
	}
	var err error
	if allKeepOpen(own.QueuedQueries) {
		var s *sent
		if s, err = send(ctx, db, grant, own, opts); err == nil {
			err = s.end()
		}
	} else {
		err = Tx(ctx, db, grant, func(tx pgx.Tx) error { return tx.SendBatch(ctx, own).Close() }, opts...)
	}
	if err != nil {
		return err
	}
	if callbackErr != nil {
		return fmt.Errorf("%w: %w", ErrCommitted, callbackErr)
	}
	return nil
}

// Seal makes grant the oldest that can still write to its resource, in one round trip and without writing anything else:
// from now on every earlier token is stale. Done while the lease is being acquired, before its holder learns of it, it
// makes the order of tokens independent of Redis: see lease.Config.Seal. A stale grant is refused with ErrStale. After an error that
// says neither yes nor no (a lost connection, ctx done) seal again: twice is as good as once.
func Seal(ctx context.Context, db DB, grant Grant) error {
	plain, _ := uncarry(flatten(grant)) // to carry is not to raise
	err := SendBatch(ctx, db, All(plain...), &pgx.Batch{}, TxOptions(pgx.TxOptions{IsoLevel: pgx.ReadCommitted}))
	if unknown := (*CommitUnknownError)(nil); errors.As(err, &unknown) {
		return fmt.Errorf("fencedb: sealed or not, and nothing else was written: %w", unknown.cause)
	}
	return err
}

// apart returns query with its callback's error kept apart from those of the server, which decide what was written.
func apart(query *pgx.QueuedQuery, callbackErr *error) *pgx.QueuedQuery {
	if query.Fn == nil {
		return query
	}
	own := &pgx.QueuedQuery{SQL: query.SQL, Arguments: query.Arguments}
	own.Fn = func(results pgx.BatchResults) error {
		if *callbackErr == nil {
			*callbackErr = query.Fn(results)
			return nil
		}
		_, err := results.Exec()
		return err
	}
	return own
}
