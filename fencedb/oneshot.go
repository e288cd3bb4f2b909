package fencedb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencedb/fencedb/internal/rows"
)

// Exec runs one statement behind the fence of grant, in a transaction of its own and one round
// trip. Its errors are those of [Tx]; without one, the statement has committed. If ctx ends while
// the statement is under way, Exec looks up the outcome for at most five seconds, or returns
// [ErrCommitUnknown] if the server had answered nothing. Options come with db: see [With]. Exec,
// [QueryRow], [Query] and [SendBatch] refuse options of pgx among the arguments, such as
// pgx.QueryExecMode: use Tx for them, or the settings of the connection.
//
// More round trips are needed: one the first time on a connection, when pgx prepares the statement;
// two after a failure, because pgx forgets what it had prepared, including the statement that
// enters; one to roll back, if a statement is refused whose first word is not SELECT, INSERT,
// UPDATE, DELETE, MERGE, WITH, VALUES or TABLE; one to ask whether the transaction is still open,
// if the first word does not show that, as with a prepared statement's name. COMMIT and its like
// are refused.
func Exec(ctx context.Context, db DB, grant Grant, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	queries := []*pgx.QueuedQuery{{SQL: sql, Arguments: args, Fn: func(results pgx.BatchResults) (err error) {
		tag, err = results.Exec()
		return err
	}}}
	if !harmless[firstWord(sql, args)] {
		err = sendAll(ctx, db, grant, queries, nil)
		return tag, err
	}
	err = send(ctx, db, grant, queries, nil, true).end()
	return tag, err
}

// QueryRow is [Exec] for a statement that returns one row, such as INSERT ... RETURNING. The
// statement is sent by Scan, which works once, even if it refuses a destination. Scan returns the
// errors of [Tx].
//
// If the statement has committed and there is no row, both pgx.ErrNoRows and [ErrCommitted] are in
// the error: a trigger, a function or a WITH may have written something. So check for pgx.ErrNoRows
// first. ErrCommitted alone means that there is a row, but it could not be scanned. Options come
// with db: see [With].
func QueryRow(ctx context.Context, db DB, grant Grant, sql string, args ...any) pgx.Row {
	return rows.Once(func(dest ...any) error {
		if err := refuseDriverBytes(dest); err != nil {
			return err
		}
		b := &pgx.Batch{}
		b.Queue(sql, args...).Query(func(result pgx.Rows) error { return onlyRow{result}.Scan(dest...) })
		return SendBatch(ctx, db, grant, b)
	})
}

// Query is [Exec] for a statement that returns rows. Close the rows, or read them to the end, and
// check their Err: only then is the outcome of the statement known. Err is one of the errors of
// [Tx]. Or it is [ErrCommitted]: the statement has committed, but not all rows came, or one could
// not be scanned. Rows can be read while grant is valid. Options come with db: see [With].
func Query(ctx context.Context, db DB, grant Grant, sql string, args ...any) (pgx.Rows, error) {
	queries := []*pgx.QueuedQuery{{SQL: sql, Arguments: args}}
	if err := checkBatch(queries); err != nil {
		return rows.Failed(err)
	}
	if !keepsOpen(sql, args) {
		return queryTx(ctx, db, grant, sql, args)
	}
	s := send(ctx, db, grant, queries, nil, false)
	var result pgx.Rows
	if s.err == nil {
		result, s.err = s.results.Query()
	}
	if s.err != nil {
		return rows.Failed(s.end())
	}
	return rows.OnClose(result, func() error { return rowsError(s.end(), result.Err()) }), nil
}

// rowsError is the error of rows whose own error is err, after their transaction has ended with
// outcome.
func rowsError(outcome, err error) error {
	if outcome != nil || err == nil {
		return outcome
	}
	return fmt.Errorf("%w: %w", ErrCommitted, err)
}

