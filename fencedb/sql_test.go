package fencedb_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/faulty"
)

func (w *world) sqlDB() *sql.DB {
	db := stdlib.OpenDBFromPool(w.pool)
	w.Cleanup(func() { _ = db.Close() })
	return db
}

func (w *world) begin(db *sql.DB) *sql.Tx {
	w.Helper()
	tx, err := db.BeginTx(w.Context(), nil)
	require.NoError(w, err)
	w.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

const bookAnn = `INSERT INTO bookings (id, table_id, guest) VALUES (1, 12, 'ann')`

func TestEnterSQLJoinsAnOpenTransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tx := w.begin(w.sqlDB())

	require.NoError(t, enterSQL(t.Context(), tx, grant("table:12", 41)))
	_, err := tx.Exec(bookAnn)
	require.NoError(t, err)
	require.NoError(t, tx.Commit())

	require.Equal(t, []string{"ann"}, w.guests())
	require.EqualValues(t, 41, w.fence("table:12"))
}

func TestEnterSQLReturnsTheErrorsOfEnter(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	db := w.sqlDB()
	require.NoError(t, fencedb.Seal(t.Context(), w.pool, grant("table:12", 42)))

	err := enterSQL(t.Context(), w.begin(db), grant("table:12", 41))
	var stale *fencedb.StaleError
	require.ErrorAs(t, err, &stale)
	require.Equal(t, "table:12", stale.Resource)
	require.EqualValues(t, 41, stale.Token)
	require.EqualValues(t, 42, stale.Stored)

	over := enterSQL(t.Context(), w.begin(db), grantFor("table:12", 43, -time.Second))
	require.ErrorIs(t, over, fencedb.ErrLeaseOver)
	require.Equal(t, 1, strings.Count(over.Error(), "the lease is over"), "%v", over)
	require.ErrorIs(t, enterSQL(t.Context(), nil, grant("", 43)), fencedb.ErrInvalidGrant)
	require.ErrorContains(t, enterSQL(t.Context(), nil, grant("table:12", 43)), "the transaction is nil")
	require.ErrorContains(t, enterSQL(t.Context(), (*sql.Tx)(nil), grant("table:12", 43)), "the transaction is nil")
	for _, none := range []pgx.Tx{nil, (*pgxpool.Tx)(nil)} {
		_, err := fencedb.Enter(t.Context(), none, grant("table:12", 43))
		require.ErrorContains(t, err, "the transaction is nil")
	}

	tx := w.begin(db)
	require.NoError(t, tx.Rollback())
	require.ErrorIs(t, enterSQL(t.Context(), tx, grant("table:12", 43)), sql.ErrTxDone)
	require.EqualValues(t, 42, w.fence("table:12"))
}

func TestEnterSQLIsBusyWhileAnotherHolderHasTheFence(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	db := w.sqlDB()
	require.NoError(t, enterSQL(t.Context(), w.begin(db), grant("table:12", 41)))

	err := enterSQL(t.Context(), w.begin(db), grantFor("table:12", 42, 3*time.Second))

	require.ErrorIs(t, err, fencedb.ErrBusy)
}

func TestEnterSQLStopsWaitingWithItsContext(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	db := w.sqlDB()
	require.NoError(t, enterSQL(t.Context(), w.begin(db), grant("table:12", 41)))
	enough := errors.New("enough")

	tx := w.begin(db)
	var pid uint32
	require.NoError(t, tx.QueryRow(`SELECT pg_backend_pid()`).Scan(&pid))
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	entered := make(chan error, 1)
	go func() { entered <- enterSQL(ctx, tx, grant("table:12", 42)) }()
	w.awaitBlocked(pid)
	cancel(enough)

	err := received(t, entered)
	require.ErrorIs(t, err, enough)
	require.NotErrorIs(t, err, fencedb.ErrLeaseOver, "the grant has no end")
}

// brokenTx is a handle whose connection breaks after the time that its statement took.
type brokenTx struct{ after time.Duration }

func (tx brokenTx) QueryContext(context.Context, string, ...any) (*sql.Rows, error) {
	time.Sleep(tx.after)
	return nil, driver.ErrBadConn
}

