package fencedb

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// explain returns what err means for a transaction that was rolled back. It asks server (unless
// nil) for what is not in the error. lost: the connection broke before the rollback.
func (e *entry) explain(ctx context.Context, server asker, lost bool, err error) error { //nolint:gocognit // causes
	code := answered(err).code
	// A transaction_timeout of the role: until it enters, a transaction only waits for the fence.
	if code == codeTransactionTimeout && e.xid == 0 {
		if found := e.blockers(ctx, server); len(found) > 0 {
			return e.busy(found, err)
		}
	}
	if e.overtime(code, lost || passedOn(ctx, err)) {
		return e.timeOver(err)
	}
	if err = Explain(err); err == nil || alreadyTyped(err) {
		return err
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("fencedb: nothing was written to %q: %w", e.resources(), because(ctx, err))
	}
	switch {
	case e.db != nil && e.conn == nil: // nothing was sent; err is from fn or from the pool
		return err
	case code == codePreparedTwice, code == codeNotPrepared:
		return fmt.Errorf("fencedb: Postgres and pgx disagree about which statements are prepared on this connection, as happens behind a connection pooler; use pgx.QueryExecModeExec, or PgBouncer 1.21 with max_prepared_statements: %w", err)
	case e.xid != 0 && lost && code == "" && ctx.Err() == nil:
		return fmt.Errorf("fencedb: rolled back: the connection to Postgres was lost: %w", err)
	case e.xid != 0, e.notPrepared(err), errors.As(err, new(*pgconn.ConnectError)):
		return err
	case lost && undecided(ctx, err):
		// The server should have given up first and named the blockers. It was too late, or does not
		// answer.
		if found := e.blockers(ctx, server); len(found) > 0 {
			return e.busy(found, err)
		}
		return err
	}
	switch code { // of a transaction that did not enter
	case codeLockNotAvailable, codeQueryCanceled:
		var detail struct{ Blockers json.RawMessage }
		answered(err).values(&detail)
		if detail.Blockers != nil {
			return e.busy(named(detail.Blockers), err)
		}
		// A limit of the role, or a request to cancel. It counts as a wait for the fence only if a
		// session is found that holds the fence.
		if found := e.blockers(ctx, server); len(found) > 0 || server == nil && code == codeLockNotAvailable {
			return e.busy(found, err)
		}
	case codeSerializationFailure:
		return &rejection{ErrUnsealed, err}
	case codeInvalidSchema, codeUndefinedFunction:
		return fmt.Errorf("fencedb: the database has no fences yet; run migrations.Up: %w", err)
	case codeInvalidParameter:
		return &rejection{ErrInvalidGrant, err}
	case codeInsufficientPrivilege:
		return fmt.Errorf("fencedb: the role may not enter fences; their owner must run SELECT fencedb.allow('role'): %w", err)
	case codeReadOnly:
		return fmt.Errorf("fencedb: entering a fence writes: connect to the primary, or, where default_transaction_read_only is on, set pgx.ReadWrite with TxOptions: %w", err)
	}
	return err
}

// because adds to err, which may be nil, how and why ctx has ended. The cause alone may be any
// error of the caller's.
func because(ctx context.Context, err error) error {
	for _, end := range []error{ctx.Err(), context.Cause(ctx)} {
		if end != nil && !errors.Is(err, end) {
			err = noted(end, err)
		}
	}
	return err
}

// notPrepared reports whether err is about a statement of the caller: pgx prepares all statements
// of a batch before it sends the first.
func (e *entry) notPrepared(err error) bool {
	var failed pgx.ErrPreprocessingBatch
	ours := []string{enterFirst, enterOne, enterAll, e.stillEntered()}
	return errors.As(err, &failed) && !slices.Contains(ours, failed.SQL())
}

// undecided reports whether the deadline passed before the server had decided: err has no answer of
// the server, or only that to the cancel request that the deadline caused.
func undecided(ctx context.Context, err error) bool {
	code := answered(err).code
	return (code == "" || code == codeQueryCanceled) && errors.Is(ctx.Err(), context.DeadlineExceeded)
}

// passedOn reports whether err only says that ctx is over. After that, database/sql answers that
// the transaction is done.
func passedOn(ctx context.Context, err error) bool {
	return ctx.Err() != nil &&
		(errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx)) || errors.Is(err, sql.ErrTxDone))
}

// overtime reports whether the transaction ended because its time was over. A broken connection or
// an ended context counts only if the lease is over as well, because servers end idle sessions and
// networks drop them. Any other error of fn is its own, however late it comes.
func (e *entry) overtime(code string, cut bool) bool {
	if code == codeTooLong || code == codeLeaseOver {
		return true
	}
	if e.until.IsZero() || time.Now().Before(e.limit) {
		return false
	}
	switch code {
	case codeIdleInTransaction, codeTransactionTimeout:
		return true
	case codeLockNotAvailable, codeQueryCanceled:
		return e.xid != 0 // before it has entered, the fence was busy
	}
	return code == "" && cut && e.leaseIsOver()
}

