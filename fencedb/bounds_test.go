package fencedb_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/lease"
)

// S7. The holder stops in the middle of its transaction, as in a long GC pause, and keeps its
// connection open.
func TestAStoppedHolderDelaysTheNextByNoMoreThanItsLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const validity = time.Second
	stopped, resume := make(chan time.Time), make(chan struct{})
	zombie := make(chan error, 1)
	go func() {
		zombie <- fencedb.Tx(t.Context(), w.pool, grantFor("table:12", 41, validity), func(tx pgx.Tx) error {
			if err := book(t.Context(), tx, 12, "ann"); err != nil {
				return err
			}
			stopped <- time.Now()
			<-resume
			return nil
		})
	}()
	since := received(t, stopped)

	err := fencedb.Tx(t.Context(), w.pool, grantFor("table:12", 42, 10*time.Second), func(tx pgx.Tx) error {
		return book(t.Context(), tx, 12, "ben")
	})

	require.NoError(t, err)
	require.Less(t, time.Since(since), validity+time.Second)
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
		"in a batch":                  {500 * time.Millisecond, []pgproto3.FrontendMessage{&pgproto3.Parse{Query: `SELECT`}, &pgproto3.Flush{}}},
		"in a COPY":                   {500 * time.Millisecond, []pgproto3.FrontendMessage{&pgproto3.Query{String: `COPY bookings FROM STDIN`}}},
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

			err = fencedb.Seal(t.Context(), w.pool, grantFor("table:12", 42, 3*time.Second))

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
	const validity = time.Second
	old := grantFor("table:12", 41, validity)
	require.NoError(t, fencedb.Seal(t.Context(), w.pool, old))
	start := time.Now()
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

	require.NoError(t, fencedb.Seal(t.Context(), w.pool, grantFor("table:12", 42, 10*time.Second)))

	require.Less(t, time.Since(start), validity+slack)
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

func TestHoldReplacesTheRemainingValidity(t *testing.T) {
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
	require.Regexp(t, `^358\d\d\d\dms$`, timeout(fencedb.Hold(time.Hour)))
}

