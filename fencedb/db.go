package fencedb

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// DB is where transactions begin: *pgxpool.Pool, *pgxpool.Conn or *pgx.Conn. A pgx.Tx is not a DB,
// and a connection that is in a transaction is refused: call [Enter] there. A wrapper that hides
// the connection is refused, too.
type DB interface {
	BeginTx(ctx context.Context, txOptions pgx.TxOptions) (pgx.Tx, error)
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

var (
	_ DB = (*pgxpool.Pool)(nil)
	_ DB = (*pgxpool.Conn)(nil)
	_ DB = (*pgx.Conn)(nil)
)

type pool interface {
	Acquire(ctx context.Context) (*pgxpool.Conn, error)
}

// acquire takes a connection from a pool; any other DB it returns as it is.
func acquire(ctx context.Context, db DB) (DB, func(), error) {
	if isNil(db) {
		return nil, nil, errNoDB
	}
	from, ok := db.(pool)
	if !ok {
		return db, func() {}, nil
	}
	conn, err := from.Acquire(ctx)
	if err != nil {
		if counted, ok := from.(interface{ Stat() *pgxpool.Stat }); ok {
			s := counted.Stat()
			err = ofPool(int(s.AcquiredConns()), int(s.MaxConns()), err)
		}
		return nil, nil, err
	}
	return conn, conn.Release, nil
}

// ofPool returns err, the error of a wait for a connection. If all connections are in use, the
// result says so.
func ofPool(inUse, most int, err error) error {
	if most == 0 || inUse < most { // 0: no maximum, in database/sql
		return err
	}
	return usedUpError{inUse, most, err}
}

// usedUpError says that the pool had no free connection, which its cause, the end of a context,
// does not show.
type usedUpError struct {
	inUse, most int
	cause       error
}

func (e usedUpError) Error() string {
	return fmt.Sprintf("fencedb: %d of %d connections of the pool are in use; acquire leases before you open a transaction, or make the pool larger", e.inUse, e.most)
}

func (e usedUpError) Unwrap() error { return e.cause }

func pgxConn(db DB) *pgx.Conn {
	switch db := db.(type) {
	case *pgx.Conn:
		return db
	case interface{ Conn() *pgx.Conn }:
		return db.Conn()
	}
	return nil
}

// abandon closes the net.Conn of a lost connection at once. Otherwise pgx reads from it for up to
// 15 seconds, and meanwhile the pool does not replace it; a new connection is needed to ask for the
// outcome.
func abandon(conn *pgx.Conn) {
	if conn != nil && conn.IsClosed() {
		_ = conn.PgConn().Conn().Close()
	}
}

// detached returns a context for a rollback, or a question after it, which must be tried even if
// ctx is done. It has a limit of its own, because ctx gives none: two in a row take askTime.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), askTime/2)
}

// asker sends a query to a server and scans the only row of the answer. noticed: a notice came with
// it; drivers other than pgx show none.
type asker func(ctx context.Context, dest any, query string, args ...any) (noticed bool, err error)

// errOnlyConnLost: DB is a single connection, and it is lost.
var errOnlyConnLost = errors.New("fencedb: the only connection is lost")

// half bounds the question on the first of two connections, so that time is left for the second.
func half(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, _ := ctx.Deadline() // set by asking or detached
	return context.WithTimeout(ctx, time.Until(deadline)/2)
}

// askOn returns an asker on a connection of db.
func askOn(db DB) asker {
	return func(ctx context.Context, dest any, query string, args ...any) (bool, error) {
		conn, release, err := acquire(ctx, db)
		if err != nil {
			return false, err
		}
		defer release()
		pg := pgxConn(conn)
		defer func() { abandon(pg) }()
		b := &pgx.Batch{}
		b.Queue(query, args...).QueryRow(func(row pgx.Row) error { return row.Scan(dest) })
		notice := listen(pg)
		err = conn.SendBatch(ctx, b).Close()
		notice.stop(pg)
		if own := pgxConn(db); own != nil && own.IsClosed() {
			err = noted(errOnlyConnLost, err)
		}
		return bool(*notice), err
	}
}

// noted joins two errors on one line; cause may be nil.
func noted(err, cause error) error {
	if cause == nil {
		return err
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// Clock returns a function that asks Postgres for its time, by which it dates rows. Compare it with
// the time of Redis, from which tokens come. Only the function's context bounds it.
func Clock(db DB) func(context.Context) (time.Time, error) {
	return func(ctx context.Context) (now time.Time, err error) {
		_, err = askOn(db)(ctx, &now, `SELECT clock_timestamp()`)
		return now, err
	}
}
