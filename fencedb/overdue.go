package fencedb

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// The server ends a transaction when its time is over and says so. If nothing comes, the connection is lost and nobody
// has noticed: a network can drop it in silence. overdueTime is how long after the end an answer is waited for.
const overdueTime = askTime / 2

// acquire takes a connection while the lease is valid: one that comes later is of no use.
func (e *entry) acquire(ctx context.Context, db DB) (DB, func(), error) {
	bounded, cancel := ctx, context.CancelFunc(func() {})
	if until := validUntil(e.grants); !until.IsZero() {
		bounded, cancel = context.WithDeadline(ctx, until)
	}
	defer cancel()
	conn, release, err := acquire(bounded, db)
	switch {
	case err == nil:
		return conn, sync.OnceFunc(func() { e.unwatch(conn); release() }), nil
	case bounded.Err() != nil && ctx.Err() == nil:
		return nil, nil, &rejection{ErrLeaseOver, fmt.Errorf("no connection was to be had while it was valid: %w", err)}
	}
	return nil, nil, err
}

// watch closes conn when an answer is overdue, and with it whatever is waited for on it. A deadline of the net.Conn
// would not do: pgx sets and resets that itself, for the contexts of statements.
func (e *entry) watch(conn DB) {
	pg := pgxConn(conn)
	if e.until.IsZero() || pg == nil {
		return
	}
	e.unwatch(conn)
	wire := pg.PgConn().Conn()
	e.overdue = time.AfterFunc(time.Until(e.until)+overdueTime, func() { _ = wire.Close() })
}

// unwatch leaves conn to its next user, or closed.
func (e *entry) unwatch(conn DB) {
	if e.overdue != nil && !e.overdue.Stop() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = pgxConn(conn).Close(ctx)
	}
	e.overdue = nil
}

// abandon closes a lost connection at once. pgx goes on to read from it for up to 15 seconds, and until then the pool
// keeps its place from a new one, which we need for asking.
func abandon(conn *pgx.Conn) {
	if conn != nil && conn.IsClosed() {
		_ = conn.PgConn().Conn().Close()
	}
}

// untilOverdue bounds a statement on a connection of the caller's own, as watch bounds one of ours.
func (e *entry) untilOverdue(ctx context.Context) (context.Context, context.CancelFunc) {
	if e.until.IsZero() {
		return ctx, func() {}
	}
	return context.WithDeadlineCause(ctx, e.until.Add(overdueTime), errOverdue)
}

var errOverdue = errors.New("fencedb: the server gave no answer although the lease is over")
