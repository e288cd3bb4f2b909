package fencedb

import (
	"cmp"
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
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
// TRANSACTION READ WRITE, with an error of Postgres. Other errors are those of fn and of its
// statements, as [Explain] returns them. Cancelling ctx closes the connection, as in every pgx
// call. Do not use the T after fn has returned.
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
	err = pgx.BeginTxFunc(ctx, conn, readOnly, func(tx pgx.Tx) error { return fn(r.of(tx)) })
	if answered(err).code == codeReadOnly {
		return &rejection{ErrNoToken, fmt.Errorf("Read of a Repository does not write; call Write with a grant: %w", err)}
	}
	return Explain(err)
}