// queryTx is Query for a statement that may end the transaction. It sends COMMIT when the rows are
// closed, because only then it is known whether the statement has ended the transaction.
func queryTx(ctx context.Context, db DB, grant Grant, sql string, args []any) (pgx.Rows, error) {
	tx, err := newTx(ctx, db, grant, nil)
	if err != nil {
		return rows.Failed(err)
	}
	result, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return rows.Failed(tx.finish(err))
	}
	return rows.OnClose(result, func() error {
		err := result.Err()
		if conn := tx.inner.Conn(); !conn.IsClosed() && conn.PgConn().TxStatus() == 'T' {
			// The statement has succeeded: err is from scanning a row.
			return rowsError(tx.finish(nil), err)
		}
		return tx.finish(err)
	}), nil
}

// SendBatch runs the statements of b behind the fence of grant, in one transaction and one round
// trip. Read their results with the callbacks of pgx.QueuedQuery. All statements commit, or none;
// the errors are those of [Tx]. The statements must not end the transaction: COMMIT and its like
// are refused before anything is sent. As with [Exec], a second round trip is needed if the first
// word of a statement does not show that it leaves the transaction open.
//
// Callbacks run after the statements and cannot undo them. If a callback fails and the statements
// commit, its error is joined with [ErrCommitted], and later callbacks are not called. ErrCommitted
// also means that the connection was lost after the commit, before every callback had its result,
// or that a callback read past the last result or left its own open. Callbacks run before the
// answer of COMMIT: if a deferred constraint refuses COMMIT, what they have read is rolled back,
// and only the error of SendBatch says so.
func SendBatch(ctx context.Context, db DB, grant Grant, b *pgx.Batch, opts ...Option) error {
	if begins(b) {
		return errors.New("fencedb: SendBatch begins the transaction; set its options with TxOptions")
	}
	var callbackErr error
	var own []*pgx.QueuedQuery
	for _, query := range b.QueuedQueries {
		apart := &pgx.QueuedQuery{SQL: query.SQL, Arguments: query.Arguments}
		if query.Fn != nil { // its error is kept apart: only errors of the server say what was written
			apart.Fn = func(results pgx.BatchResults) error {
				if callbackErr == nil {
					callbackErr = query.Fn(results)
					return nil
				}
				_, err := results.Exec()
				return err
			}
		}
		own = append(own, apart)
	}
	if err := sendAll(ctx, db, grant, own, opts); err != nil {
		return err
	}
	if callbackErr != nil {
		return fmt.Errorf("%w: %w", ErrCommitted, callbackErr)
	}
	return nil
}

// sendAll is SendBatch for callbacks that do not fail.
func sendAll(ctx context.Context, db DB, grant Grant, queries []*pgx.QueuedQuery, opts []Option) error {
	if !allKeepOpen(queries) {
		return Tx(ctx, db, grant, func(tx pgx.Tx) error {
			return tx.SendBatch(ctx, &pgx.Batch{QueuedQueries: queries}).Close()
		}, opts...)
	}
	return send(ctx, db, grant, queries, opts, false).end()
}

// Seal makes every earlier token of grant's resource stale, in one round trip and without writing
// anything else. If it is called while the lease is being acquired, before its holder learns of it,
// the order of tokens does not depend on Redis: see [Sealer]. The seal is on disk when Seal
// returns, also where synchronous_commit is off. A stale grant is refused with [ErrStale]. After an
// error that leaves the outcome open (a lost connection, ctx done), seal again: a second seal does
// no harm. If no connection of the pool came free while grant was valid, the error is a
// context.DeadlineExceeded that names the pool, not [ErrLeaseOver].
func Seal(ctx context.Context, db DB, grant Grant) error {
	b := &pgx.Batch{}
	b.Queue(durably)
	return sealError(SendBatch(ctx, db, grant, b, func(c *config) {
		c.sealing = true
		c.txOptions = pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: c.txOptions.AccessMode}
	}))
}

