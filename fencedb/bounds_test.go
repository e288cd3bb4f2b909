package fencedb_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

// S7. The holder stops in the middle of its transaction, as in a long GC pause, and keeps its
// connection open.
func TestAStoppedHolderDelaysTheNextByNoMoreThanItsLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const validity = 5 * time.Second
	stopped, resume := make(chan struct{}), make(chan struct{})
	zombie := make(chan error, 1)
	go func() {
		zombie <- fencedb.Tx(t.Context(), w.pool, grantFor("table:12", 41, validity), func(tx pgx.Tx) error {
			if err := book(t.Context(), tx, 12, "ann"); err != nil {
				return err
			}
			close(stopped)
			<-resume
			return nil
		})
	}()
	received(t, stopped)
	took := testenv.Stopwatch(t)

	err := fencedb.Tx(t.Context(), w.pool, grantFor("table:12", 42, 30*time.Second), func(tx pgx.Tx) error {
		return book(t.Context(), tx, 12, "ben")
	})

	require.NoError(t, err)
	require.Less(t, took(), 2*validity, "as long as a bound that counts twice")
	close(resume)
	require.ErrorIs(t, received(t, zombie), fencedb.ErrLeaseOver)
	require.Equal(t, []string{"ben"}, w.guests())
}

// S7, as far as Postgres goes: no time limit counts while it waits for the rows of a COPY or for
// its client to read a result, and before version 17 none while it waits for the rest of a batch. A
// little of a result is in buffers on the way, and while those fill, limits count; so that holder
// has a long one.
func TestAHolderThatStopsInTheMiddleOfARequest(t *testing.T) {
	t.Parallel()
	for stops, c := range map[string]struct {
		limit   time.Duration
		request []pgproto3.FrontendMessage
	}{
		"in a batch":                  {2 * time.Second, []pgproto3.FrontendMessage{&pgproto3.Parse{Query: `SELECT`}, &pgproto3.Flush{}}},
		"in a COPY":                   {2 * time.Second, []pgproto3.FrontendMessage{&pgproto3.Query{String: `COPY bookings FROM STDIN`}}},
		"before it has read a result": {time.Hour, []pgproto3.FrontendMessage{&pgproto3.Query{String: `SELECT repeat('x', 30000000)`}}},
	} {
		t.Run(stops, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			conn := w.conn()
			_, err := conn.Exec(t.Context(), fmt.Sprintf(`BEGIN; SELECT fencedb.enter('table:12', 41, gen_random_uuid(), %d)`, c.limit.Milliseconds()))
			require.NoError(t, err)
			for _, message := range c.request {
				conn.PgConn().Frontend().Send(message)
			}
			require.NoError(t, conn.PgConn().Frontend().Flush())

			err = fencedb.Seal(t.Context(), w.pool, grantFor("table:12", 42, 5*time.Second))

			if stops == "in a batch" && conn.PgConn().ParameterStatus("server_version") >= "17" {
				require.NoError(t, err)
				return
			}
			var busy *fencedb.BusyError
			require.ErrorAs(t, err, &busy)
			require.Len(t, busy.Blockers, 1)
			require.EqualValues(t, conn.PgConn().PID(), busy.Blockers[0].PID)
			require.Equal(t, "active, waits for its client", busy.Blockers[0].State)
			require.NoError(t, conn.PgConn().Conn().Close())
			require.NoError(t, fencedb.Seal(t.Context(), w.pool, grantFor("table:12", 43, 10*time.Second)))
		})
	}
}

func TestEnterInATransactionThatCouldNotBegin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)

	err := fencedb.Tx(t.Context(), w.pool, grantFor("table:12", 41, -time.Second), func(tx pgx.Tx) error {
		return enter(t.Context(), tx, grant("table:13", 41))
	})

	require.ErrorIs(t, err, fencedb.ErrLeaseOver)
}