func TestEnterSQLSaysWhenTheLeaseEndedWithTheConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		err := enterSQL(t.Context(), brokenTx{after: 2 * time.Second}, grantFor("table:12", 41, time.Second))
		require.ErrorIs(t, err, fencedb.ErrLeaseOver)
		require.ErrorIs(t, err, driver.ErrBadConn)

		err = enterSQL(t.Context(), brokenTx{after: time.Second}, grantFor("table:12", 41, time.Minute))
		require.ErrorIs(t, err, driver.ErrBadConn)
		require.NotErrorIs(t, err, fencedb.ErrLeaseOver)
	})
}

func TestEnterSQLRefusesAHandleThatIsInNoTransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	db := w.sqlDB()
	conn, err := db.Conn(t.Context())
	require.NoError(t, err)
	defer conn.Close()

	for i, handle := range []fencedb.SQLTx{db, conn} {
		err := enterSQL(t.Context(), handle, grant("table:12", int64(41+i)))
		require.EqualError(t, err, fmt.Sprintf("fencedb: this %T is not in a transaction, so the fence was given back at once; begin a transaction and enter in it", handle), "no connection was lost")
	}

	_, err = conn.ExecContext(t.Context(), `BEGIN`)
	require.NoError(t, err)
	require.NoError(t, enterSQL(t.Context(), conn, grant("table:12", 43)))
	_, err = conn.ExecContext(t.Context(), bookAnn+`; COMMIT`)
	require.NoError(t, err)
	require.Equal(t, []string{"ann"}, w.guests())
}

func TestEnterSQLBehindASavepointIsUndoneWithIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tx := w.begin(w.sqlDB())
	g := grant("table:12", 41)
	run := func(sql string) error {
		_, err := tx.Exec(sql)
		return fencedb.Explain(err)
	}
	const write = `INSERT INTO bookings (id, table_id, guest) VALUES (1, 12, 'ann')`
	require.NoError(t, run(`SAVEPOINT a`))
	require.NoError(t, enterSQL(t.Context(), tx, g))
	require.NoError(t, run(write))
	require.NoError(t, run(`ROLLBACK TO a`))
	require.ErrorIs(t, run(write), fencedb.ErrNoToken)
	require.NoError(t, run(`ROLLBACK TO a`))
	require.NoError(t, enterSQL(t.Context(), tx, g))
	require.NoError(t, run(write))
	require.NoError(t, tx.Commit())
	require.Equal(t, []string{"ann"}, w.guests())
}

func TestEnterSQLEntersSeveralResourcesOfEveryShape(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	names := []string{`plain`, `with "quotes"`, `back\slash`, `{brace,comma}`, `NULL`, ` space `, "ünï:🎉\n", `'`, `\"`}
	var grants []fencedb.Grant
	for i, name := range names {
		grants = append(grants, grant(name, int64(1<<52+i)))
	}
	tx := w.begin(w.sqlDB())

	require.NoError(t, enterSQL(t.Context(), tx, fencedb.All(grants...)))
	require.NoError(t, tx.Commit())

	for i, name := range names {
		require.EqualValues(t, 1<<52+i, w.fence(name), "%q", name)
	}
}

func TestTimeoutBoundsAnSQLTransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tx := w.begin(w.sqlDB())

	require.NoError(t, enterSQL(t.Context(), tx, grant("table:12", 41), fencedb.Timeout(7*time.Second)))

	var timeout string
	require.NoError(t, tx.QueryRow(`SHOW statement_timeout`).Scan(&timeout))
	require.Regexp(t, `^(7s|6\d\d\dms)$`, timeout)
}

func TestExplainTypesTheErrorsOfOtherWrites(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	db := w.sqlDB()

	_, err := db.Exec(bookAnn)
	require.ErrorIs(t, fencedb.Explain(err), fencedb.ErrNoToken)
	require.ErrorAs(t, fencedb.Explain(err), new(*pgconn.PgError), "the driver's error stays in the chain")

	tx := w.begin(db)
	require.NoError(t, enterSQL(t.Context(), tx, grant("table:13", 41)))
	_, err = tx.Exec(bookAnn)
	var wrong *fencedb.WrongResourceError
	require.ErrorAs(t, fencedb.Explain(fmt.Errorf("wrapped by the application: %w", err)), &wrong)
	require.Equal(t, "table:12", wrong.Resource)
	require.Equal(t, []string{"table:13"}, wrong.Entered)

	require.NoError(t, fencedb.Explain(nil))
	other := errors.New("something else")
	require.Equal(t, other, fencedb.Explain(other))
	require.Equal(t, wrong, fencedb.Explain(wrong), "explained once")
}

