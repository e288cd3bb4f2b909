package fencedb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/fencedb/fencedb/internal/rows"
)

// fencedTx is the pgx.Tx that fn of Tx gets. Its first statement begins the transaction, in one
// round trip with BEGIN and enter; later statements go to the pgx.Tx in inner. Like every pgx.Tx it
// is for one goroutine at a time: a second one gets errInUse.
type fencedTx struct {
	mu   sync.Mutex               // held by every call; guards all fields but conn
	conn atomic.Pointer[pgx.Conn] // set while inner is; for every goroutine

	caller context.Context // of the call to Tx
	ctx    context.Context // caller, with the values of the tracers; for methods without a context
	entry  *entry
	trace  tracing // ended by finish

	inner pgx.Tx // nil until begun, and after the end

	// err is the answer to every call: why the transaction could not enter or has lost its fence,
	// or pgx.ErrTxClosed after the end.
	err error

	gaveUp       bool // fn called Rollback
	mayHaveEnded bool // a statement was sent that may have ended the transaction (see keepsOpen)
	savepoints   int
	failed       string // the last statement that Postgres refused, unless a savepoint undid it; failure says why
	failure      error
}

var errInUse = errors.New("fencedb: the transaction is busy: another goroutine uses it, and it is for one at a time")

// note keeps the error of a statement, in case fn ignores it.
func (tx *fencedTx) note(sql string, err error) {
	if code := answered(err).code; code != "" && code != codeFailedTransaction { // a consequence of an earlier error
		tx.failed, tx.failure = sql, err
	}
}

func newTx(ctx context.Context, db DB, grant Grant, opts []Option) (*fencedTx, error) {
	e, err := newEntry(db, grant, opts)
	if err != nil {
		return nil, err
	}
	t := e.trace(ctx, OpWrite)
	return &fencedTx{caller: ctx, ctx: t.ctx, entry: e, trace: t}, nil
}

// begin sends BEGIN, enter and the queries in one round trip. The results that it returns begin
// with those of the queries; the caller must close them. After an error the transaction is
// unusable, except if the context of a statement was over before anything was sent: then the next
// statement begins it, as in an open transaction of pgx.
func (tx *fencedTx) begin(ctx context.Context, queries ...*pgx.QueuedQuery) (results pgx.BatchResults, err error) {
	defer func() {
		if tx.inner != nil || ctx.Err() == nil || tx.ctx.Err() != nil {
			tx.err = err
		}
	}()
	err = tx.entry.acquire(ctx)
	if err == nil && ctx.Err() != nil {
		tx.entry.release()
		err = ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		if tx.inner == nil { // not sent: the grant was refused, or an argument's encoder panicked
			tx.entry.release()
		}
	}()
	tx.mayHaveEnded = !allKeepOpen(queries)
	if results, err = tx.entry.open(ctx, queries, false); results != nil {
		tx.inner = results.Tx()
		tx.conn.Store(tx.entry.pg)
	}
	return results, err
}

// open begins the transaction for the methods whose message cannot travel in a batch with enter.
// keepsOpen says whether that message surely keeps the transaction open.
func (tx *fencedTx) open(ctx context.Context, keepsOpen bool) error {
	if !tx.begun() {
		results, err := tx.begin(ctx)
		if err != nil {
			return err
		}
		tx.err = results.Close()
	}
	tx.mayHaveEnded = tx.mayHaveEnded || !keepsOpen
	return tx.stillOpen()
}

func (tx *fencedTx) begun() bool { return tx.inner != nil || tx.err != nil }

// stillOpen refuses a call after the transaction has ended: its statement would be a transaction of
// its own.
func (tx *fencedTx) stillOpen() error {
	switch {
	case tx.err != nil:
	case tx.gaveUp:
		return errGaveUp
	case !tx.inner.Conn().IsClosed() && !tx.inner.Conn().PgConn().IsBusy() && tx.inner.Conn().PgConn().TxStatus() == 'I':
		tx.err, tx.mayHaveEnded = errEnded, true // if by nothing else, by a statement sent through Conn
	}
	return tx.err
}