// Transactions of one lease share the fence, and a new one need not wait behind a newcomer who
// wants it alone. So they could keep it out for as long as they come; but they come for no longer
// than the lease is valid.
func TestAStreamOfTransactionsDelaysTheNextByNoMoreThanTheirLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const validity = 5 * time.Second
	old := grantFor("table:12", 41, validity)
	require.NoError(t, fencedb.Seal(t.Context(), w.pool, old))
	took := testenv.Stopwatch(t)
	ended := make(chan error)
	for range 3 {
		go func() {
			for {
				err := fencedb.Tx(t.Context(), w.pool, old, func(tx pgx.Tx) error { return book(t.Context(), tx, 12, "ann") })
				if err != nil {
					ended <- err
					return
				}
			}
		}()
	}

	require.NoError(t, fencedb.Seal(t.Context(), w.pool, grantFor("table:12", 42, 30*time.Second)))

	require.Less(t, took(), 2*validity, "as long as a bound that counts twice")
	for range 3 {
		err := received(t, ended)
		require.True(t, lease.IsLost(err), "%v", err) // busy where it had less than a millisecond to wait for the newcomer
	}
}

func TestAStatementEndsWithTheLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	start := time.Now()

	err := fencedb.Tx(t.Context(), w.pool, grantFor("table:12", 41, 300*time.Millisecond), func(tx pgx.Tx) error {
		if err := book(t.Context(), tx, 12, "ann"); err != nil {
			return err
		}
		_, err := tx.Exec(t.Context(), `SELECT pg_sleep(60)`)
		return err
	})

	require.ErrorIs(t, err, fencedb.ErrLeaseOver)
	require.Less(t, time.Since(start), 30*time.Second)
	require.Empty(t, w.guests())
}

func TestAContextThatEndsWithTheLeaseSaysSo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := grantFor("table:12", 41, 300*time.Millisecond)
	ctx, cancel := context.WithDeadline(t.Context(), g.(interface{ ValidUntil() time.Time }).ValidUntil())
	defer cancel()

	err := fencedb.Tx(ctx, w.pool, g, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `SELECT pg_sleep(60)`)
		return err
	})

	require.ErrorIs(t, err, fencedb.ErrLeaseOver, "whether the context or the server ended it")
}

func TestTimeoutReplacesTheRemainingValidity(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	timeout := func(opts ...fencedb.Option) (setting string) {
		err := fencedb.Tx(t.Context(), w.pool, grantFor("table:12", 41, time.Minute), func(tx pgx.Tx) error {
			return tx.QueryRow(t.Context(), `SHOW idle_in_transaction_session_timeout`).Scan(&setting)
		}, opts...)
		require.True(t, err == nil || setting != "", "%v", err)
		return setting
	}

	require.Regexp(t, `^5\d\d\d\dms$`, timeout())
	w.exec(`DELETE FROM fencedb.fences`)
	require.Regexp(t, `^358\d\d\d\dms$`, timeout(fencedb.Timeout(time.Hour)))
}

func TestATransactionThatOutlastsItsTimeoutIsNotALeaseThatIsOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, g := range map[string]fencedb.Grant{"a long lease": grantFor("table:12", 41, time.Hour), "no end": grant("table:13", 41)} {
		err := fencedb.Tx(t.Context(), w.pool, g, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `SELECT pg_sleep(60)`)
			return err
		}, fencedb.Timeout(500*time.Millisecond))

		require.ErrorIs(t, err, fencedb.ErrTooLong, name)
		require.NotErrorIs(t, err, fencedb.ErrLeaseOver, name)
	}
}

// holding is each way to write under a grant with a Timeout, on a connection, since a pool would
// look at the lease first.
func (w *world) holding(g fencedb.Grant, limit fencedb.Option) map[string]func() error {
	conn, db, insert := w.conn(), w.sqlDB(), &pgx.Batch{}
	insert.Queue(bookAnn)
	return map[string]func() error{
		"Tx": func() error {
			return fencedb.Tx(w.Context(), conn, g, func(tx pgx.Tx) error { return book(w.Context(), tx, 12, "ann") }, limit)
		},
		"SendBatch": func() error { return fencedb.SendBatch(w.Context(), conn, g, insert, limit) },
		"Exec": func() error {
			_, err := fencedb.Exec(w.Context(), fencedb.With(conn, limit), g, bookAnn)
			return err
		},
		"TxSQL":    func() error { return fencedb.TxSQL(w.Context(), db, g, inSQL(bookAnn), limit) },
		"EnterSQL": func() error { return enterSQL(w.Context(), w.begin(db), g, limit) },
		"Enter": func() error {
			return pgx.BeginFunc(w.Context(), conn, func(tx pgx.Tx) error { return enter(w.Context(), tx, g, limit) })
		},
	}
}

