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

// TxSQL is Tx for database/sql, with any driver: it runs fn in a transaction that holds the fence
// of grant, commits it if fn returns nil, and looks up the outcome of a COMMIT whose answer was
// lost. The error means the same as that of Tx.
//
//	err := fencedb.TxSQL(ctx, db, lease, func(tx *sql.Tx) error {
//		_, err := tx.ExecContext(ctx, `INSERT INTO bookings ...`)
//		return err
//	})
//
// It needs two round trips more than a plain transaction: one to enter, and one before COMMIT that
// asks whether a statement of fn has ended the transaction, since database/sql does not show what
// is sent. Above READ COMMITTED it seals first, if needed, as Tx does. TxOptions may set the
// isolation level and the access mode; pgx.ReadWrite, for where default_transaction_read_only is
// on, costs a round trip.
//
// fn must close its rows, and not call Commit or Rollback. Its errors are explained, as by Explain.
// Cancelling ctx before COMMIT rolls back; after that TxSQL still looks up, for at most five
// seconds, whether it took effect.
//
// When grant's validity is over and the server has not answered for 2.5 s more, the statement is
// cancelled. With pgx (package stdlib) that closes the connection. lib/pq only asks the server, on
// a second connection, and goes on reading: so that it does not wait for as long as TCP does when
// the network falls silent, give it a Dialer whose connections have deadlines or TCP_USER_TIMEOUT.
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
	if _, err := e.remaining(); err != nil { // as of now: a connection may have been waited for
		return err
	}
	bounded, cancel := e.untilOverdue(ctx)
	defer cancel()
	tx, err := conn.BeginTx(bounded, options)
	if err != nil {
		return e.explainSQL(ctx, nil, err)
	}
	defer tx.Rollback() //nolint:errcheck // does nothing after COMMIT; if it fails, the connection is closed

	if e.txOptions.AccessMode == pgx.ReadWrite { // which database/sql cannot say
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
	switch {
	case errors.Is(err, driver.ErrBadConn): // which is all that a driver says of a connection that is busy
		err = fmt.Errorf("fencedb: the connection is lost, or the function left rows open; close them before the next statement and before it returns: %w", err)
	case !own && answered(err).code == codeFailedTransaction:
		err = fmt.Errorf("fencedb: rolled back: a statement failed, and the function returned nil (database/sql does not show which): %w", err)
	}
	if err != nil {
		rollbackErr := tx.Rollback()
		alive := rollbackErr == nil || errors.Is(rollbackErr, sql.ErrTxDone) && bounded.Err() == nil // fn has ended it
		overdue := bounded.Err() != nil && ctx.Err() == nil                                          // database/sql has
		lost := !alive && (brokenConn(err) || overdue && (!own || errors.Is(err, sql.ErrTxDone)))
		return e.rolledBackSQL(ctx, db, conn, alive, lost, err)
	}
	noticed, err := conn.listening(tx.Commit)
	switch {
	case err == nil && noticed:
		err = errNoticed
	case err == nil && bounded.Err() != nil: // lib/pq then asks for the COMMIT to be cancelled
		err = fmt.Errorf("fencedb: COMMIT was under way when its time ended: %w", context.Cause(bounded))
	case err == nil:
		return nil
	case refused(err):
		return e.explainSQL(ctx, nil, err)
	}
	conn.giveBack() // first, or asking on another connection could wait for this one
	return e.settle(ctx, askSQL(db), err, true, true)
}

// rolledBackSQL explains err, because of which the transaction was rolled back. database/sql does
// not show what fn has sent, so the server is asked whether one of its statements had ended the
// transaction: what that one has committed, no rollback undoes. It is asked on conn if that is
// alive, as in entry.server. lost is as for explain: it does not follow, since the connection may
// have been lost behind err.
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

// askSQL asks on a connection of db.
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

// sqlConn is a connection of database/sql.
type sqlConn struct {
	*sql.Conn
	pgx     *pgx.Conn   // under it; nil with another driver
	overdue *time.Timer // of closeWhenOverdue
	given   bool        // back: from then on pgx may be somebody else's
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

// listening reports whether a notice came during send, where the driver is pgx.
func (c *sqlConn) listening(send func() error) (noticed bool, err error) {
	notice := listen(nil)
	c.locked(func() error { notice = listen(c.pgx); return nil })
	err = send()
	c.locked(func() error { notice.stop(c.pgx); return nil })
	return bool(*notice), err
}

// locked calls f while no other goroutine of database/sql uses the connection, unless it is closed:
// when the context of a transaction ends, database/sql rolls back and closes the connection in a
// goroutine of its own, and Raw, if it looks in that very moment, follows a nil pointer.
func (c *sqlConn) locked(f func() error) (open bool) {
	defer func() { _ = recover() }()
	_ = c.Raw(func(any) error { open = true; return f() })
	return open
}

// closeWhenOverdue does what entry.watch does, for the statements of the function, which have
// contexts of their own. database/sql waits for them before it rolls back.
func (c *sqlConn) closeWhenOverdue(until time.Time) {
	if until.IsZero() || c.pgx == nil {
		return
	}
	wire := c.pgx.PgConn().Conn()
	c.overdue = time.AfterFunc(time.Until(until)+overdueTime, func() { _ = wire.Close() })
}

// giveBack gives the connection back, and closes one of pgx that is lost (see abandon). The second
// time it does nothing. Nobody else will get one that is closed already (see locked), so it is ours
// to close.
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

// sqlOptions are those that database/sql knows.
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

// EnterSQL is Enter for a transaction of database/sql, whatever the driver: it must come first, it
// returns the same errors (also ErrUnsealed above READ COMMITTED), and on error the transaction
// must be rolled back. Of the options only Hold and Trace have an effect. What the application
// writes afterwards comes back with the errors of its driver, which Explain turns into those of
// this package. Entry.OutcomeSQL finds out what became of a COMMIT that failed; after a rollback it
// recognises a statement that the limit of the lease has ended, which Explain cannot tell from any
// other cancellation (SQLSTATE 57014).
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
//		return entry.OutcomeSQL(ctx, db, err) // knows also that the lease's limit ended the statement
//	}
//	if err := tx.Commit(); err != nil {
//		return entry.OutcomeSQL(ctx, db, err)
//	}
//	return nil
//
// A handle on which every statement is a transaction of its own, such as *sql.DB, is refused; the
// token has entered by then, and nothing else has happened. To find out costs one more round trip
// on handles without a method Commit. Cancelling ctx ends the wait for the fence and, with pgx, the
// connection. So does the end of grant's validity, 2.5 s later; what other drivers do, TxSQL says.
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
	if current.V != e.xid { // the transaction was over as soon as it had entered
		return fmt.Errorf("fencedb: this %T %w", tx, errNotInTx)
	}
	return nil
}

var errNotInTx = errors.New("is not in a transaction, so the fence was given back at once; begin a transaction and enter in it")

// explainSQL takes an error that no server sent for a lost connection: database/sql does not tell.
func (e *entry) explainSQL(ctx context.Context, server asker, err error) error {
	if errors.Is(err, ErrLeaseOver) || errors.Is(err, ErrInvalidGrant) || errors.Is(err, errNotInTx) {
		return err // ours, and says all; the first two, as before anything was sent, would be said twice
	}
	return e.explain(ctx, server, true, err)
}

// queryOne is QueryRowContext, which not everything that wraps a transaction has.
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
