package fencedb

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Enter takes the fence of grant in a transaction that the application has begun itself, and holds
// it until that transaction ends. It must come first: what the transaction read before it may
// already be old. It must not come after a savepoint, and the server refuses that: rolling back to
// the savepoint would give the fence back.
//
// Above READ COMMITTED the grant must have been sealed before the transaction began, or Enter fails
// with ErrUnsealed.
//
// On error the transaction is aborted: roll it back. Cancelling ctx closes the connection, as in
// every pgx call. Whether the transaction then commits is for the caller to find out; prefer Tx,
// which does it for you. Enter itself returns within five seconds after grant's validity, if that
// has an end; what follows is bounded by the caller's contexts.
func Enter(ctx context.Context, tx pgx.Tx, grant Grant, opts ...Option) error {
	e, err := newEntry(grant, opts)
	if err != nil {
		return err
	}
	t := e.trace(ctx, OpEnter)
	defer t.end()
	return t.is(e.enter(t.ctx, tx))
}

func (e *entry) enter(ctx context.Context, tx pgx.Tx) error {
	sql, args, err := e.query(ctx)
	if err != nil {
		return err
	}
	bounded, cancel := e.untilOverdue(ctx)
	defer cancel()
	if err := e.entered(tx.QueryRow(bounded, sql, args...)); err != nil {
		return e.explain(ctx, nil, tx.Conn().IsClosed(), err)
	}
	return nil
}

// SQLTx is a transaction of database/sql that the application has begun: *sql.Tx, *sqlx.Tx,
// tx.Statement.ConnPool in a GORM transaction, tx.Tx in one of bun. A *sql.Conn that has executed
// BEGIN is one too.
type SQLTx interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

var (
	_ SQLTx = (*sql.Tx)(nil)
	_ SQLTx = (*sql.Conn)(nil)
)

// EnterSQL is Enter for a transaction of database/sql, whatever the driver: it must come first and
// before any savepoint, it returns the same errors (also ErrUnsealed above READ COMMITTED), and on
// error the transaction must be rolled back. Of the options only Hold and Trace have an effect.
// What the application writes afterwards comes back with the errors of its driver, which Explain
// turns into those of this package.
//
//	tx, err := db.BeginTx(ctx, nil)
//	if err != nil {
//		return err
//	}
//	defer tx.Rollback()
//	if err := fencedb.EnterSQL(ctx, tx, lease); err != nil {
//		return err
//	}
//	if _, err := tx.ExecContext(ctx, `INSERT INTO bookings ...`); err != nil {
//		return fencedb.Explain(err)
//	}
//	return tx.Commit()
//
// A handle on which every statement is a transaction of its own, such as *sql.DB, is refused; the
// token has entered by then, and nothing else has happened. To find out costs one more round trip
// on handles without a method Commit. Cancelling ctx ends the wait for the fence and, with the
// usual drivers, the connection.
func EnterSQL(ctx context.Context, tx SQLTx, grant Grant, opts ...Option) error {
	e, err := newEntry(grant, opts)
	if err != nil {
		return err
	}
	if isNil(tx) {
		return errors.New("fencedb: the transaction is nil; did it begin?")
	}
	t := e.trace(ctx, OpEnter)
	defer t.end()
	return t.is(e.enterSQL(t.ctx, tx))
}

func (e *entry) enterSQL(ctx context.Context, tx SQLTx) error {
	query, args, err := e.query(ctx)
	if err != nil {
		return err
	}
	if err := queryOne(ctx, tx, query, portable(args), &e.xid, &e.epoch); err != nil {
		return e.explainSQL(ctx, err)
	}
	return e.requireOpen(ctx, tx)
}

// requireOpen refuses a handle whose transaction was over as soon as it had entered.
func (e *entry) requireOpen(ctx context.Context, tx SQLTx) error {
	if _, ok := tx.(interface{ Commit() error }); ok {
		return nil
	}
	var current sql.Null[uint64]
	if err := queryOne(ctx, tx, `SELECT pg_current_xact_id_if_assigned()::text::bigint`, nil, &current); err != nil {
		return e.explainSQL(ctx, err)
	}
	if current.V != e.xid {
		return fmt.Errorf("fencedb: this %T is not in a transaction, so the fence was given back at once; begin a transaction and enter in it", tx)
	}
	return nil
}

// explainSQL takes an error that no server sent for a lost connection: database/sql does not tell.
func (e *entry) explainSQL(ctx context.Context, err error) error {
	return e.explain(ctx, nil, true, err)
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

// portable writes arrays as text, because not every driver takes a slice.
func portable(args []any) []any {
	for i, arg := range args {
		switch arg := arg.(type) {
		case []string:
			args[i] = arrayText(arg)
		case []int64:
			args[i] = arrayText(arg)
		}
	}
	return args
}

var arrayEscapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// arrayText returns the text form of an array of Postgres.
func arrayText[T any](elements []T) string {
	quoted := make([]string, len(elements))
	for i, element := range elements {
		quoted[i] = `"` + arrayEscapes.Replace(fmt.Sprint(element)) + `"`
	}
	return "{" + strings.Join(quoted, ",") + "}"
}