// foreignError is what other drivers give: the fields by the letters of the protocol.
type foreignError struct{ code, detail string }

func (e foreignError) Error() string { return "refused" }
func (e foreignError) Get(field byte) string {
	return map[byte]string{'C': e.code, 'D': e.detail}[field]
}

// bareError is a driver's error that tells the SQLSTATE only.
type bareError struct{ error }

func (bareError) SQLState() string { return "FN001" }

func TestExplainReadsTheErrorsOfOtherDrivers(t *testing.T) {
	t.Parallel()

	var stale *fencedb.StaleError
	require.ErrorAs(t, fencedb.Explain(foreignError{"FN001", `{"resource": "a", "token": 41, "stored": 42}`}), &stale)
	require.Equal(t, "a", stale.Resource)
	require.EqualValues(t, 42, stale.Stored)

	require.ErrorAs(t, fencedb.Explain(bareError{errors.New("refused")}), &stale)
	require.Zero(t, stale.Stored, "the code alone decides what the error is")

	for code, sentinel := range map[string]error{
		"FN002": fencedb.ErrNoToken, "FN003": fencedb.ErrWrongResource, "FN004": fencedb.ErrLeaseOver,
	} {
		require.ErrorIs(t, fencedb.Explain(foreignError{code: code}), sentinel)
	}
}

// The server ends a session that stays idle beyond the validity that it entered with. What the
// driver then says names no lease.
func TestExplainTellsTheEndOfAnSQLTransactionByTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tx := w.begin(w.sqlDB())
	var pid uint32
	require.NoError(t, tx.QueryRow(`SELECT pg_backend_pid()`).Scan(&pid))
	require.NoError(t, enterSQL(t.Context(), tx, grantFor("table:12", 41, 3*time.Second)))
	awaitEnd(w, pid)

	_, err := tx.Exec(`SELECT 1`)

	require.ErrorIs(t, fencedb.Explain(err), fencedb.ErrTooLong)
}

func inSQL(query string, args ...any) func(*sql.Tx) error {
	return func(tx *sql.Tx) error {
		_, err := tx.Exec(query, args...)
		return err
	}
}

func TestTxSQLCommitsOrWritesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	db := w.sqlDB()
	mine := errors.New("mine")

	require.NoError(t, fencedb.TxSQL(t.Context(), db, grant("table:12", 41), inSQL(bookAnn)))
	require.Equal(t, []string{"ann"}, w.guests())
	require.NoError(t, fencedb.Seal(t.Context(), w.pool, grant("table:12", 42)))

	second := inSQL(`INSERT INTO bookings (id, table_id, guest) VALUES (2, 12, 'bob')`)
	g := grant("table:12", 43)
	for name, c := range map[string]struct {
		grant fencedb.Grant
		fn    func(*sql.Tx) error
		opts  []fencedb.Option
		want  error
	}{
		"stale":                 {grant("table:12", 41), second, nil, fencedb.ErrStale},
		"another resource":      {grant("table:13", 1), second, nil, fencedb.ErrWrongResource},
		"the lease is over":     {grantFor("table:12", 43, -time.Second), second, nil, fencedb.ErrLeaseOver},
		"no grant":              {fencedb.All[fencedb.Grant](), second, nil, fencedb.ErrInvalidGrant},
		"its own error":         {g, func(tx *sql.Tx) error { return errors.Join(second(tx), mine) }, nil, mine},
		"it rolls back itself":  {g, func(tx *sql.Tx) error { return errors.Join(second(tx), tx.Rollback()) }, nil, sql.ErrTxDone},
		"ROLLBACK by statement": {g, func(tx *sql.Tx) error { return errors.Join(second(tx), inSQL(`ROLLBACK`)(tx)) }, nil, fencedb.ErrTxEnded},
		"it lasts too long":     {grantFor("table:12", 43, time.Minute), func(tx *sql.Tx) error { return errors.Join(second(tx), inSQL(`SELECT pg_sleep(20)`)(tx)) }, []fencedb.Option{fencedb.Timeout(time.Second)}, fencedb.ErrTooLong},
	} {
		require.ErrorIs(t, fencedb.TxSQL(t.Context(), db, c.grant, c.fn, c.opts...), c.want, name)
		require.Equal(t, []string{"ann"}, w.guests(), name)
	}
	require.PanicsWithValue(t, "mine", func() {
		_ = fencedb.TxSQL(t.Context(), db, g, func(tx *sql.Tx) error { _ = second(tx); panic("mine") })
	})
	require.Equal(t, []string{"ann"}, w.guests())
	require.NoError(t, fencedb.TxSQL(t.Context(), db, g, second))
	require.Eventually(t, func() bool { return db.Stats().InUse == 0 }, time.Minute, time.Millisecond)
}

