package fencedb

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// TxSQL is [Tx] for database/sql, with any driver: it runs fn in a transaction that holds the fence
// of grant, commits it if fn returns nil, and looks up the outcome of a COMMIT whose answer was
// lost. The error means the same as that of Tx.
//
//	err := fencedb.TxSQL(ctx, db, lease, func(tx *sql.Tx) error {
//		_, err := tx.ExecContext(ctx, `INSERT INTO bookings ...`)
//		return err
//	})
//
// It needs two round trips more than a plain transaction: one to enter, and one before COMMIT. The
// latter asks whether a statement of fn has ended the transaction, since database/sql does not show
// what is sent. Above READ COMMITTED it seals first, if needed, as Tx does. [TxOptions] may set the
// isolation level and the access mode; pgx.ReadWrite, for servers with
// default_transaction_read_only, costs a round trip.
//
// fn must close its rows, and not call Commit or Rollback. Its errors are explained, as by
// [Explain]. If ctx is cancelled before COMMIT, TxSQL rolls back; after that, it still looks up for
// at most five seconds whether COMMIT took effect.
//
// When grant's validity is over and the server has not answered for 2.5 s more, the statement is
// cancelled. With pgx (package stdlib) that closes the connection. lib/pq only sends a cancel
// request on a second connection, and goes on reading: if the network falls silent, it waits for as
// long as TCP does. So give it a Dialer whose connections have deadlines or TCP_USER_TIMEOUT.
func TxSQL(ctx context.Context, db *sql.DB, grant Grant, fn func(tx *sql.Tx) error, opts ...Option) error {
	e, err := newEntry(nil, grant, opts)
	if err != nil {
		return err
	}
	switch {
	case db == nil:
		return errNoDB
	case fn == nil:
		return errNoFn
	}
	options, err := sqlOptions(e.txOptions)
	if err != nil {
		return err
	}
	t := e.trace(ctx, OpWrite)
	defer t.end()
	return t.is(e.txSQL(t.ctx, db, options, fn))
}

func (e *entry) txSQL(ctx context.Context, db *sql.DB, options *sql.TxOptions, fn func(tx *sql.Tx) error) error {
	for tries := 1; ; tries++ {
		err := e.tryTxSQL(ctx, db, options, fn)
		if !errors.Is(err, ErrUnsealed) || e.xid != 0 || tries == sealTries { // fn runs once at most
			return err
		}
		sealing := &entry{config: config{txOptions: e.txOptions}, grants: e.grants}
		nothing := func(*sql.Tx) error { return nil }
		if err := sealing.tryTxSQL(ctx, db, &sql.TxOptions{Isolation: sql.LevelReadCommitted}, nothing); err != nil {
			return sealError(err)
		}
	}
}

func (e *entry) tryTxSQL( //nolint:gocognit // one story
	ctx context.Context, db *sql.DB, options *sql.TxOptions, fn func(tx *sql.Tx) error,
) error {
	var conn *sqlConn
	err := e.whileValid(ctx, func(ctx context.Context) (err error) {
		conn, err = connSQL(ctx, db)
		return err
	})
	if err != nil {
		return e.explainSQL(ctx, nil, err)
	}
	defer conn.giveBack()
	if _, err := e.remaining(); err != nil { // again: the wait for a connection may have taken long
		return err
	}
	bounded, cancel := e.untilOverdue(ctx)
	defer cancel()
	tx, err := conn.BeginTx(bounded, options)
	if err != nil {
		return e.explainSQL(ctx, nil, err)
	}
	defer tx.Rollback() //nolint:errcheck // does nothing after COMMIT; if it fails, the connection is closed

	if e.txOptions.AccessMode == pgx.ReadWrite { // database/sql has no option for it
		if _, err := tx.ExecContext(bounded, `SET TRANSACTION READ WRITE`); err != nil {
			return e.explainSQL(ctx, nil, err)
		}
	}
	if err := e.enterSQL(ctx, tx); err != nil {
		_ = tx.Rollback()
		conn.giveBack()
		return e.explainSQL(ctx, askSQL(db), err)
	}
	conn.closeWhenOverdue(e.until)
	err = fn(tx)
	own := err != nil
	if err == nil {
		_, err = tx.ExecContext(bounded, e.stillEntered())
	}
	if !own && answered(err).code == codeFailedTransaction {
		err = fmt.Errorf("fencedb: rolled back: a statement failed, and the function returned nil (database/sql does not show which): %w", err)
	}
	if err != nil {
		rollbackErr := tx.Rollback()
		alive := rollbackErr == nil || errors.Is(rollbackErr, sql.ErrTxDone) && bounded.Err() == nil // fn ended it
		switch {
		case !errors.Is(err, driver.ErrBadConn):
		case alive: // it was only busy
			err = fmt.Errorf("fencedb: the function left rows open; close them before the next statement and before it returns: %v", err)
		default: // some drivers break a busy connection
			err = fmt.Errorf("fencedb: the connection is lost, or the function left rows open; close them before the next statement and before it returns: %w", err)
		}
		overdue := bounded.Err() != nil && ctx.Err() == nil // database/sql ended it
		lost := !alive && (brokenConn(err) || overdue && (!own || errors.Is(err, sql.ErrTxDone)))
		return e.rolledBackSQL(ctx, db, conn, alive, lost, err)
	}
	noticed, err := conn.listening(tx.Commit)
	switch {
	case err == nil && noticed:
		err = errNoticed
	case err == nil && bounded.Err() != nil: // then lib/pq has sent a cancel request, perhaps for COMMIT
		err = fmt.Errorf("fencedb: COMMIT was under way when its time ended: %w", context.Cause(bounded))
	case err == nil:
		return nil
	case refused(err):
		return e.explainSQL(ctx, nil, err)
	}
	conn.giveBack() // first, or asking on another connection could wait for this one
	return e.findOutcome(ctx, askSQL(db), err, true, true)
}

