package fencedb

import (
	"bytes"
	"cmp"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// Option changes how one transaction is run.
type Option func(*config)

type config struct {
	txOptions pgx.TxOptions
	timeout   time.Duration // > 0: replaces the remaining validity of the lease
	sealing   bool          // of Seal: grants need no end
	tracers   []Tracer
}

// With returns db with options for every call that gets it. The options of the call come after
// them. Call it once, where the pool is made. Exec, [Query] and [QueryRow] get options only in this
// way.
//
//	serializable := fencedb.With(pool, fencedb.TxOptions(pgx.TxOptions{IsoLevel: pgx.Serializable}))
//	tag, err := fencedb.Exec(ctx, serializable, lease, `UPDATE ...`)
func With(db DB, opts ...Option) DB {
	if own, ok := db.(withOptions); ok {
		return withOptions{own.DB, slices.Concat(own.opts, opts)}
	}
	return withOptions{db, opts}
}

type withOptions struct {
	DB
	opts []Option
}

// Options returns the options that come with the database, for package guard.
func (w withOptions) Options() []Option { return w.opts }

// with sets the options that come with db, then opts, and returns the database without them.
func (c *config) with(db DB, opts []Option) DB {
	if own, ok := db.(withOptions); ok {
		db, opts = own.DB, slices.Concat(own.opts, opts)
	}
	for _, opt := range opts {
		opt(c)
	}
	return db
}

// TxOptions sets the isolation level and the other options of BEGIN in pgx. Defaults to those of
// the session. READ COMMITTED is enough: the fence keeps every other holder out, and statements see
// what the last one committed. At REPEATABLE READ and SERIALIZABLE the fence has to be older than
// the snapshot (S3). So a [Seal], two more round trips, precedes the first transaction under a
// grant that was not sealed. A transaction that Postgres cannot serialize fails with SQLSTATE 40001
// and may be tried again. BeginQuery and CommitQuery are refused.
func TxOptions(o pgx.TxOptions) Option { return func(c *config) { c.txOptions = o } }

// Timeout lets the transaction run for d, instead of the remaining validity of the lease when it
// begins. It is for a holder that renews its lease while it writes. If the lease is lost meanwhile,
// the next holder waits for the fence until d has passed, so keep d within the lease's MaxHold. The
// lease must be valid when the transaction begins. Zero and negative durations are ignored.
func Timeout(d time.Duration) Option { return func(c *config) { c.timeout = d } }

// entry is one call of fencedb.enter: the grants, and the limits of the transaction that enters.
type entry struct {
	config
	grants []Grant
	db     DB        // where transactions begin; nil for a transaction of the application
	asked  time.Time // when the remaining validity was read; waiting counts from then
	until  time.Time // when the transaction must have ended; zero if it has no limit
	limit  time.Time // the earliest time at which the server ends it for that; a little before until
	xid    uint64    // of the transaction; 0 before it has entered
	epoch  int64     // of the server that assigned xid

	conn     DB          // of db, from acquire to release; nil for a transaction of the application
	pg       *pgx.Conn   // of conn
	giveBack func()      // gives conn back; called by release
	overdue  *time.Timer // set by watch
}

func newEntry(db DB, grant Grant, opts []Option) (*entry, error) {
	e := &entry{grants: flatten(grant)}
	e.db = e.with(db, opts)
	err := check(e.grants)
	if err == nil && !e.sealing {
		err = checkEnds(e.grants)
	}
	if e.txOptions.BeginQuery+e.txOptions.CommitQuery != "" {
		err = cmp.Or(err, errors.New("fencedb: nothing was written: BeginQuery and CommitQuery of pgx.TxOptions are not for fenced transactions; leave them empty"))
	}
	return e, err
}

// The statements that enter. enterFirst is for transactions of this package, right after BEGIN.
// enterOne and enterAll are for transactions of the application, which may have entered before, and
// for several grants. Each returns a text, which is cheaper than two columns: its first number is
// the transaction id, its last the epoch. enterFirst contains fencedb.reenter, which Postgres
// inlines: it does what enter does for a token that has entered before, where no other transaction
// is in the way. $6 says whether the transaction may wait for its client, which needs a limit of
// its own.
const (
	enterFirst = `SELECT coalesce((SELECT r FROM fencedb.reenter($1::pg_catalog.text, $2::bigint, $3::pg_catalog.uuid, $4::bigint, $6::boolean) r),` +
		` fencedb.enter($1::pg_catalog.text, $2::bigint, $3::pg_catalog.uuid, $4::bigint, $5::bigint, true, $6::boolean)::pg_catalog.text)`
	enterOne = `SELECT fencedb.enter($1::pg_catalog.text, $2::bigint, $3::pg_catalog.uuid, $4::bigint, $5::bigint)::pg_catalog.text`
	enterAll = `SELECT fencedb.enter_all($1::pg_catalog.text[], $2::bigint[], $3::pg_catalog.uuid[], $4::bigint, $5::bigint)::pg_catalog.text`
)

// admission reads the answer to one of these statements. It does so even if a later answer was lost
// (err): then the outcome of the transaction id can be asked.
func (e *entry) admission(answer []byte, err error) error {
	if len(answer) == 0 {
		return cmp.Or(err, pgx.ErrNoRows)
	}
	answer = bytes.Trim(answer, "()")
	var noXID, noEpoch error
	e.xid, noXID = strconv.ParseUint(string(answer[:max(0, bytes.IndexAny(answer, " ,"))]), 10, 64)
	e.epoch, noEpoch = strconv.ParseInt(string(answer[bytes.LastIndexAny(answer, " ,")+1:]), 10, 64)
	return cmp.Or(err, noXID, noEpoch)
}

// batch returns the batch that begins the transaction: BEGIN (unless the batch is the transaction),
// enter, and copies of the queries. They are copies because pgx notes on each query to which
// connection it was sent.
func (e *entry) batch(ctx context.Context, queries []*pgx.QueuedQuery, implicit bool) (*pgx.Batch, error) {
	sql, args, err := e.query(ctx)
	if err != nil {
		return nil, err
	}
	if sql == enterOne {
		sql, args = enterFirst, append(args, !implicit)
	}
	b := &pgx.Batch{QueuedQueries: make([]*pgx.QueuedQuery, 0, len(queries)+2)} // and BEGIN and enter
	if !implicit {
		b.BeginTx(e.txOptions)
	}
	b.Queue(sql, args...)
	own := make([]pgx.QueuedQuery, len(queries))
	for i, query := range queries {
		own[i] = *query
		b.QueuedQueries = append(b.QueuedQueries, &own[i])
	}
	return b, nil
}

// sealTries is how often a transaction is sent at most if it is refused because its token was not
// sealed.
const sealTries = 3

// open begins the transaction: it sends batch in one round trip (but see send). The results that it
// returns begin with those of the queries after enter. On error the results are closed, and nil if
// nothing was sent.
//
// Above READ COMMITTED the server refuses a token that has not entered yet. Then open seals the
// token and sends everything again; the server has skipped the rest of the first batch. If a newer
// token enters meanwhile, the second try is refused too, and the next seal finds that the grant is
// stale. open sends the batch again even if the seal failed, so that the transaction is open and
// refuses everything, as after any other refusal.
func (e *entry) open(ctx context.Context, queries []*pgx.QueuedQuery,
	implicit bool) (results pgx.BatchResults, err error) {
	var sealErr error
	for tries := 1; ; tries++ {
		b, err := e.batch(ctx, queries, implicit)
		if err != nil { // if the seal took what was left of the lease, it says why
			return results, cmp.Or(sealErr, err)
		}
		e.watch()
		if results, err = e.send(ctx, b, implicit); err != nil {
			return nil, err
		}
		err = e.entered(results, implicit)
		if err != nil {
			if over := (*rejection)(nil); errors.As(err, &over) { // pgx wraps it in a long text about encoding
				err = over
			}
			for _, query := range b.QueuedQueries {
				query.Fn = nil // it has no result
			}
			_ = results.Close() // fails as before
		}
		switch {
		case err == nil || answered(err).code != codeSerializationFailure:
			return results, err
		case sealErr != nil || tries == sealTries:
			return results, cmp.Or(sealErr, err)
		}
		e.rollback(ctx, results)
		sealErr = Seal(ctx, With(e.conn, TxOptions(e.txOptions)), All(e.grants...))
		if e.lost() {
			return results, noted(errLostSealing, sealErr)
		}
	}
}

var errLostSealing = errors.New("fencedb: nothing was written: the connection was lost when the token was sealed")

// send sends a batch of open. In the simple protocol pgx makes one string of a batch. A balancer
// that looks at the first statement of a string, as Pgpool does, would then not see the
// transaction, and send its reads to standbys. So there BEGIN goes first, alone.
func (e *entry) send(ctx context.Context, b *pgx.Batch, implicit bool) (pgx.BatchResults, error) {
	if implicit || !usesStrings(e.pg) {
		return e.conn.SendBatch(ctx, b), nil
	}
	tx, err := e.conn.BeginTx(ctx, e.txOptions)
	if err != nil {
		if e.overtime(answered(err).code, e.lost()) {
			err = e.timeOver(err)
		}
		return nil, err
	}
	return begunAlone{tx.SendBatch(ctx, &pgx.Batch{QueuedQueries: b.QueuedQueries[1:]}), tx}, nil
}

// begunAlone are the results of a batch whose first query, BEGIN, was sent alone and has begun tx.
type begunAlone struct {
	pgx.BatchResults
	tx pgx.Tx
}

func (b begunAlone) Tx() pgx.Tx { return b.tx }

// usesStrings reports whether a connection is set to the simple protocol. It keeps the answer in
// CustomData, because Config copies everything.
func usesStrings(conn *pgx.Conn) bool {
	const key = "fencedb: simple protocol"
	noted := conn.PgConn().CustomData()
	simple, known := noted[key].(bool)
	if !known {
		simple = conn.Config().DefaultQueryExecMode == pgx.QueryExecModeSimpleProtocol
		noted[key] = simple
	}
	return simple
}

// entered reads the answers to BEGIN and enter.
func (e *entry) entered(results pgx.BatchResults, implicit bool) error {
	if _, alone := results.(begunAlone); !implicit && !alone {
		if _, err := results.Exec(); err != nil {
			return err
		}
	}
	rows, err := results.Query()
	if err != nil {
		return err
	}
	answer := make([]byte, 0, 128)
	if rows.Next() {
		answer = append(answer, rows.RawValues()[0]...)
	}
	rows.Close()
	return e.admission(answer, rows.Err())
}

// rollback rolls back the transaction of a batch in which a statement failed; the server has
// skipped COMMIT.
func (e *entry) rollback(ctx context.Context, results pgx.BatchResults) {
	ctx, cancel := detached(ctx)
	defer cancel()
	if tx := results.Tx(); tx != nil {
		_ = tx.Rollback(ctx)
	}
}

// query returns the statement that enters, with its arguments, for a transaction of the
// application.
func (e *entry) query(ctx context.Context) (sql string, args []any, err error) {
	if _, err := e.remaining(); err != nil {
		return "", nil, err
	}
	if len(e.grants) == 1 {
		g := e.grants[0]
		id := pgtype.UUID{Bytes: g.LeaseID(), Valid: true}
		args = append(make([]any, 0, 6), g.Resource(), g.Token(), id, timeLeft{e}, e.patience(ctx))
		return enterOne, args, nil
	}
	return enterAll, []any{
		e.array(func(g Grant) any { return g.Resource() }),
		e.array(func(g Grant) any { return g.Token() }),
		e.array(func(g Grant) any { return g.LeaseID() }),
		timeLeft{e}, e.patience(ctx),
	}, nil
}

var arrayEscapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// array returns a property of the grants as the text of a Postgres array, because not every driver
// takes a slice.
func (e *entry) array(of func(Grant) any) string {
	quoted := make([]string, len(e.grants))
	for i, g := range e.grants {
		quoted[i] = `"` + arrayEscapes.Replace(fmt.Sprint(of(g))) + `"`
	}
	return "{" + strings.Join(quoted, ",") + "}"
}

// patience returns until when the server may wait for the fence, or nil for as long as the
// transaction may last. If ctx has a deadline, that is a little before it: the answer of the server
// names the blockers and leaves the connection usable, the end of ctx does neither.
func (e *entry) patience(ctx context.Context) any {
	var until time.Time
	if deadline, ok := ctx.Deadline(); ok {
		until = deadline.Add(-min(time.Until(deadline)/5, 500*time.Millisecond))
	}
	if valid, _ := validUntil(e.grants); e.timeout > 0 && !valid.IsZero() && (until.IsZero() || valid.Before(until)) {
		until = valid // the transaction may last longer
	}
	if until.IsZero() {
		return nil
	}
	return moment(until)
}

// moment is an argument: the time until then in whole milliseconds, computed when the argument is
// encoded. pgx prepares the statements after enter before that, and may wait for locks on their
// tables.
type moment time.Time

func (m moment) Value() (driver.Value, error) {
	return max(0, time.Until(time.Time(m)).Milliseconds()), nil
}

// timeLeft is an argument: the remaining time, computed when it is encoded, like moment. It may be
// more than before if the lease was renewed.
type timeLeft struct{ *entry }

func (left timeLeft) Value() (driver.Value, error) {
	ms, err := left.remaining()
	left.watch()
	return ms, err
}

// roundings is how often the server rounds down to a whole millisecond before it sets its limits:
// the time left when enter calls admitted, the time that the transaction has lasted behind the
// fence, and the time left then.
const roundings = 3

// remaining is the time that the transaction has, in whole milliseconds, or nil for no limit. The
// server's limits are one part in 256 shorter (fencedb.admitted), and it starts to count later than
// this process. The fence does not depend on either.
func (e *entry) remaining() (ms driver.Value, err error) {
	e.asked = time.Now()
	e.until, _ = validUntil(e.grants)
	if !e.until.IsZero() && e.until.Sub(e.asked) < time.Millisecond {
		return nil, leaseOver(e.grants, fmt.Errorf("its validity ended %v ago", e.asked.Sub(e.until).Round(time.Millisecond)))
	}
	if e.timeout > 0 {
		e.until = e.asked.Add(e.timeout)
	}
	if e.until.IsZero() {
		return nil, nil
	}
	left := min(max(1, e.until.Sub(e.asked).Milliseconds()), math.MaxInt32) // Postgres keeps time limits in 32 bits
	e.until = e.asked.Add(time.Duration(left) * time.Millisecond)
	e.limit = e.until.Add(-time.Duration(left/256+roundings) * time.Millisecond)
	return left, nil
}

// overdueTime is how long after the end of a transaction's time an answer is awaited. The server
// ends the transaction at that time and says so. If no answer comes, a network has dropped the
// connection in silence.
const overdueTime = askTime / 2

var errNotSealed = errors.New("fencedb: the token was not sealed: no connection came free while its lease was valid")

// whileValid calls wait, which gets a connection, with a context that ends with the lease: a later
// connection is of no use. If the lease is renewed meanwhile, the wait goes on; otherwise a busy
// pool would look like a lost lease.
func (e *entry) whileValid(ctx context.Context, wait func(context.Context) error) error {
	if _, err := e.remaining(); err != nil {
		return err
	}
	until, _ := validUntil(e.grants)
	if until.IsZero() {
		return wait(ctx)
	}
	bounded, cancel := context.WithCancel(ctx)
	var timer *time.Timer
	timer = time.AfterFunc(math.MaxInt64, func() {
		until, _ := validUntil(e.grants)
		if left := time.Until(until); left > 0 {
			timer.Reset(left)
			return
		}
		cancel()
	})
	timer.Reset(time.Until(until))
	err := wait(bounded)
	// The context of a seal ends with its lease.
	over := bounded.Err() != nil && (ctx.Err() == nil || e.sealing && !time.Now().Before(e.limit))
	timer.Stop()
	cancel()
	if err != nil && over && e.sealing { // not ErrLeaseOver: this says nothing about other holders
		return fmt.Errorf("%w: %w (%v)", errNotSealed, context.DeadlineExceeded, err)
	}
	if err != nil && over {
		return leaseOver(e.grants, fmt.Errorf("no connection came free while it was valid: %w", err))
	}
	return err
}

func (e *entry) acquire(ctx context.Context) error {
	var conn DB
	var release func()
	err := e.whileValid(ctx, func(ctx context.Context) (err error) {
		conn, release, err = acquire(ctx, e.db)
		return err
	})
	if err != nil {
		return err
	}
	if err := free(conn); err != nil {
		release()
		return err
	}
	e.conn, e.pg, e.giveBack = conn, pgxConn(conn), release
	return nil
}

// free refuses a connection on which no transaction can begin.
func free(conn DB) error {
	switch pg := pgxConn(conn); {
	case pg == nil:
		return fmt.Errorf("fencedb: nothing was written: a %T does not show its connection; use the *pgxpool.Pool, *pgxpool.Conn or *pgx.Conn in it", conn)
	case pg.IsClosed():
		return errors.New("fencedb: nothing was written: the connection is closed")
	case pg.PgConn().TxStatus() != 'I':
		return errors.New("fencedb: nothing was written: the connection is in a transaction already; use Enter in that")
	}
	return nil
}

// release gives the connection back, if there is one. Calling it again does nothing.
func (e *entry) release() {
	if e.giveBack != nil {
		e.unwatch()
		abandon(e.pg)
		e.giveBack()
		e.giveBack = nil
	}
}

func (e *entry) lost() bool { return e.pg.IsClosed() }

// server asks on the connection of the transaction, since no other may be free. If that connection
// is lost, perhaps by the question itself, server gives it back first, so that a full pool can
// replace it, and asks on another.
func (e *entry) server(ctx context.Context, dest any, query string, args ...any) (noticed bool, err error) {
	if e.giveBack != nil && !e.lost() {
		own, cancel := half(ctx)
		defer cancel()
		if noticed, err = askOn(e.conn)(own, dest, query, args...); !e.lost() {
			return noticed, err
		}
	}
	e.release()
	return askOn(e.db)(ctx, dest, query, args...)
}

// watch closes the connection when an answer is overdue, which ends every wait on it. A deadline of
// the net.Conn would not do: pgx sets and resets that deadline for the contexts of statements.
func (e *entry) watch() {
	if e.until.IsZero() || e.pg == nil {
		return
	}
	left := time.Until(e.until) + overdueTime
	if e.overdue != nil { // was set with another limit
		e.overdue.Reset(left)
		return
	}
	wire := e.pg.PgConn().Conn()
	e.overdue = time.AfterFunc(left, func() { _ = wire.Close() })
}

// unwatch stops the timer of watch. If the timer has fired already, it closes the connection for
// good.
func (e *entry) unwatch() {
	if e.overdue != nil && !e.overdue.Stop() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = e.pg.Close(ctx)
	}
	e.overdue = nil
}

// untilOverdue bounds a statement on a connection of the caller, as watch bounds one on a
// connection of this package.
func (e *entry) untilOverdue(ctx context.Context) (context.Context, context.CancelFunc) {
	if e.until.IsZero() {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, e.until.Add(overdueTime))
}