func TestTxSQLTakesTheAccessMode(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pool := w.readingPool()
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = db.Close() })
	for i, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} { // these seal first
		g, insert := grant("table:12", int64(41+i)), inSQL(`INSERT INTO bookings (id, table_id, guest) VALUES ($1, 12, 'ann')`, i)

		require.Error(t, fencedb.TxSQL(t.Context(), db, g, insert, fencedb.TxOptions(pgx.TxOptions{IsoLevel: level})))
		require.NoError(t, fencedb.TxSQL(t.Context(), db, g, insert,
			fencedb.TxOptions(pgx.TxOptions{IsoLevel: level, AccessMode: pgx.ReadWrite})), level)
	}
}

// database/sql rolls back by itself, and the connection is gone before anybody could ask on it.
func TestCancellingBetweenStatementsLeavesNoDoubt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	mine := errors.New("mine")

	err := fencedb.TxSQL(ctx, w.sqlDB(), grant("table:12", 41), func(tx *sql.Tx) error {
		require.NoError(t, inSQL(bookAnn)(tx))
		cancel()
		require.Eventually(t, func() bool { return errors.Is(inSQL(`SELECT 1`)(tx), sql.ErrTxDone) }, time.Minute, time.Millisecond)
		return mine
	})

	require.ErrorIs(t, err, mine)
	require.NotErrorIs(t, err, fencedb.ErrCommitUnknown)
	require.Empty(t, w.guests())
}

// Explain alone cannot know it: any statement_timeout, and any cancellation, ends a statement with
// 57014.
func TestTheOutcomeOfASlowStatementNamesTheLimitOfTheLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	db := w.sqlDB()
	tx := w.begin(db)
	entry, err := fencedb.EnterSQL(t.Context(), tx, grantFor("table:12", 41, 3*time.Second))
	require.NoError(t, err)

	_, err = tx.ExecContext(t.Context(), `SELECT pg_sleep(60)`)

	var pgErr *pgconn.PgError
	require.ErrorAs(t, err, &pgErr)
	require.Contains(t, []string{"57014", "25P03", "25P04"}, pgErr.Code, "whichever limit comes first: of the statement, of the wait for it, or from Postgres 17 on of the transaction")
	require.NotErrorIs(t, fencedb.Explain(err), fencedb.ErrLeaseOver)
	_ = tx.Rollback() // 25P04 has ended the session
	require.ErrorIs(t, entry.OutcomeSQL(t.Context(), db, err), fencedb.ErrLeaseOver)
}

// COMMIT itself is refused: the server has said so, and is not asked.
func TestACommitThatIsRefusedIsNoLostConnection(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`ALTER TABLE bookings ADD UNIQUE (guest) DEFERRABLE INITIALLY DEFERRED`)
	const twice = `INSERT INTO bookings (id, table_id, guest) SELECT i, 12, 'ann' FROM generate_series(1, 2) i`

	for way, err := range map[string]error{
		"TxSQL": fencedb.TxSQL(t.Context(), w.sqlDB(), grant("table:12", 41), inSQL(twice)),
		"Tx": fencedb.Tx(t.Context(), w.pool, grant("table:12", 42), func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), twice)
			return err
		}),
	} {
		var pgErr *pgconn.PgError
		require.ErrorAs(t, err, &pgErr, way)
		require.Equal(t, "23505", pgErr.Code, way)
		require.NotContains(t, err.Error(), "rolled back", "%s: what Postgres has said needs no asking", way)
	}
	require.Empty(t, w.guests())
}

// Commit of database/sql closes them. The question before it finds the connection busy.
func TestTxSQLNamesRowsThatWereLeftOpen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)

	err := fencedb.TxSQL(t.Context(), w.sqlDB(), grant("table:12", 41), func(tx *sql.Tx) error {
		if _, err := tx.Exec(bookAnn); err != nil {
			return err
		}
		_, err := tx.Query(`SELECT guest FROM bookings`)
		return err
	})

	require.ErrorContains(t, err, "the function left rows open")
	require.NotErrorIs(t, err, driver.ErrBadConn, "a mistake of the program, and no outage")
	require.Empty(t, w.guests())
}