// leaseIsOver reports whether the lease is over, or ends together with the transaction's time: the
// server ends the transaction a little before. Otherwise the lease was renewed after the
// transaction entered, or Timeout has set the limit.
func (e *entry) leaseIsOver() bool {
	until, _ := validUntil(e.grants)
	same := until.Sub(e.until).Abs() <= time.Millisecond
	return !until.IsZero() && (same || time.Now().After(until))
}

// timeOver returns the error for a time that is over: that of the lease, or of the transaction.
func (e *entry) timeOver(err error) error {
	// Of an earlier check, or of another transaction within fn.
	said := []error{ErrLeaseOver, ErrTooLong, ErrInvalidGrant, errNotSealed}
	switch {
	case slices.ContainsFunc(said, func(sentinel error) bool { return errors.Is(err, sentinel) }):
		return err
	case e.leaseIsOver():
		return leaseOver(e.grants, err)
	}
	return &rejection{ErrTooLong, err}
}

func (e *entry) busy(blockers []Blocker, err error) error {
	return &BusyError{Resources: e.resources(), waited: time.Since(e.asked), Blockers: blockers, cause: err}
}

func (e *entry) resources() []string {
	resources := make([]string, len(e.grants))
	for i, g := range e.grants {
		resources[i] = g.Resource()
	}
	return resources
}

// blockers asks the server which sessions hold the fence. Without an answer it returns none.
func (e *entry) blockers(ctx context.Context, server asker) []Blocker {
	if server == nil {
		return nil
	}
	ctx, cancel := detached(ctx)
	defer cancel()
	var list []byte
	resources := e.array(func(g Grant) any { return g.Resource() })
	_, _ = server(ctx, &list, `SELECT coalesce(jsonb_agg(b), '[]')::pg_catalog.text FROM fencedb.blockers($1::pg_catalog.text[]) b`, resources)
	return named(list)
}

// named reads a JSON list of rows of fencedb.blockers. It returns nil if there is none.
func named(list []byte) []Blocker {
	var known []struct { // null is "", or a time that is not visible
		PID                int
		Application, State string
		Open               time.Duration `json:"open_ms"` // in milliseconds
	}
	if json.Unmarshal(list, &known) != nil {
		return nil
	}
	blockers := make([]Blocker, len(known))
	for i, b := range known {
		blockers[i] = Blocker{b.PID, b.Application, b.State, b.Open * time.Millisecond}
	}
	return blockers
}

// ExplainNoRows says why a conditional UPDATE on a table without triggers has matched no row:
//
//	tag, err := pool.Exec(ctx, `UPDATE jobs SET state = 'DONE', last_fencing_token = $2, last_lease_id = $3
//		WHERE id = $1 AND ($2 > last_fencing_token OR $2 = last_fencing_token AND $3 = last_lease_id)`,
//		id, lease.Token(), lease.LeaseID())
//	if err == nil && tag.RowsAffected() == 0 {
//		err = fencedb.ExplainNoRows(ctx, pool, lease,
//			`SELECT last_fencing_token, last_lease_id FROM jobs WHERE id = $1`, id)
//		if err == nil {
//			err = errNotWritten // for another reason than the token
//		}
//	}
//
// sql selects the token stored in the row, and the lease id if the condition compares it.
// ExplainNoRows returns [ErrStale] if another holder's token is stored, and pgx.ErrNoRows if there
// is no such row. It returns nil if the row would accept the grant now: then another condition did
// not hold. Only ctx bounds it.
//
// A condition without the lease id, `AND $2 > last_fencing_token`, admits one write for each token.
// If the row has the token of grant already, the error is [ErrAlreadyWritten].
//
// Such an UPDATE is fenced only as a statement of its own, with the token in the row that it
// updates. An older holder cannot overwrite that row, but S3 and S5 do not hold: what was read
// before may be old, and a deleted row has no fence.
func ExplainNoRows(ctx context.Context, db DB, grant Grant, sql string, args ...any) error {
	if err := cmp.Or(check(flatten(grant)), checkArgs(args)); err != nil {
		return err
	}
	conn, release, err := acquire(ctx, db)
	if err != nil {
		return err
	}
	defer release() // also when pgx panics over sql or an argument
	var token int64
	var leaseID *uuid.UUID // nil: not selected, or not known
	b := &pgx.Batch{}
	b.Queue(sql, args...).Query(func(rows pgx.Rows) error {
		_, err := pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (struct{}, error) {
			if len(row.FieldDescriptions()) == 1 {
				return struct{}{}, row.Scan(&token)
			}
			return struct{}{}, row.Scan(&token, &leaseID)
		})
		return err
	})
	switch err := conn.SendBatch(ctx, b).Close(); {
	case err != nil:
		return err
	case token > grant.Token(), token == grant.Token() && leaseID != nil && *leaseID != grant.LeaseID():
		return &StaleError{Resource: grant.Resource(), Token: grant.Token(), Stored: token}
	case token == grant.Token() && leaseID == nil:
		return fmt.Errorf("%w: resource %q, token %d", ErrAlreadyWritten, grant.Resource(), grant.Token())
	}
	return nil
}