var errGaveUp = fmt.Errorf("fencedb: rolled back: the function did so itself: %w", pgx.ErrTxClosed)

// first sends a statement together with BEGIN and enter, and returns its results. It returns none
// if the transaction is open already, or if the statement cannot travel in a batch; then the
// transaction is open now.
func (tx *fencedTx) first(ctx context.Context, sql string, args []any) (pgx.BatchResults, error) {
	if err := checkStatement(sql, args); err != nil {
		return nil, err
	}
	if tx.begun() || !canPipeline(sql, args) {
		return nil, tx.open(ctx, keepsOpen(sql, args))
	}
	return tx.begin(ctx, &pgx.QueuedQuery{SQL: sql, Arguments: args})
}

// canPipeline reports whether a statement can travel in a batch after enter. A batch takes no
// options, and pgx sends an empty string, or one of several statements, in another way. A rewriter
// would run, and could read on the connection, before the transaction enters.
func canPipeline(sql string, args []any) bool {
	sql = strings.Trim(sql, space+";")
	return sql != "" && !strings.Contains(sql, ";") &&
		!slices.ContainsFunc(args, isOption) && !slices.ContainsFunc(args, rewrites)
}

func (tx *fencedTx) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	if !tx.mu.TryLock() {
		return tag, errInUse
	}
	defer tx.mu.Unlock()
	tag, err = tx.exec(tx.within(ctx), sql, args)
	tx.note(sql, err)
	return tag, err
}

func (tx *fencedTx) exec(ctx context.Context, sql string, args []any) (pgconn.CommandTag, error) {
	results, err := tx.first(ctx, sql, args)
	switch {
	case err != nil:
		return pgconn.CommandTag{}, err
	case results != nil:
		tag, err := results.Exec()
		return tag, cmp.Or(err, results.Close()) // Close returns err again
	}
	return tx.inner.Exec(ctx, sql, args...)
}

func (tx *fencedTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if !tx.mu.TryLock() {
		return rows.Failed(errInUse)
	}
	defer tx.mu.Unlock()
	result, end, err := tx.query(tx.within(ctx), sql, args)
	if err != nil {
		tx.note(sql, err)
		return rows.Failed(err)
	}
	return rows.OnClose(result, func() error {
		err := result.Err()
		if end != nil {
			err = end()
		}
		tx.note(sql, err)
		return err
	}), nil
}

// query returns rows and, if they are part of a batch, the function that closes it.
func (tx *fencedTx) query(ctx context.Context, sql string, args []any) (result pgx.Rows, end func() error, err error) {
	results, err := tx.first(ctx, sql, args)
	switch {
	case err != nil:
		return nil, nil, err
	case results != nil:
		if result, err = results.Query(); err != nil {
			err = cmp.Or(err, results.Close())
		}
		return result, results.Close, err
	}
	result, err = tx.inner.Query(ctx, sql, args...)
	return result, nil, err
}

func (tx *fencedTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	result, _ := tx.Query(ctx, sql, args...) // the rows have the error
	return onlyRow{result}
}

func (tx *fencedTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if !tx.mu.TryLock() {
		return pgx.FailedBatchResults(b, errInUse)
	}
	defer tx.mu.Unlock()
	if err := checkBatch(b.QueuedQueries); err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	ctx = tx.within(ctx)
	if tx.begun() || begins(b) || slices.ContainsFunc(b.QueuedQueries, isRewritten) {
		if err := tx.open(ctx, allKeepOpen(b.QueuedQueries)); err != nil {
			return pgx.FailedBatchResults(b, err)
		}
		return batchOfTx{tx.inner.SendBatch(ctx, b), tx, b.QueuedQueries}
	}
	results, err := tx.begin(ctx, b.QueuedQueries...)
	if err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	return batchOfTx{results, tx, b.QueuedQueries}
}

// isRewritten reports whether a query has a rewriter, which would run, and could read on the
// connection, before the transaction enters.
func isRewritten(q *pgx.QueuedQuery) bool { return slices.ContainsFunc(q.Arguments, rewrites) }

