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
// The first time on a connection pgx needs one more round trip, to prepare the statement, and a refusal needs one to roll back.
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

// Query is Exec for a statement that returns rows. Close the rows, or read them to the end, and ask their Err: only then is
// known what became of the statement. It is one of the errors of Tx; an error of scanning a row does not undo the statement.
func Query(ctx context.Context, db DB, grant Grant, sql string, args ...any) (pgx.Rows, error) {
	b := &pgx.Batch{}
	b.Queue(sql, args...)
	s, err := send(ctx, db, grant, b, nil)
	if err != nil {
		return failed(err).Query()
	}
	if err := s.enter(); err != nil {
		return failed(s.end()).Query()
	}
	rows, _ := s.results.Query()
	return &firstRows{Rows: rows, close: s.end}, nil
}

// SendBatch runs the statements of b behind the fence of grant, in one transaction and one round trip. Read their results with
// the callbacks of pgx.QueuedQuery. All statements commit, or none; the errors are those of Tx. The statements must not end
// the transaction themselves.
//
// Callbacks run after the statements, so an error of one cannot undo them: if they have committed, it comes back
// together with ErrCommitted, and the callbacks after it are not called.
func SendBatch(ctx context.Context, db DB, grant Grant, b *pgx.Batch, opts ...Option) error {
	if begins(b) {
		return errors.New("fencedb: SendBatch begins the transaction; set its options with TxOptions")
	}
	var callbackErr error
	own := &pgx.Batch{}
	for _, query := range b.QueuedQueries {
		own.QueuedQueries = append(own.QueuedQueries, apart(query, &callbackErr))
	}
	s, err := send(ctx, db, grant, own, opts)
	if err != nil {
		return err
	}
	if err := s.end(); err != nil {
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