// rolledBackSQL explains err, for which the transaction was rolled back. database/sql does not show
// what fn has sent. So the server is asked whether a statement of fn had ended the transaction: a
// rollback does not undo what such a statement committed. It is asked on conn if that is alive, as
// in entry.server. lost is as for explain. It is not the same as !alive, since the connection may
// have been lost after err.
func (e *entry) rolledBackSQL(ctx context.Context, db *sql.DB, conn *sqlConn, alive, lost bool, err error) error {
	server := func(ctx context.Context, dest any, query string, args ...any) (bool, error) {
		if alive {
			own, cancel := half(ctx)
			defer cancel()
			if noticed, err := conn.ask(own, dest, query, args...); err == nil {
				return noticed, nil
			}
		}
		conn.giveBack()
		return askSQL(db)(ctx, dest, query, args...)
	}
	if ended := e.ended(ctx, server, alive, err); ended != nil {
		return ended
	}
	return e.explain(ctx, nil, lost, err)
}

// askSQL returns an asker on connections of db.
func askSQL(db *sql.DB) asker {
	return func(ctx context.Context, dest any, query string, args ...any) (bool, error) {
		conn, err := connSQL(ctx, db)
		if err != nil {
			return false, err
		}
		defer conn.giveBack()
		return conn.ask(ctx, dest, query, args...)
	}
}

type sqlConn struct {
	*sql.Conn
	pgx     *pgx.Conn   // under it; nil with another driver than pgx
	overdue *time.Timer // set by closeWhenOverdue
	given   bool        // given back: pgx may be in use by others
}

func connSQL(ctx context.Context, db *sql.DB) (*sqlConn, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		s := db.Stats()
		return nil, ofPool(s.InUse, s.MaxOpenConnections, err)
	}
	c := &sqlConn{Conn: conn}
	_ = conn.Raw(func(driverConn any) error { // fails only where the connection is closed
		if d, ok := driverConn.(interface{ Conn() *pgx.Conn }); ok {
			c.pgx = d.Conn()
		}
		return nil
	})
	return c, nil
}

// ask is an asker.
func (c *sqlConn) ask(ctx context.Context, dest any, query string, args ...any) (bool, error) {
	return c.listening(func() error { return queryOne(ctx, c, query, args, dest) })
}

// listening calls send and reports whether a notice came meanwhile. With other drivers than pgx it
// reports none.
func (c *sqlConn) listening(send func() error) (noticed bool, err error) {
	notice := listen(nil)
	c.locked(func() error { notice = listen(c.pgx); return nil })
	err = send()
	c.locked(func() error { notice.stop(c.pgx); return nil })
	return bool(*notice), err
}

// locked calls f while no other goroutine of database/sql uses the connection, unless that is
// closed. It recovers from a panic: when the context of a transaction ends, database/sql closes the
// connection in a goroutine of its own, and a Raw at that very moment follows a nil pointer.
func (c *sqlConn) locked(f func() error) (open bool) {
	defer func() { _ = recover() }()
	_ = c.Raw(func(any) error { open = true; return f() })
	return open
}

// closeWhenOverdue does what entry.watch does, for the statements of fn, which have contexts of
// their own. database/sql waits for them before it rolls back.
func (c *sqlConn) closeWhenOverdue(until time.Time) {
	if until.IsZero() || c.pgx == nil {
		return
	}
	wire := c.pgx.PgConn().Conn()
	c.overdue = time.AfterFunc(time.Until(until)+overdueTime, func() { _ = wire.Close() })
}

// giveBack gives the connection back, and closes a lost one of pgx (see abandon). Calling it again
// does nothing. If the connection is closed already (see locked), nobody else will get it, so
// giveBack closes its net.Conn.
func (c *sqlConn) giveBack() {
	if c.given {
		return
	}
	c.given = true
	var bad error
	if c.overdue != nil && !c.overdue.Stop() {
		bad = driver.ErrBadConn // the next user must not get it
	}
	if open := c.locked(func() error { abandon(c.pgx); return bad }); !open && c.pgx != nil {
		_ = c.pgx.PgConn().Conn().Close()
	}
	_ = c.Close()
}