func TestATransactionThatOutlastsItsHoldIsNotALeaseThatIsOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, g := range map[string]fencedb.Grant{"a long lease": grantFor("table:12", 41, time.Hour), "no end": grant("table:13", 41)} {
		err := fencedb.Tx(t.Context(), w.pool, g, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `SELECT pg_sleep(60)`)
			return err
		}, fencedb.Hold(500*time.Millisecond))

		require.ErrorIs(t, err, fencedb.ErrTooLong, name)
		require.NotErrorIs(t, err, fencedb.ErrLeaseOver, name)
	}
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
		current_setting('idle_in_transaction_session_timeout'), current_setting('fencedb.lease') || current_setting('fencedb.entered')`).Scan(&lock, &idle, &entered))
	require.Equal(t, []string{"0", "0", ""}, []string{lock, idle, entered})
}

func TestANewcomerThatCannotGetTheFenceLearnsWhoHasIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, g := range map[string]fencedb.Grant{"first": grant("table:12", 41), "shared": nil} {
		if g == nil {
			g = grant("table:13", 41)
			require.NoError(t, fencedb.Seal(t.Context(), w.pool, g))
		}
		blocker := w.holder(g).enter()

		newcomer := grantFor(g.Resource(), 42, time.Second)
		err := fencedb.Seal(t.Context(), w.pool, newcomer)

		var busy *fencedb.BusyError
		require.ErrorAs(t, err, &busy, name)
		require.ErrorIs(t, err, fencedb.ErrBusy)
		require.Equal(t, []string{g.Resource()}, busy.Resources)
		require.Len(t, busy.Blockers, 1, name)
		require.EqualValues(t, blocker.conn.PgConn().PID(), busy.Blockers[0].PID)
		require.Equal(t, "idle in transaction", busy.Blockers[0].State)
		require.Contains(t, err.Error(), "idle in transaction")
		blocker.commit()
		require.NoError(t, fencedb.Seal(t.Context(), w.pool, grant(g.Resource(), 42)))
	}
}

// A fence that is being inserted cannot be seen, also beside one that can.
func TestANewcomerToSeveralLearnsWhoIsMakingOneOfThem(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	require.NoError(t, fencedb.Seal(t.Context(), w.pool, grant("table:11", 41)))
	maker := w.holder(grant("table:12", 41)).enter()

	err := fencedb.Seal(t.Context(), w.pool, fencedb.All(grantFor("table:11", 42, time.Second), grantFor("table:12", 42, time.Second)))

	var busy *fencedb.BusyError
	require.ErrorAs(t, err, &busy)
	require.Len(t, busy.Blockers, 1)
	require.EqualValues(t, maker.conn.PgConn().PID(), busy.Blockers[0].PID)
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
	err = fencedb.Tx(t.Context(), w.pool, expired, func(tx pgx.Tx) error { return nil }, fencedb.Hold(time.Hour))
	require.ErrorIs(t, err, fencedb.ErrLeaseOver, "Hold is for transactions that begin within the lease")
}

// With Hold the server would grant all of that time: nothing else stands between a lease that is
// over and a write.
func TestHoldBeginsNothingUnderALeaseThatIsOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	expired, hold := grantFor("table:12", 41, -time.Second), fencedb.Hold(time.Hour)
	conn := w.conn() // there is no pool that would see to it
	insert := &pgx.Batch{}
	insert.Queue(bookAnn)
	db := w.sqlDB()

	for name, write := range map[string]func() error{
		"Tx": func() error {
			return fencedb.Tx(t.Context(), conn, expired, func(tx pgx.Tx) error { return book(t.Context(), tx, 12, "ann") }, hold)
		},
		"SendBatch": func() error { return fencedb.SendBatch(t.Context(), conn, expired, insert, hold) },
		"Exec": func() error {
			_, err := fencedb.Exec(t.Context(), fencedb.With(conn, hold), expired, bookAnn)
			return err
		},
		"TxSQL":    func() error { return fencedb.TxSQL(t.Context(), db, expired, inSQL(bookAnn), hold) },
		"EnterSQL": func() error { return enterSQL(t.Context(), w.begin(db), expired, hold) },
		"Enter": func() error {
			return pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error { return enter(t.Context(), tx, expired, hold) })
		},
	} {
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
	const validity = time.Second
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

func awaitEnd(w *world, pid uint32) {
	w.Helper()
	require.Eventually(w, func() bool {
		return collect[int](w, `SELECT count(*) FROM pg_stat_activity WHERE pid = $1`, pid)[0] == 0
	}, 10*time.Second, 5*time.Millisecond, "the server ends the session")
}

func TestANewcomerWhoseContextEndsFarAwayWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := grant("table:12", 41)
	require.NoError(t, fencedb.Seal(t.Context(), w.pool, g))
	old := w.holder(g).enter()
	conn := w.conn()
	ctx, cancel := context.WithTimeout(t.Context(), 365*24*time.Hour) // of which the server waits for an eighth at a time
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- fencedb.Seal(ctx, conn, grant("table:12", 42)) }()
	w.awaitBlocked(conn.PgConn().PID())

	old.commit()

	require.NoError(t, received(t, done))
}

// One bound holds for the whole entry, though lock_timeout starts anew for each of those who share
// the fence and leave one after the other. Whether it is the lease's or the context's, the error
// names who is in the way.
func TestANewcomerWaitsNoLongerThanItMay(t *testing.T) {
	t.Parallel()
	entries := maps.Clone(attempts)
	entries["Seal"] = func(ctx context.Context, conn *pgx.Conn, g fencedb.Grant) error { return fencedb.Seal(ctx, conn, g) }
	entries["EnterSQL"] = func(ctx context.Context, conn *pgx.Conn, g fencedb.Grant) error {
		db := stdlib.OpenDB(*conn.Config())
		defer db.Close()
		tx, err := db.BeginTx(context.Background(), nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		return enterSQL(ctx, tx, g)
	}
	for name, attempt := range entries {
		// The server answers a fifth of the time of a context before its end.
		for by, bound := range map[string]time.Duration{"lease": time.Second, "context": 5 * time.Second} {
			t.Run(name+" bounded by the "+by, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.exec(`CREATE TABLE log (line text)`)
				conn := w.conn()
				old := grant("table:12", 41)
				require.NoError(t, fencedb.Seal(t.Context(), w.pool, old))
				for n := range 8 { // if the bound began anew for each, the newcomer would wait for three times as long
					sharer := w.holder(old).enter()
					done := make(chan error, 1)
					go func() { // each leaves before the newcomer has waited for it for as long as it may
						_, err := sharer.conn.PgConn().Exec(context.Background(), fmt.Sprintf(`SELECT pg_sleep(%f); COMMIT`, float64(n+1)/4*bound.Seconds())).ReadAll()
						done <- err
					}()
					t.Cleanup(func() { require.NoError(t, <-done) })
				}
				w.holder(old).enter() // and this one stays
				start := time.Now()
				ctx, g := t.Context(), grantFor("table:12", 42, bound)
				if by == "context" {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, bound)
					defer cancel()
					g = grant("table:12", 42)
				}

				err := attempt(ctx, conn, g)

				require.Less(t, time.Since(start), bound+1800*time.Millisecond)
				var busy *fencedb.BusyError
				require.ErrorAs(t, err, &busy)
				require.NotEmpty(t, busy.Blockers)
				require.Empty(t, w.guests())
				require.EqualValues(t, 41, w.fence("table:12"))
			})
		}
	}
}

// The transaction may last longer than the lease; the wait for the fence, before it, may not.
func TestANewcomerWithHoldWaitsNoLongerThanItsLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.holder(grant("table:12", 41)).enter()
	db, hold := w.sqlDB(), fencedb.Hold(6*time.Second)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var all waiting
	for name, write := range map[string]func(g fencedb.Grant) error{
		"Tx": func(g fencedb.Grant) error {
			return fencedb.Tx(ctx, w.pool, g, func(pgx.Tx) error { return nil }, hold)
		},
		"Seal": func(g fencedb.Grant) error { return fencedb.Seal(ctx, fencedb.With(w.pool, hold), g) },
		"two resources": func(g fencedb.Grant) error {
			return fencedb.SendBatch(ctx, w.pool, fencedb.All(g, grant("table:13", 1)), &pgx.Batch{}, hold)
		},
		"TxSQL": func(g fencedb.Grant) error {
			return fencedb.TxSQL(context.Background(), db, g, func(*sql.Tx) error { return nil }, hold)
		},
	} {
		all.start(func() (judge func()) {
			const validity = time.Second
			start := time.Now()
			err := write(grantFor("table:12", 42, validity))
			took := time.Since(start)
			return func() {
				require.ErrorIs(t, err, fencedb.ErrBusy, name)
				require.Less(t, took, validity+slack, name)
			}
		})
	}
	all.judge()
}

// As VACUUM FULL takes it. Nothing bounds the wait for it in the server; the time counts all the
// same.
func TestALockOnTheLedgerDoesNotStretchTheLease(t *testing.T) {
	t.Parallel()
	for name, stored := range map[string]int64{"the first token": 0, "an older token": 41, "this token": 42} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			conn, id := w.conn(), uuid.New()
			require.NoError(t, fencedb.Seal(t.Context(), conn, grant("table:13", 1)))
			if stored > 0 {
				require.NoError(t, fencedb.Seal(t.Context(), conn, fencedb.NewGrant("table:12", stored, id, fencedb.NoEnd)))
			}
			maintenance, err := w.pool.Begin(t.Context())
			require.NoError(t, err)
			_, err = maintenance.Exec(t.Context(), `LOCK TABLE fencedb.fences`)
			require.NoError(t, err)
			sealed := make(chan error, 1)
			go func() {
				over := time.Now().Add(500 * time.Millisecond)
				sealed <- fencedb.Seal(context.Background(), conn, fencedb.NewGrant("table:12", 42, id, over))
			}()
			w.awaitBlocked(conn.PgConn().PID())
			var left time.Duration // the server counts from when it began
			err = w.pool.QueryRow(t.Context(), `SELECT query_start + interval '750 ms' - clock_timestamp() FROM pg_stat_activity WHERE pid = $1`,
				conn.PgConn().PID()).Scan(&left)
			require.NoError(t, err)
			<-time.After(left)

			require.NoError(t, maintenance.Rollback(t.Context()))

			require.ErrorIs(t, received(t, sealed), fencedb.ErrLeaseOver)
			require.Equal(t, stored, w.fence("table:12"))
		})
	}

	w := newWorld(t)
	conn := w.conn()
	maintenance, err := w.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = maintenance.Exec(t.Context(), `LOCK TABLE fencedb.fences`)
	require.NoError(t, err)
	over := time.Now().Add(time.Minute)
	var server time.Time // when it ends the statement
	done := make(chan error, 1)
	go func() {
		const end = `SELECT clock_timestamp() + current_setting('statement_timeout')::interval`
		done <- fencedb.QueryRow(context.Background(), conn, fencedb.NewGrant("table:12", 42, uuid.New(), over), end).Scan(&server)
	}()
	w.awaitBlocked(conn.PgConn().PID())
	<-time.After(time.Second)

	require.NoError(t, maintenance.Rollback(t.Context()))

	require.NoError(t, received(t, done))
	require.WithinDuration(t, over, server, 500*time.Millisecond)
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
			<-time.After(time.Second)

			require.NoError(t, migration.Rollback(t.Context()))

			require.NoError(t, received(t, done))
			require.WithinDuration(t, over, server, 500*time.Millisecond)
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

// A pool that is busy, or a table that is locked, for longer than the lease is valid: its holder
// renews it meanwhile.
func TestALeaseThatIsRenewedWhileItWaitsToBeginIsNotOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var all waiting
	for _, name := range []string{"Exec", "Query", "SendBatch", "Tx with Exec", "Tx with Conn", "TxSQL"} {
		pool, _ := w.behindProxy() // which has one connection
		only, err := pool.Acquire(t.Context())
		require.NoError(t, err)
		time.AfterFunc(3400*time.Millisecond, only.Release)
		all.start(func() (judge func()) {
			id := int(ids.Add(1))
			delivered, err := writes[name](context.Background(), pool, renewed{grant(tableOf(id), 1), 2 * time.Second}, id)
			return func() {
				require.NoError(t, err, name)
				require.True(t, delivered, name)
			}
		})
	}
	all.judge()

	migration := w.locking("bookings")
	conn, done := w.conn(), make(chan error, 1)
	go func() {
		_, err := fencedb.Exec(context.Background(), conn, renewed{grant("bookings", 1), 2 * time.Second}, `SELECT FROM bookings`)
		done <- err
	}()
	<-time.After(3400 * time.Millisecond)
	require.NoError(t, migration.Rollback(t.Context()))
	require.NoError(t, received(t, done))
}

// Hold is the time of the transaction, and does not pass before it begins.
func TestHoldDoesNotCountWhileAConnectionIsWaitedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var all waiting
	for name, write := range map[string]func(pool *pgxpool.Pool, g fencedb.Grant, hold fencedb.Option) error{
		"Tx": func(pool *pgxpool.Pool, g fencedb.Grant, hold fencedb.Option) error {
			return fencedb.Tx(t.Context(), pool, g, func(pgx.Tx) error { return nil }, hold)
		},
		"TxSQL": func(pool *pgxpool.Pool, g fencedb.Grant, hold fencedb.Option) error {
			db := stdlib.OpenDBFromPool(pool)
			defer db.Close()
			return fencedb.TxSQL(t.Context(), db, g, func(*sql.Tx) error { return nil }, hold)
		},
	} {
		pool, _ := w.behindProxy() // which has one connection
		only, err := pool.Acquire(t.Context())
		require.NoError(t, err)
		time.AfterFunc(4600*time.Millisecond, only.Release)
		all.start(func() (judge func()) {
			err := write(pool, grantFor("table:"+name, 41, time.Hour), fencedb.Hold(2*time.Second))
			return func() { require.NoError(t, err, name) }
		})
	}
	all.judge()
}

// A limit of the role's own may be tighter than the lease. Then it is the bound of the wait as
// well.
func TestTighterLimitsBoundTheWait(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.holder(grant("table:12", 40)).enter().commit() // who holds a fence that is new is only guessed
	holder := w.holder(grant("table:12", 41)).enter()
	limits := collect[string](w, `SELECT name FROM pg_settings WHERE name IN ('lock_timeout', 'statement_timeout', 'transaction_timeout')`)
	for _, limit := range limits { // the last from Postgres 17 on
		config := w.pool.Config()
		config.ConnConfig.RuntimeParams[limit] = "1500ms" // which bounds the question for the blockers too
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		db := stdlib.OpenDBFromPool(pool)
		t.Cleanup(func() { _ = db.Close() })

		for way, err := range map[string]error{
			"Seal":  fencedb.Seal(t.Context(), pool, grantFor("table:12", 42, time.Hour)),
			"Tx":    fencedb.Tx(t.Context(), pool, grantFor("table:12", 42, time.Hour), func(pgx.Tx) error { return nil }),
			"TxSQL": fencedb.TxSQL(t.Context(), db, grantFor("table:12", 42, time.Hour), func(*sql.Tx) error { return nil }),
		} {
			var busy *fencedb.BusyError
			require.ErrorAs(t, err, &busy, "%s, %s", limit, way)
			require.Len(t, busy.Blockers, 1, "%s, %s", limit, way)
			require.EqualValues(t, holder.conn.PgConn().PID(), busy.Blockers[0].PID, "%s, %s", limit, way)
		}
	}
}

// Most callers have a deadline of their own, shorter than their lease. One that passes while the
// fence is waited for is told, counted and explained as busy, also if the server's answer comes too
// late. (Where everything is sent at once, a late answer leaves open whether COMMIT was carried
// out.)
func TestADeadlineThatPassesWhileTheFenceIsAwaitedIsBusy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, write := range map[string]func(
		ctx context.Context, pool *pgxpool.Pool, told fencedb.Option, g fencedb.Grant) error{
		"Tx": func(ctx context.Context, pool *pgxpool.Pool, told fencedb.Option, g fencedb.Grant) error {
			return fencedb.Tx(ctx, pool, g, func(pgx.Tx) error { return nil }, told)
		},
		"TxSQL": func(ctx context.Context, pool *pgxpool.Pool, told fencedb.Option, g fencedb.Grant) error {
			db := stdlib.OpenDBFromPool(pool)
			defer db.Close()
			return fencedb.TxSQL(ctx, db, g, func(*sql.Tx) error { return nil }, told)
		},
	} {
		for when, fate := range map[string]faulty.Fate{"answered in time": faulty.Pass, "answered late": faulty.Silence} {
			t.Run(name+", "+when, func(t *testing.T) {
				t.Parallel()
				resource := "table:" + name + when
				blocker := w.holder(grant(resource, 41)).enter()
				pool, proxy := w.behindProxyIn(pgx.QueryExecModeExec)
				require.NoError(t, pool.Ping(t.Context()))
				proxy.OnServer(once(func(m pgproto3.BackendMessage) bool {
					e, refused := m.(*pgproto3.ErrorResponse)
					return refused && e.Code == "55P03"
				}, fate))
				told := &journal{}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()

				err := write(ctx, pool, fencedb.Trace(told), grant(resource, 42))

				var busy *fencedb.BusyError
				require.ErrorAs(t, err, &busy)
				require.True(t, slices.ContainsFunc(busy.Blockers, func(b fencedb.Blocker) bool {
					return b.PID == int(blocker.conn.PgConn().PID())
				}), "%v", err)
				require.Equal(t, "busy", told.takeOne(t).Outcome())
			})
		}
	}
}

// What the function has met by itself is its own, however late it is; what the end of the lease has
// done to its connection or its context is the lease's. The server ends a transaction a little
// early, one part in 256: that is the end of the lease as well.
func TestAnErrorOfTheFunctionIsNotTheEndOfTheLease(t *testing.T) {
	t.Parallel()
	const validity = 2 * time.Second
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