// A thousand fences are not entered in a millisecond.
func TestATimeoutThatEndsWhileFencesAreEnteredIsNotALeaseThatIsOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	grants := make([]fencedb.Grant, 1000)
	for i := range grants {
		grants[i] = grantFor(fmt.Sprintf("table:%d", i), 41, time.Hour)
	}

	for name, write := range w.holding(fencedb.All(grants...), fencedb.Timeout(time.Millisecond)) {
		err := write()
		require.ErrorIs(t, err, fencedb.ErrTooLong, name)
		require.NotErrorIs(t, err, fencedb.ErrLeaseOver, name)
	}
	require.Empty(t, w.guests())
}

// The settings go back with the transaction: a pooled connection must not carry them to its next
// user.
func TestTheBoundsEndWithTheTransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	conn := w.conn()

	_, err := fencedb.Exec(t.Context(), conn, grantFor("table:12", 41, time.Minute), `SELECT 1`)
	require.NoError(t, err)

	var lock, idle, entered string
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT current_setting('lock_timeout'),
		current_setting('idle_in_transaction_session_timeout'), current_setting('fencedb.entered')`).Scan(&lock, &idle, &entered))
	require.Equal(t, []string{"0", "0", ""}, []string{lock, idle, entered})
}

func TestAnExpiredGrantIsRefusedBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pool.Close()
	expired := grantFor("table:12", 41, -time.Second)

	err := fencedb.Tx(t.Context(), w.pool, expired, func(tx pgx.Tx) error {
		return book(t.Context(), tx, 12, "ann")
	})

	require.ErrorIs(t, err, fencedb.ErrLeaseOver)
	_, err = fencedb.Exec(t.Context(), w.pool, expired, `SELECT 1`)
	require.ErrorIs(t, err, fencedb.ErrLeaseOver)
	err = fencedb.Tx(t.Context(), w.pool, expired, func(tx pgx.Tx) error { return nil }, fencedb.Timeout(time.Hour))
	require.ErrorIs(t, err, fencedb.ErrLeaseOver, "Timeout is for transactions that begin within the lease")
}

// With Timeout the server would grant all of that time: nothing else stands between a lease that is
// over and a write.
func TestTimeoutBeginsNothingUnderALeaseThatIsOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, write := range w.holding(grantFor("table:12", 41, -time.Second), fencedb.Timeout(time.Hour)) {
		require.ErrorIs(t, write(), fencedb.ErrLeaseOver, name)
	}
	require.Empty(t, w.guests())
	require.Zero(t, w.fence("table:12"))
}

// renewed is the grant of a holder who renews its lease: it is always valid for a little longer.
type renewed struct {
	fencedb.Grant
	validity time.Duration
}

func (g renewed) ValidUntil() time.Time { return time.Now().Add(g.validity) }

// The server goes by what remained when the transaction entered. A lease that was renewed since is
// not over, and the error says so.
func TestATransactionThatOutlastsItsValidityIsNotALeaseThatIsOver(t *testing.T) {
	t.Parallel()
	const validity = 3 * time.Second
	for name, work := range map[string]func(w *world, tx pgx.Tx) error{
		"in a statement": func(w *world, tx pgx.Tx) error {
			_, err := tx.Exec(w.Context(), `SELECT pg_sleep(60)`)
			return err
		},
		"idle": func(w *world, tx pgx.Tx) error {
			awaitEnd(w, tx.Conn().PgConn().PID())
			return book(w.Context(), tx, 12, "ben")
		},
		"waiting for a lock": func(w *world, tx pgx.Tx) error {
			other, err := w.pool.Begin(w.Context())
			require.NoError(w, err)
			defer func() { _ = other.Rollback(context.Background()) }()
			_, err = other.Exec(w.Context(), `UPDATE seats SET id = 2`)
			require.NoError(w, err)
			_, err = tx.Exec(w.Context(), `UPDATE seats SET id = 3`)
			return err
		},
		"writing late": func(w *world, tx pgx.Tx) error {
			_, err := tx.Exec(w.Context(), `SELECT set_config(name, '0', true) FROM pg_settings WHERE name LIKE '%\_timeout' AND category LIKE 'Client%'`)
			if err != nil {
				return err
			}
			if _, err = tx.Exec(w.Context(), `SELECT pg_sleep($1)`, (validity + 10*time.Millisecond).Seconds()); err != nil {
				return err
			}
			return fencedb.Explain(book(w.Context(), tx, 12, "ben")) // as a transaction within this one does
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.exec(`CREATE TABLE seats AS SELECT 1 AS id`)

			err := fencedb.Tx(t.Context(), w.pool, renewed{grant("table:12", 41), validity}, func(tx pgx.Tx) error {
				if err := book(t.Context(), tx, 12, "ann"); err != nil {
					return err
				}
				return work(w, tx)
			})

			require.ErrorIs(t, err, fencedb.ErrTooLong)
			require.Equal(t, 1, strings.Count(err.Error(), fencedb.ErrTooLong.Error()), err)
			require.NotErrorIs(t, err, fencedb.ErrLeaseOver)
			require.Empty(t, w.guests())
		})
	}
}

// pgx prepares a statement before BEGIN, and waits for its table meanwhile. The other modes wait
// behind the fence.
func TestTheTimeForPreparingIsPartOfTheLease(t *testing.T) {
	t.Parallel()
	for _, mode := range queryModes[:3] {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			config := w.pool.Config().ConnConfig
			config.DefaultQueryExecMode = mode
			conn, err := pgx.ConnectConfig(t.Context(), config)
			require.NoError(t, err)
			t.Cleanup(func() { _ = conn.Close(context.Background()) })
			migration := w.locking("bookings")
			over := time.Now().Add(time.Minute)
			var server time.Time // when it ends the statement
			done := make(chan error, 1)
			go func() {
				const end = `SELECT statement_timestamp() + current_setting('statement_timeout')::interval FROM (SELECT count(*) FROM bookings) b`
				done <- fencedb.QueryRow(context.Background(), conn, fencedb.NewGrant("table:12", 41, uuid.New(), over), end).Scan(&server)
			}()
			w.awaitBlocked(conn.PgConn().PID())
			<-time.After(5 * time.Second)

			require.NoError(t, migration.Rollback(t.Context()))

			require.NoError(t, received(t, done))
			require.WithinDuration(t, over, server, 3*time.Second)
		})
	}

	w := newWorld(t)
	over := time.Now().Add(1500 * time.Millisecond)
	migration := w.locking("bookings")
	var all waiting
	for _, mode := range queryModes[:3] {
		for _, name := range []string{"Exec", "Query", "SendBatch", "Tx with Exec"} {
			pool, id := w.poolIn(mode), int(ids.Add(1))
			all.start(func() (judge func()) {
				_, err := writes[name](context.Background(), pool, fencedb.NewGrant(tableOf(id), 1, uuid.New(), over), id)
				return func() { require.ErrorIs(w, err, fencedb.ErrLeaseOver, "%s, %s", name, mode) }
			})
		}
	}
	<-time.After(time.Until(over.Add(10 * time.Millisecond)))
	require.NoError(t, migration.Rollback(t.Context()))
	all.judge()
	require.Empty(t, w.guests())
}

// locking is a transaction that has locked a table, as ALTER TABLE does.
func (w *world) locking(table string) pgx.Tx {
	w.Helper()
	tx, err := w.pool.Begin(w.Context())
	require.NoError(w, err)
	w.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	_, err = tx.Exec(w.Context(), `LOCK TABLE `+table)
	require.NoError(w, err)
	return tx
}

// What the function has met by itself is its own, however late it is; what the end of the lease has
// done to its connection or its context is the lease's. The server ends a transaction a little
// early, one part in 256: that is the end of the lease as well.
func TestAnErrorOfTheFunctionIsNotTheEndOfTheLease(t *testing.T) {
	t.Parallel()
	const validity = 4 * time.Second
	w := newWorld(t)
	mine := fmt.Errorf("mine: %w", context.DeadlineExceeded) // as of a call to another service
	type row = func(sql string, dest any) error
	fails := func(context.Context, row) error { return mine }
	statement := func(_ context.Context, row row) error { return row(`SELECT 1`, new(int)) }
	cut := func(_ context.Context, row row) error { return row(`SELECT 1 FROM pg_sleep(60)`, new(int)) }
	passOn := func(ctx context.Context, _ row) error { <-ctx.Done(); return ctx.Err() }
	nothing := func(context.Context, row) error { return nil }
	var all waiting
	for name, c := range map[string]struct {
		after   time.Duration // the beginning
		bounded bool          // the context ends with the lease
		then    func(ctx context.Context, row row) error
		own     bool
	}{
		"its own, in time":                  {0, false, fails, true},
		"its own":                           {validity, false, fails, true},
		"its own, overdue":                  {validity + asking/2, false, fails, true},
		"a statement behind the end":        {validity, false, statement, false},
		"a statement long behind the end":   {validity + asking/2, false, statement, false},
		"a statement that the end has cut":  {0, false, cut, false},
		"one that the context has cut":      {0, true, cut, false},
		"nothing":                           {validity, false, nothing, false},
		"nothing, overdue":                  {validity + asking/2, false, nothing, false},
		"nothing, after the context":        {validity, true, nothing, false},
		"the context's, ended by the lease": {0, true, passOn, false},
	} {
		for way, write := range ways {
			pool, id := w.poolIn(pgx.QueryExecModeExec), int(ids.Add(1))
			all.start(func() (judge func()) {
				over := time.Now().Add(validity)
				ctx := t.Context()
				if c.bounded {
					var cancel context.CancelFunc
					ctx, cancel = context.WithDeadline(ctx, over)
					defer cancel()
				}
				insert := fmt.Sprintf(`INSERT INTO bookings (id, table_id, guest) VALUES (%d, %[1]d, 'ann') RETURNING id`, id)

				g := fencedb.NewGrant(tableOf(id), 1, uuid.New(), over)
				err := write(ctx, pool, g, func(row func(string, any) error) error {
					if err := row(insert, new(int)); err != nil {
						return err
					}
					if c.after > 0 {
						const longer = 1500 * time.Millisecond // the server has ended it by then
						<-time.After(time.Until(over.Add(c.after - validity + longer)))
					}
					return c.then(ctx, row)
				})

				return func() {
					require.Equal(t, c.own, errors.Is(err, mine), "%s, %s: %v", name, way, err)
					require.Equal(t, !c.own, errors.Is(err, fencedb.ErrLeaseOver), "%s, %s: %v", name, way, err)
				}
			})
		}
	}
	for name, write := range map[string]func(g fencedb.Grant) error{
		"Exec": func(g fencedb.Grant) error {
			_, err := fencedb.Exec(t.Context(), w.pool, g, `SELECT pg_sleep(60)`)
			return err
		},
		"QueryRow": func(g fencedb.Grant) error {
			return fencedb.QueryRow(t.Context(), w.pool, g, `SELECT pg_sleep(60)`).Scan(nil)
		},
		"SendBatch": func(g fencedb.Grant) error {
			return fencedb.SendBatch(t.Context(), w.pool, g, batchOf([]string{`SELECT pg_sleep(60)`}))
		},
		"TxSQL, after its context": func(g fencedb.Grant) error {
			ctx, cancel := context.WithTimeout(t.Context(), validity)
			defer cancel()
			return fencedb.TxSQL(ctx, w.sqlDB(), g, func(tx *sql.Tx) error {
				<-time.After(validity + 200*time.Millisecond)
				_, err := tx.Exec(`SELECT 1`)
				return err
			})
		},
	} {
		all.start(func() (judge func()) {
			err := write(grantFor("table:"+name, 1, validity))
			return func() { require.ErrorIs(t, err, fencedb.ErrLeaseOver, name) }
		})
	}
	all.judge()
	require.Empty(t, w.guests())
}