// checkBatch refuses queries that pgx cannot send in a batch: an empty statement makes it panic,
// and it takes an option for an argument.
func checkBatch(queries []*pgx.QueuedQuery) error {
	for _, q := range queries {
		if err := checkStatement(q.SQL, q.Arguments); err != nil {
			return err
		}
		switch {
		case q.SQL == "":
			return errors.New("fencedb: empty SQL")
		case slices.ContainsFunc(q.Arguments, isOption):
			return errors.New("fencedb: options of pgx, such as pgx.QueryExecMode, are for single statements in Tx; set DefaultQueryExecMode of the connection instead")
		}
	}
	return nil
}

func (tx *fencedTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string,
	src pgx.CopyFromSource) (n int64, err error) {
	if !tx.mu.TryLock() {
		return 0, errInUse
	}
	defer tx.mu.Unlock()
	ctx = tx.within(ctx)
	if err := tx.open(ctx, true); err != nil {
		return 0, err
	}
	n, err = tx.inner.CopyFrom(ctx, table, columns, src)
	tx.note("COPY "+table.Sanitize(), err)
	return n, err
}

func (tx *fencedTx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if !tx.mu.TryLock() {
		return nil, errInUse
	}
	defer tx.mu.Unlock()
	ctx = tx.within(ctx)
	if err := tx.open(ctx, keepsOpen(sql, nil)); err != nil { // later its name does not show this
		return nil, err
	}
	described, err := tx.inner.Prepare(ctx, name, sql)
	tx.note(sql, err)
	return described, err
}

// Begin sets a savepoint.
func (tx *fencedTx) Begin(ctx context.Context) (pgx.Tx, error) {
	if !tx.mu.TryLock() {
		return nil, errInUse
	}
	defer tx.mu.Unlock()
	tx.savepoints++
	s := &savepoint{Tx: tx, of: tx, name: fmt.Sprintf("fencedb_%d", tx.savepoints)}
	if _, err := tx.exec(tx.within(ctx), "savepoint "+s.name, nil); err != nil {
		return nil, err
	}
	return s, nil
}

// LargeObjects opens the transaction first. If that fails, every use of the result answers
// pgx.ErrTxClosed.
func (tx *fencedTx) LargeObjects() pgx.LargeObjects {
	err := errInUse
	if tx.mu.TryLock() {
		defer tx.mu.Unlock()
		err = tx.open(tx.ctx, true)
	}
	if err != nil {
		b := &pgx.Batch{}
		b.BeginTx(pgx.TxOptions{})
		return pgx.FailedBatchResults(b, err).Tx().LargeObjects()
	}
	return tx.inner.LargeObjects()
}

// Conn opens the transaction first, so that statements sent through the connection are behind the
// fence, too. It returns nil if no connection came free, or while another goroutine opens the
// transaction.
func (tx *fencedTx) Conn() *pgx.Conn {
	if tx.mu.TryLock() {
		defer tx.mu.Unlock()
		if tx.open(tx.ctx, false) != nil { // kept in tx.err; Tx returns it
			tx.refuseAll()
		}
	}
	return tx.conn.Load()
}

// refuseAll makes every later statement through Conn fail, as after a refusal of the fence.
// Otherwise a statement would commit by itself if the connection is in no transaction (pgx could
// not prepare the first statement, or the transaction has ended). And if BEGIN went alone and enter
// could not follow, it would run without a fence.
func (tx *fencedTx) refuseAll() {
	if tx.inner == nil || tx.inner.Conn().PgConn().TxStatus() == 'E' {
		return
	}
	if tx.inner.Conn().PgConn().TxStatus() == 'I' {
		inner, err := tx.entry.conn.BeginTx(tx.ctx, pgx.TxOptions{})
		if err != nil { // pgx has closed the connection
			return
		}
		tx.inner = inner
	}
	_, _ = tx.inner.Exec(tx.ctx, `rollback to savepoint fencedb_0`) // fails: there is none, so the transaction is aborted
}

// Commit refuses: Tx commits when fn returns nil.
func (tx *fencedTx) Commit(context.Context) error {
	return errors.New("fencedb: Tx commits when its function returns nil; do not call Commit in it")
}