func TestTxSQLTellsWhatAStatementHasCommitted(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*sql.Tx) error{
		"COMMIT":                          inSQL(`COMMIT`),
		"COMMIT AND CHAIN":                inSQL(`COMMIT AND CHAIN`),
		"COMMIT; BEGIN":                   inSQL(`COMMIT; BEGIN`),
		"tx.Commit":                       (*sql.Tx).Commit,
		"COMMIT, and an error of its own": func(tx *sql.Tx) error { return errors.Join(inSQL(`COMMIT`)(tx), errors.New("mine")) },
		"COMMIT, and a failure behind it": func(tx *sql.Tx) error { return errors.Join(inSQL(`COMMIT`)(tx), inSQL(`SELECT 1/0`)(tx)) },
		"COMMIT; BEGIN, and a failure":    func(tx *sql.Tx) error { return errors.Join(inSQL(`COMMIT; BEGIN`)(tx), inSQL(`SELECT 1/0`)(tx)) },
	} {
		w := newWorld(t)
		db := w.sqlDB()
		db.SetMaxOpenConns(1)
		err := fencedb.TxSQL(t.Context(), db, grant("table:12", 41), func(tx *sql.Tx) error {
			return errors.Join(inSQL(bookAnn)(tx), end(tx))
		})
		var ended *fencedb.TxEndedError
		require.ErrorAs(t, err, &ended, name)
		require.Equal(t, "committed", ended.Outcome, name)
		require.Zero(t, db.Stats().WaitCount, "%s: asked on another connection", name)
		require.Equal(t, []string{"ann"}, w.guests(), name)
	}
}

// pgx reads from a lost connection for 15 seconds more, which keeps its place in the pool. That
// database/sql has closed it already, because the context has ended, must not make a difference.
func TestALostConnectionThatDatabaseSQLHasClosedIsGivenUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pool, proxy := w.behindProxy() // one connection
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	err := fencedb.TxSQL(ctx, db, grant("table:12", 41), func(tx *sql.Tx) error {
		proxy.AfterBytes(0, faulty.Silence)
		late, cancelLate := context.WithTimeout(ctx, time.Minute)
		go func() {
			defer cancelLate()
			assert.Eventually(t, proxy.Fired, time.Minute, time.Millisecond) // or the next connection would fall silent
		}()
		_, err := tx.ExecContext(late, bookAnn)
		require.Error(t, err)
		cancel()
		require.Eventually(t, func() bool { return db.Stats().OpenConnections == 0 }, time.Minute, time.Millisecond)
		return err
	})

	require.ErrorContains(t, err, `got "in progress"`, "the server was asked, and knows of no end of the connection yet")
}

func TestTxSQLSealsAboveReadCommitted(t *testing.T) {
	t.Parallel()
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		w := newWorld(t)
		var got string
		err := fencedb.TxSQL(t.Context(), w.sqlDB(), grant("table:12", 41), func(tx *sql.Tx) error {
			return errors.Join(inSQL(bookAnn)(tx), tx.QueryRow(`SHOW transaction_isolation`).Scan(&got))
		}, fencedb.TxOptions(pgx.TxOptions{IsoLevel: level}))
		require.NoError(t, err, level)
		require.Equal(t, string(level), got)
		require.Equal(t, []string{"ann"}, w.guests())
	}
	w := newWorld(t)
	for _, o := range []pgx.TxOptions{{DeferrableMode: pgx.Deferrable}, {IsoLevel: "chaos"}} {
		require.ErrorContains(t, fencedb.TxSQL(t.Context(), w.sqlDB(), grant("table:12", 41), inSQL(bookAnn), fencedb.TxOptions(o)), "database/sql takes no other TxOptions")
	}
	require.Empty(t, w.guests())
}

func TestTxSQLRunsItsFunctionOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	runs := 0
	err := fencedb.TxSQL(t.Context(), w.sqlDB(), grant("table:12", 41), func(tx *sql.Tx) error {
		runs++
		return enterSQL(t.Context(), tx, grant("table:13", 1)) // not sealed either
	}, fencedb.TxOptions(pgx.TxOptions{IsoLevel: pgx.RepeatableRead}))
	require.ErrorIs(t, err, fencedb.ErrUnsealed)
	require.Equal(t, 1, runs)
}
