package fencedb

import (
	"cmp"
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencedb/fencedb/internal/rows"
)

// Repository hands out T, the reads and writes of an application, such as the Queries of sqlc, in
// two ways: Write takes a grant, Read cannot write. So if nothing else writes to the database,
// every write carries a fencing token, even to tables that are not protected. A Repository is safe
// for concurrent use.
type Repository[T any] struct {
	db DB
	of func(tx pgx.Tx) T
}

// NewRepository returns a repository on db, which stays the caller's to close. Options of every
// transaction come with db, see [With]. For each transaction, of makes its T:
//
//	repo := fencedb.NewRepository(pool, func(tx pgx.Tx) *Bookings { return &Bookings{tx} })
//	repo := fencedb.NewRepository(pool, func(tx pgx.Tx) *sqlc.Queries { return sqlc.New(tx) })
func NewRepository[T any](db DB, of func(tx pgx.Tx) T) *Repository[T] {
	return &Repository[T]{db, of}
}

// Write runs fn in a transaction that holds the fence of grant, and commits it if fn returns nil.
// Its errors, its time limit and the effect of cancelling ctx are those of [Tx]. It is safe to
// decide on what fn reads. Do not use the T after fn has returned.
//
// It takes two round trips at least. Exec and [SendBatch] take one, for statements between which
// the program decides nothing.
func (r *Repository[T]) Write(ctx context.Context, grant Grant, fn func(T) error, opts ...Option) error {
	if fn == nil {
		return errNoFn
	}
	return Tx(ctx, r.db, grant, func(tx pgx.Tx) error { return fn(r.of(tx)) }, opts...)
}

// Read runs fn in a READ ONLY transaction without a fence. The rows that fn reads may have changed
// by the time they arrive. All of them are from one snapshot (REPEATABLE READ), unless [TxOptions]
// of the database set another isolation level.
//
// A statement that writes is refused with [ErrNoToken], and nothing is written; so is SET
// TRANSACTION READ WRITE, with an error of Postgres, and a COMMIT that Read sees, as in Tx. If a
// statement ended the transaction unseen, Read returns an error, but what followed in the same
// string was written. Other errors are those of fn and of its statements, as [Explain] returns
// them. Cancelling ctx closes the connection, as in every pgx call. Do not use the T after fn has
// returned.
func (r *Repository[T]) Read(ctx context.Context, fn func(T) error) error {
	if fn == nil {
		return errNoFn
	}
	var c config
	conn, release, err := acquire(ctx, c.with(r.db, nil))
	if err != nil {
		return err
	}
	defer release()
	if err := free(conn); err != nil {
		return err
	}
	// After a query no statement makes the transaction READ WRITE. Both travel in one string.
	level := cmp.Or(c.txOptions.IsoLevel, pgx.RepeatableRead)
	readOnly := pgx.TxOptions{BeginQuery: fmt.Sprintf("begin isolation level %s read only; select 1", level)}
	err = pgx.BeginTxFunc(ctx, conn, readOnly, func(tx pgx.Tx) error {
		reads := readTx{tx}
		if err := fn(r.of(reads)); err != nil {
			return err
		}
		return reads.stillOpen()
	})
	if answered(err).code == codeReadOnly {
		return &rejection{ErrNoToken, fmt.Errorf("Read of a Repository does not write; call Write with a grant: %w", err)}
	}
	return Explain(err)
}

// readTx refuses statements that would end the READ ONLY transaction: what follows would write.
type readTx struct{ pgx.Tx }

func (tx readTx) stillOpen() error {
	if conn := tx.Tx.Conn(); !conn.IsClosed() && conn.PgConn().TxStatus() == 'I' {
		return fmt.Errorf("%w: a statement has ended that of Read", errEnded)
	}
	return nil
}

func (tx readTx) check(sql string, args []any) error {
	return cmp.Or(checkStatement(sql, args), tx.stillOpen())
}

func (tx readTx) Begin(ctx context.Context) (pgx.Tx, error) {
	nested, err := tx.Tx.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return readTx{nested}, nil
}

func (tx readTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := tx.check(sql, args); err != nil {
		return pgconn.CommandTag{}, err
	}
	return tx.Tx.Exec(ctx, sql, args...)
}

func (tx readTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := tx.check(sql, args); err != nil {
		return rows.Failed(err)
	}
	return tx.Tx.Query(ctx, sql, args...)
}

func (tx readTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := tx.check(sql, args); err != nil {
		failed, _ := rows.Failed(err)
		return onlyRow{failed}
	}
	return tx.Tx.QueryRow(ctx, sql, args...)
}

func (tx readTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	for _, q := range b.QueuedQueries {
		if err := tx.check(q.SQL, q.Arguments); err != nil {
			return pgx.FailedBatchResults(b, err)
		}
	}
	return tx.Tx.SendBatch(ctx, b)
}