// durably makes COMMIT wait for the disk. Where synchronous_commit is off, a crash loses the last
// commits: a write together with its fence, which does no harm. A seal has no such write: its
// holder goes on to read and decide, and after the crash an earlier holder could write again.
// COMMIT waits for this server's disk only, since whoever switched synchronous_commit off does not
// wait for standbys.
const durably = `SELECT pg_catalog.set_config('synchronous_commit', 'local', true) WHERE pg_catalog.current_setting('synchronous_commit') = 'off'`

// Sealer returns [Seal] on db as lease.Config.Seal: every lease is sealed before its holder gets
// it.
//
//	issuer, err := lease.New(client, lease.Config{TTL: 10 * time.Second, Seal: fencedb.Sealer(pool)})
//
// Package guard uses it. A program needs it if it decides on data that it reads outside its fenced
// transactions. Without a seal, an earlier holder can still write between such a read and the first
// fenced transaction of the later holder. Several resources are sealed together. If Postgres
// refuses a token because Redis has gone backwards, the acquisition repairs that by itself.
func Sealer(db DB) func(ctx context.Context, grants ...Grant) error {
	return func(ctx context.Context, grants ...Grant) error { return Seal(ctx, db, All(grants...)) }
}

// sealError rewrites ErrCommitUnknown for a seal: nothing else was written, and a second seal does
// no harm.
func sealError(err error) error {
	if unknown := (*CommitUnknownError)(nil); errors.As(err, &unknown) {
		return fmt.Errorf("fencedb: Postgres did not answer, and it is unknown whether the token was sealed; nothing else was written: %w", unknown.cause)
	}
	return err
}

// sent is a transaction that is sent in one round trip: BEGIN, enter, queries that keep it open,
// COMMIT. The transaction is explicit, so that a statement cannot commit half of it, and the answer
// of COMMIT says what became of it even if a callback ignores an error. If a statement fails, the
// server skips the rest, COMMIT too, and the transaction stays open.
//
// A single statement that can do neither uses the implicit transaction that every batch is, without
// BEGIN and COMMIT: two statements less. Postgres commits it at the end of the batch, or rolls back
// if a statement has failed, and says so before it reports that it is ready for the next query.
type sent struct {
	ctx      context.Context
	entry    *entry
	trace    tracing          // begun by send, ended by end
	implicit bool             // the batch is the transaction
	results  pgx.BatchResults // of the queries after enter; nil unless sent

	err        error    // why it was not sent, or results could not be read one by one
	delivered  bool     // all results of the queries have come, and their callbacks were called
	committed  bool     // by the answer of COMMIT, or the end of the batch
	rolledBack bool     // by the answer of COMMIT; neither is set if a callback has read that answer
	notice     *noticed // set before the answer that commits is read
}

// send checks the grant and sends everything. The caller must call end on the result.
func send(ctx context.Context, db DB, grant Grant, queries []*pgx.QueuedQuery, opts []Option,
	mayBeImplicit bool) *sent {
	e, err := newEntry(db, grant, opts)
	err = cmp.Or(err, checkBatch(queries))
	s := &sent{entry: e, err: err, delivered: len(queries) == 0 || e.sealing} // a seal has no results
	if err != nil {
		return s
	}
	op := OpWrite
	if e.sealing {
		op = OpSeal
	}
	s.trace = e.trace(ctx, op)
	s.ctx = s.trace.ctx
	defer func() {
		if s.results == nil { // there was no connection, or an argument's encoder has panicked
			e.release()
			s.trace.end()
		}
	}()
	all := queries
	if s.implicit = mayBeImplicit && e.txOptions == (pgx.TxOptions{}); s.implicit {
		last := all[len(all)-1]
		read := last.Fn
		last.Fn = func(results pgx.BatchResults) error {
			err := read(results)
			s.delivered = err == nil
			s.notice = listen(e.pg) // next comes the end of the batch, which commits
			return err
		}
	} else {
		commit := &pgx.QueuedQuery{SQL: "commit", Fn: s.readCommit}
		all = append(slices.Clip(all), commit)
	}
	if s.err = e.acquire(s.ctx); s.err == nil {
		s.results, s.err = e.open(s.ctx, all, s.implicit)
	}
	if s.results == nil {
		s.err = e.explain(s.ctx, nil, false, s.err)
	}
	_ = s.trace.is(s.err)
	return s
}

