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
// The first time on a connection pgx needs one more round trip, to prepare the statement.
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

// SendBatch runs the statements of b behind the fence of grant, in one transaction and one round trip. Read their results with
// the callbacks of pgx.QueuedQuery. All statements commit, or none; the errors are those of Tx.
//
// Callbacks run after the statements, so an error of one cannot undo them: if they have committed, it comes back
// together with ErrCommitted, and the callbacks after it are not called.
func SendBatch(ctx context.Context, db DB, grant Grant, b *pgx.Batch, opts ...Option) error {
	e, err := newEntry(grant, opts)
	if err != nil {
		return err
	}
	if begins(b) || e.txOptions != (pgx.TxOptions{}) {
		return errors.New("fencedb: SendBatch has its own transaction; for other transaction options use Tx")
	}
	sql, args, err := e.query()
	if err != nil {
		return err
	}
	conn, release, err := acquire(ctx, db)
	if err != nil {
		return err
	}
	defer release()

	var callbackErr error
	own := &pgx.Batch{}
	own.Queue(sql, args...).QueryRow(func(row pgx.Row) error { return row.Scan(&e.xid) })
	for _, query := range b.QueuedQueries {
		own.QueuedQueries = append(own.QueuedQueries, apart(query, &callbackErr))
	}
	if err := conn.SendBatch(ctx, own).Close(); err != nil {
		return e.failed(ctx, db, conn, err)
	}
	if callbackErr != nil {
		return fmt.Errorf("%w: %w", ErrCommitted, callbackErr)
	}
	return nil
}

// Seal makes grant the oldest that can still write to its resource, in one round trip and without writing anything else:
// from now on every earlier token is stale. Done while the lease is being acquired, before its holder learns of it, it
// makes the order of tokens independent of Redis: see lease.Config.Seal. A stale grant is refused with ErrStale.
func Seal(ctx context.Context, db DB, grant Grant) error {
	return SendBatch(ctx, db, grant, &pgx.Batch{})
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

// failed returns what err means for a batch that has been sent on conn.
func (e *entry) failed(ctx context.Context, db, conn DB, err error) error {
	pg := pgxConn(conn)
	switch lost := pg == nil || pg.IsClosed(); {
	case refused(err):
		return e.explain(ctx, pg, false, err)
	case !lost: // nothing was sent, or the connection would not have stayed usable
		return e.explain(ctx, pg, false, err)
	case e.xid == 0:
		return &CommitUnknownError{cause: err}
	}
	return e.settle(ctx, db, err)
}

func pgxConn(db DB) *pgx.Conn {
	switch db := db.(type) {
	case *pgx.Conn:
		return db
	case interface{ Conn() *pgx.Conn }:
		return db.Conn()
	}
	return nil
}