// sqlOptions converts the options that database/sql knows, and refuses others.
func sqlOptions(o pgx.TxOptions) (*sql.TxOptions, error) {
	level, known := map[pgx.TxIsoLevel]sql.IsolationLevel{
		"": sql.LevelDefault, pgx.ReadUncommitted: sql.LevelReadUncommitted, pgx.ReadCommitted: sql.LevelReadCommitted,
		pgx.RepeatableRead: sql.LevelRepeatableRead, pgx.Serializable: sql.LevelSerializable,
	}[o.IsoLevel]
	rest := o
	rest.IsoLevel, rest.AccessMode = "", ""
	if !known || rest != (pgx.TxOptions{}) {
		return nil, errors.New("fencedb: database/sql takes no other TxOptions than the isolation level and the access mode")
	}
	return &sql.TxOptions{Isolation: level, ReadOnly: o.AccessMode == pgx.ReadOnly}, nil
}

// SQLTx is a transaction of database/sql that the application has begun: *sql.Tx, *sqlx.Tx,
// tx.Statement.ConnPool in a GORM transaction, tx.Tx in one of bun. A *sql.Conn that has executed
// BEGIN is one too.
type SQLTx interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// EnterSQL is [Enter] for a transaction of database/sql, whatever the driver. It must come first,
// it returns the same errors (also [ErrUnsealed] above READ COMMITTED), and after an error the
// transaction must be rolled back. Of the options only [Timeout] and [Trace] have an effect. Later
// statements return the errors of the driver, which [Explain] turns into those of this package.
// [Entry.OutcomeSQL] finds out what became of a COMMIT that failed. After a rollback it also
// recognises a statement that the time limit of the lease has ended, which Explain cannot (SQLSTATE
// 57014).
//
//	tx, err := db.BeginTx(ctx, nil)
//	if err != nil {
//		return err
//	}
//	defer tx.Rollback()
//	entry, err := fencedb.EnterSQL(ctx, tx, lease)
//	if err != nil {
//		return err
//	}
//	if _, err := tx.ExecContext(ctx, `INSERT INTO bookings ...`); err != nil {
//		_ = tx.Rollback()
//		return entry.OutcomeSQL(ctx, db, err) // ErrLeaseOver if the lease's limit ended the statement
//	}
//	if err := tx.Commit(); err != nil {
//		return entry.OutcomeSQL(ctx, db, err)
//	}
//	return nil
//
// A handle on which every statement is a transaction of its own, such as *sql.DB, is refused; by
// then the token has entered, and nothing else has happened. On handles without a method Commit,
// this check costs one more round trip. Cancelling ctx ends the wait for the fence and, with pgx,
// the connection. So does the end of grant's validity, 2.5 s later; for other drivers see [TxSQL].
func EnterSQL(ctx context.Context, tx SQLTx, grant Grant, opts ...Option) (*Entry, error) {
	e, err := newEntry(nil, grant, opts)
	if err != nil {
		return nil, err
	}
	return e.join(ctx, tx, func(ctx context.Context) error {
		if err := e.enterSQL(ctx, tx); err != nil {
			return e.explainSQL(ctx, nil, err)
		}
		return nil
	})
}

// OutcomeSQL is Outcome for database/sql, whatever the driver. db must have a connection to spare.
func (e *Entry) OutcomeSQL(ctx context.Context, db *sql.DB, err error) error {
	return e.outcome(ctx, askSQL(db), err)
}

func (e *entry) enterSQL(ctx context.Context, tx SQLTx) error {
	query, args, err := e.query(ctx)
	if err != nil {
		return err
	}
	bounded, cancel := e.untilOverdue(ctx)
	defer cancel()
	var answer string
	err = queryOne(bounded, tx, query, args, &answer)
	if err := e.admission([]byte(answer), err); err != nil {
		return err
	}
	if _, ok := tx.(interface{ Commit() error }); ok {
		return nil
	}
	var current sql.Null[uint64]
	if err := queryOne(bounded, tx, `SELECT pg_current_xact_id_if_assigned()::pg_catalog.text::bigint`, nil, &current); err != nil {
		return err
	}
	if current.V != e.xid { // that transaction ended with the statement that entered
		return fmt.Errorf("fencedb: this %T %w", tx, errNotInTx)
	}
	return nil
}

var errNotInTx = errors.New("is not in a transaction, so the fence was given back at once; begin a transaction and enter in it")

// explainSQL treats an error that no server sent as a lost connection: database/sql does not show
// which it is.
func (e *entry) explainSQL(ctx context.Context, server asker, err error) error {
	if errors.Is(err, ErrLeaseOver) || errors.Is(err, ErrInvalidGrant) || errors.Is(err, errNotInTx) {
		return err // already complete
	}
	return e.explain(ctx, server, true, err)
}

// queryOne is QueryRowContext, which SQLTx does not require.
func queryOne(ctx context.Context, tx SQLTx, query string, args []any, dest ...any) error {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	if !rows.Next() {
		return cmp.Or(rows.Err(), sql.ErrNoRows)
	}
	if err := rows.Scan(dest...); err != nil {
		return err
	}
	return rows.Close()
}