// readCommit is called when all results before that of COMMIT have been read. Its errors stay in
// results, for Close.
func (s *sent) readCommit(results pgx.BatchResults) error {
	s.delivered = s.delivered || !s.entry.lost() && s.err == nil
	s.notice = listen(s.entry.pg)
	tag, err := results.Exec()
	s.committed = err == nil && tag.String() == "COMMIT"
	s.rolledBack = err == nil && tag.String() == "ROLLBACK"
	return nil
}

// end reads what is left of the results, gives the connection back and returns what became of the
// transaction.
func (s *sent) end() error {
	if s.results == nil {
		return s.err
	}
	defer s.trace.end()
	s.trace.outcome = errPanicked // in a callback
	return s.trace.is(s.finish())
}

func (s *sent) finish() error {
	e := s.entry
	defer e.release() // does nothing the second time
	closeErr := s.close()
	err, lost := cmp.Or(s.err, closeErr), e.lost()
	switch {
	case s.committed && (s.notice == nil || bool(*s.notice)): // nil: the result before COMMIT's never came
		if err = cmp.Or(err, errNoticed); e.xid == 0 {
			return &CommitUnknownError{cause: err}
		}
		return e.findOutcome(s.ctx, e.server, err, lost, s.delivered)
	case s.committed && s.delivered && (err == nil || lost): // if the connection was lost, then after COMMIT's answer
		return nil
	case s.committed:
		return fmt.Errorf("%w: %w", ErrCommitted, err)
	case !lost && e.pg.PgConn().TxStatus() != 'I':
		e.rollback(s.ctx, s.results)
		if err == nil { // the callback did not return it, and pgx keeps it for the next call
			err = noted(errors.New("fencedb: rolled back: a statement failed"), s.results.Close())
		}
		return e.explain(s.ctx, e.server, false, err)
	case s.rolledBack && !lost && err == nil:
		return errors.New("fencedb: rolled back: the answer of COMMIT says so")
	case refused(err), e.nothingHappened(err, lost):
		return e.explain(s.ctx, e.server, lost, err)
	case lost && e.xid == 0:
		return &CommitUnknownError{cause: err}
	}
	return e.findOutcome(s.ctx, e.server, cmp.Or(err, errReadOn), lost, s.delivered)
}

var errReadOn = errors.New("fencedb: a callback has read more than the result of its own query, or has left that open")

// close runs the callbacks. If one panics, it leaves results unread, so the connection is closed:
// nobody could use it.
func (s *sent) close() error {
	panicked := true
	defer func() {
		if panicked && s.entry.pg != nil {
			ctx, cancel := detached(s.ctx)
			defer cancel()
			_ = s.entry.pg.Close(ctx)
		}
	}()
	err := s.results.Close()
	if s.notice != nil {
		s.notice.stop(s.entry.pg)
	}
	panicked = false
	s.committed = s.committed || s.implicit && err == nil
	return err
}

// nothingHappened reports whether err came before anything could be written, for one of three
// reasons:
//
//   - pgx could not prepare the batch, as when the lease was over by then.
//   - The batch was not sent: the transaction has not entered, and the connection is still usable.
//   - Postgres ended the session while it was entering: its answers come in order, and this one
//     came in place of the first. The answer of a connection pooler that lost its session does not
//     count.
func (e *entry) nothingHappened(err error, lost bool) bool {
	var notSent pgx.ErrPreprocessingBatch
	var pgErr *pgconn.PgError
	return errors.As(err, &notSent) || errors.As(err, new(*rejection)) || errors.Is(err, errLostSealing) ||
		e.xid == 0 && (!lost || errors.As(err, &pgErr) && pgErr.SeverityUnlocalized != "")
}