// Rollback rolls back. Tx then returns an error, even if fn returns nil.
func (tx *fencedTx) Rollback(ctx context.Context) error {
	if !tx.mu.TryLock() {
		return errInUse
	}
	defer tx.mu.Unlock()
	if tx.inner == nil {
		tx.err = pgx.ErrTxClosed
		return nil
	}
	tx.gaveUp = true
	return tx.inner.Rollback(ctx)
}

// begins reports whether b begins a transaction of its own, which pgx refuses inside another.
func begins(b *pgx.Batch) bool { return pgx.FailedBatchResults(b, nil).Tx() != nil }

// savepoint is the pseudo nested transaction that Begin returns. Unlike that of pgx, it sends its
// statements through the fenced transaction around it, so the first one can begin that, in one
// round trip.
type savepoint struct {
	pgx.Tx // the same as of; after the end, one that answers pgx.ErrTxClosed
	of     *fencedTx
	name   string
}

// Commit keeps what was done since the savepoint, for the transaction around it to commit.
func (s *savepoint) Commit(ctx context.Context) error { return s.close(ctx, "release savepoint ") }

// Rollback undoes what was done since the savepoint.
func (s *savepoint) Rollback(ctx context.Context) error {
	return s.close(ctx, "rollback to savepoint ")
}

// close ends the savepoint, even if ctx is over and nothing was sent for it. If the savepoint stays
// open, the whole transaction fails: otherwise it would commit writes that the caller believes
// failed, because pgx.BeginFunc ignores the error of Rollback. After an error of the server nothing
// commits in any case, unless an outer savepoint is rolled back.
func (s *savepoint) close(ctx context.Context, sql string) error {
	if !s.of.mu.TryLock() {
		return errInUse
	}
	defer s.of.mu.Unlock()
	if s.Tx != pgx.Tx(s.of) {
		return pgx.ErrTxClosed
	}
	s.Tx = &fencedTx{entry: s.of.entry, err: pgx.ErrTxClosed}
	ctx = s.of.within(ctx)
	if err := s.of.open(ctx, true); err != nil {
		return err
	}
	_, err := s.of.inner.Exec(ctx, sql+s.name)
	if pgconn.SafeToRetry(err) {
		_, err = s.of.inner.Exec(s.of.ctx, sql+s.name)
	}
	if err != nil && s.of.inner.Conn().PgConn().TxStatus() == 'T' {
		s.of.err = fmt.Errorf("fencedb: a savepoint could not be closed: %w", err)
	} else if err == nil {
		s.of.failed, s.of.failure = "", nil
	}
	return err
}

func (s *savepoint) Conn() *pgx.Conn { return s.of.Conn() }

type onlyRow struct{ rows pgx.Rows }

func (r onlyRow) Scan(dest ...any) error {
	defer r.rows.Close()
	if err := refuseDriverBytes(dest); err != nil {
		return err
	}
	if !r.rows.Next() {
		return cmp.Or(r.rows.Err(), pgx.ErrNoRows)
	}
	if err := r.rows.Scan(dest...); err != nil {
		return err
	}
	r.rows.Close()
	return r.rows.Err()
}

// refuseDriverBytes refuses destinations that are valid only until the rows are closed, as QueryRow
// of pgx does.
func refuseDriverBytes(dest []any) error {
	for _, d := range dest {
		if _, ok := d.(*pgtype.DriverBytes); ok {
			return errors.New("fencedb: QueryRow cannot scan into *pgtype.DriverBytes")
		}
	}
	return nil
}

// batchOfTx notes the error of a batch, and hides that the first batch began the transaction.
type batchOfTx struct {
	pgx.BatchResults
	tx      *fencedTx
	queries []*pgx.QueuedQuery
}

func (batchOfTx) Tx() pgx.Tx { return nil }

func (b batchOfTx) Close() error {
	err := b.BatchResults.Close()
	if err != nil && len(b.queries) > 0 {
		b.tx.note(fmt.Sprintf("a batch of length %d that begins with %s", len(b.queries), b.queries[0].SQL), err)
	}
	return err
}
