package fencedb_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/testenv"
)

// S6. A proxy that reads the protocol cuts the connection at every place round COMMIT; Tx must
// answer what the server did.

// behindProxy returns a pool whose connections pass through a proxy.
func (w *world) behindProxy() (*pgxpool.Pool, *faulty.PostgresProxy) {
	w.Helper()
	proxy := faulty.NewPostgresProxy(w, w.pool.Config().ConnString())
	config, err := pgxpool.ParseConfig(proxy.URL())
	require.NoError(w, err)
	config.MaxConns = 1 // asking must not wait for the lost connection to be given back
	pool, err := pgxpool.NewWithConfig(w.Context(), config)
	require.NoError(w, err)
	w.Cleanup(pool.Close)
	w.Cleanup(proxy.Sever)
	return pool, proxy
}

func isCommit(msg pgproto3.FrontendMessage) bool {
	q, ok := msg.(*pgproto3.Query)
	return ok && q.String == "commit"
}

func isCommitted(msg pgproto3.BackendMessage) bool {
	c, ok := msg.(*pgproto3.CommandComplete)
	return ok && string(c.CommandTag) == "COMMIT"
}

// cuts are the places round COMMIT, and whether the server commits there.
var cuts = map[string]struct {
	committed bool
	arm       func(p *faulty.PostgresProxy)
}{
	"before COMMIT arrives": {false, func(p *faulty.PostgresProxy) { p.OnClient(once(isCommit, faulty.Cut)) }},
	"within COMMIT":         {false, func(p *faulty.PostgresProxy) { p.OnClient(once(isCommit, faulty.CutHalf)) }},
	"before the answer":     {true, func(p *faulty.PostgresProxy) { p.OnServer(once(isCommitted, faulty.Cut)) }},
	"within the answer":     {true, func(p *faulty.PostgresProxy) { p.OnServer(once(isCommitted, faulty.CutHalf)) }},
	"after the answer":      {true, func(p *faulty.PostgresProxy) { p.OnServer(once(isCommitted, faulty.CutAfter)) }},
}

// once gives verdict for the first message that matches, and then no more.
func once[M any](matches func(M) bool, verdict faulty.Fate) func(M) faulty.Fate {
	var done bool
	return func(msg M) faulty.Fate {
		if done || !matches(msg) {
			return faulty.Pass
		}
		done = true
		return verdict
	}
}

// wayToWrite is one of writing several statements. do gets a function that runs one and reads the
// row that it returns.
type wayToWrite func(ctx context.Context, pool *pgxpool.Pool, g fencedb.Grant,
	do func(row func(sql string, dest any) error) error) error

var ways = map[string]wayToWrite{
	"Tx": func(ctx context.Context, pool *pgxpool.Pool, g fencedb.Grant, do func(func(string, any) error) error) error {
		return fencedb.Tx(ctx, pool, g, func(tx pgx.Tx) error { return do(rowOf(ctx, tx)) })
	},
	"TxSQL": func(ctx context.Context, pool *pgxpool.Pool, g fencedb.Grant, do func(func(string, any) error) error) error {
		db := stdlib.OpenDBFromPool(pool)
		defer db.Close()
		return fencedb.TxSQL(ctx, db, g, func(tx *sql.Tx) error { return do(rowOfSQL(ctx, tx)) })
	},
	"Enter": func(ctx context.Context, pool *pgxpool.Pool, g fencedb.Grant, do func(func(string, any) error) error) error {
		return enterAndAsk(ctx, pool, g, func(tx pgx.Tx) error { return do(rowOf(ctx, tx)) })
	},
	"EnterSQL": func(ctx context.Context, pool *pgxpool.Pool, g fencedb.Grant, do func(func(string, any) error) error) error {
		db := stdlib.OpenDBFromPool(pool)
		defer db.Close()
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		entry, err := fencedb.EnterSQL(ctx, tx, g)
		if err == nil {
			err = do(rowOfSQL(ctx, tx))
		}
		if err != nil {
			_ = tx.Rollback()
		} else {
			err = tx.Commit()
		}
		if err != nil {
			return entry.OutcomeSQL(ctx, db, err)
		}
		return nil
	},
}

// enterAndAsk leaves the transaction to pgx.
func enterAndAsk(ctx context.Context, db fencedb.DB, g fencedb.Grant, fn func(tx pgx.Tx) error) error {
	var entry *fencedb.Entry
	err := pgx.BeginTxFunc(ctx, db, pgx.TxOptions{}, func(tx pgx.Tx) (err error) {
		if entry, err = fencedb.Enter(ctx, tx, g); err != nil {
			return err
		}
		return fn(tx)
	})
	if err != nil {
		return entry.Outcome(ctx, db, err)
	}
	return nil
}

func rowOf(ctx context.Context, tx pgx.Tx) func(sql string, dest any) error {
	return func(sql string, dest any) error { return tx.QueryRow(ctx, sql).Scan(dest) }
}

func rowOfSQL(ctx context.Context, tx *sql.Tx) func(sql string, dest any) error {
	return func(sql string, dest any) error { return tx.QueryRowContext(ctx, sql).Scan(dest) }
}

const bookAnnReturning = bookAnn + ` RETURNING id`

func TestTheOutcomeOfALostCommitIsKnown(t *testing.T) {
	t.Parallel()
	for way, write := range ways {
		for name, cut := range cuts {
			t.Run(way+"/"+name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				pool, proxy := w.behindProxy()

				err := write(t.Context(), pool, grant("table:12", 41), func(row func(string, any) error) error {
					cut.arm(proxy)
					return row(bookAnnReturning, new(int))
				})

				if cut.committed {
					require.NoError(t, err)
					require.Equal(t, []string{"ann"}, w.guests())
				} else {
					require.ErrorContains(t, err, "rolled back: ")
					require.NotErrorIs(t, err, fencedb.ErrCommitUnknown)
					require.Empty(t, w.guests())
				}
			})
		}
	}
}

// The control: what pgx says of the same cuts, when asked whether the transaction may be run again.
func TestSafeToRetryIsWrongForALostCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`CREATE TABLE plain (id int)`)
	pool, proxy := w.behindProxy()

	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		cuts["before the answer"].arm(proxy)
		_, err := tx.Exec(t.Context(), `INSERT INTO plain VALUES (1)`)
		return err
	})

	require.Error(t, err)
	require.True(t, pgconn.SafeToRetry(err), "when pgx answers this rightly, this control can go")
	require.Equal(t, []int{1}, collect[int](w, `SELECT count(*) FROM plain`), "and yet it has committed")
}

// The client is cut off while its transaction is open, and the server has not noticed. The truth is
// known only when the server has ended the transaction, which S7 sees to.
func TestATransactionStillInProgressIsWaitedFor(t *testing.T) {
	t.Parallel()
	for way, write := range ways {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			pool, proxy := w.behindProxy()

			err := write(t.Context(), pool, grantFor("table:12", 41, 3*time.Second), func(row func(string, any) error) error {
				proxy.OnClient(once(isCommit, faulty.Orphan))
				return row(bookAnnReturning, new(int))
			})

			require.ErrorIs(t, err, fencedb.ErrLeaseOver)
			require.NotErrorIs(t, err, fencedb.ErrCommitUnknown)
			require.Empty(t, w.guests())
		})
	}
}

func TestAServerThatCannotBeAskedLeavesTheOutcomeUnknown(t *testing.T) {
	t.Parallel()
	for way, write := range map[string]func(context.Context, fencedb.DB, fencedb.Grant, func(pgx.Tx) error) error{
		"Tx": func(ctx context.Context, db fencedb.DB, g fencedb.Grant, fn func(pgx.Tx) error) error {
			return fencedb.Tx(ctx, db, g, fn)
		},
		"Enter": enterAndAsk,
	} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			url := w.pool.Config().ConnString()
			proxy := faulty.NewPostgresProxy(t, url)
			conn, err := pgx.Connect(t.Context(), proxy.URL()) // a single connection: once it is lost, there is no other
			require.NoError(t, err)
			took := testenv.Stopwatch(t)

			err = write(t.Context(), fencedb.With(conn), grant("table:12", 41), func(tx pgx.Tx) error {
				cuts["before the answer"].arm(proxy)
				return book(t.Context(), tx, 12, "ann")
			})

			var unknown *fencedb.CommitUnknownError
			require.ErrorAs(t, err, &unknown)
			require.ErrorIs(t, err, fencedb.ErrCommitUnknown)
			require.Less(t, took(), 5*time.Second, "there is nobody to wait for")
			require.Contains(t, err.Error(), fmt.Sprintf("fencedb.outcome('%d', %d)", unknown.XID, unknown.Epoch))
			require.Equal(t, []string{"committed"}, collect[string](w, `SELECT fencedb.outcome($1::text::xid8, $2)`, fmt.Sprint(unknown.XID), unknown.Epoch))
		})
	}
}

// Not only the answer to COMMIT can mislead: what is asked is the server.
func TestOutcomeAsksTheServerWhateverCommitSaid(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ask := func(fn func(tx pgx.Tx), said error) error {
		tx, err := w.pool.Begin(t.Context())
		require.NoError(t, err)
		entry, err := fencedb.Enter(t.Context(), tx, grant("table:12", int64(ids.Add(1))))
		require.NoError(t, err)
		require.Equal(t, []int64{entry.Epoch}, collect[int64](w, `SELECT fencedb.epoch()`))
		fn(tx)
		err = tx.Commit(t.Context())
		if said == nil {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, said)
		}
		require.NotEmpty(t, collect[string](w, `SELECT fencedb.outcome($1::text::xid8, $2)`, fmt.Sprint(entry.XID), entry.Epoch)[0])
		return entry.Outcome(t.Context(), w.pool, err)
	}
	sends := func(sql string) func(pgx.Tx) {
		return func(tx pgx.Tx) { _, _ = tx.Exec(t.Context(), sql) }
	}

	require.NoError(t, ask(sends(bookAnn), nil))
	require.ErrorContains(t, ask(sends(`ROLLBACK`), nil), "rolled back: fencedb: COMMIT has returned no error")
	require.NoError(t, ask(sends(`COMMIT`), nil), "this one has committed, by its own statement")
	require.ErrorIs(t, ask(sends(`SELECT 1/0`), pgx.ErrTxCommitRollback), pgx.ErrTxCommitRollback)
	require.Equal(t, []string{"ann"}, w.guests())
}

// Enter gives no Entry with an error; what a library then returns is the answer.
func TestOutcomeWithoutAnEntry(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	require.NoError(t, fencedb.Seal(t.Context(), w.pool, grant("table:12", 42)))
	for way, write := range ways {
		err := write(t.Context(), w.pool, grant("table:12", 41), func(func(string, any) error) error { return nil })
		require.ErrorIs(t, err, fencedb.ErrStale, way)
	}
}

// The server crashes before COMMIT arrives, and loses what it had not flushed. It hands the id of
// the transaction out again, and a stranger commits under it. A slow machine may flush the id
// before the crash; then there is another.
func TestACrashOfTheServerLeavesTheOutcomeUnknown(t *testing.T) {
	t.Parallel()
	for way, write := range ways {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			for crashes := 1; !givesAnIDTwice(t, write); crashes++ {
				require.Less(t, crashes, 10, "no crash has lost an id")
			}
		})
	}
}

// givesAnIDTwice reports whether the crash has lost the id of the transaction.
func givesAnIDTwice(t *testing.T, write wayToWrite) bool {
	t.Helper()
	server := testenv.OwnPostgres(t, "wal_writer_delay=10s")
	w := &world{T: t, pool: server.Pool()}
	w.exec(`CREATE TABLE bookings (id int PRIMARY KEY, table_id int NOT NULL, guest text NOT NULL)`)
	pool, proxy := w.behindProxy()
	require.NoError(t, fencedb.Seal(t.Context(), pool, grant("table:1", 1)), "the epoch of the server before the crash")
	w.exec(`SELECT pg_switch_wal()`) // a page of WAL that is full is flushed; from here on, none gets full
	w.exec(`CHECKPOINT`)
	stranger, err := w.pool.Acquire(t.Context())
	require.NoError(t, err)
	defer stranger.Release()

	var xid, given uint64
	came := make(chan struct{})
	err = write(t.Context(), pool, grant("table:12", 41), func(row func(string, any) error) error {
		var pid int
		if err := errors.Join(row(`SELECT pg_backend_pid()`, &pid), row(`SELECT pg_current_xact_id()::text::bigint`, &xid)); err != nil {
			return err
		}
		go func() { // the stranger commits nothing before the crash, which ends its connection
			defer close(came)
			for stranger.Ping(t.Context()) == nil {
				continue
			}
			for given < xid && t.Context().Err() == nil {
				_ = w.pool.QueryRow(t.Context(), `SELECT pg_current_xact_id()::text::bigint`).Scan(&given)
			}
		}()
		proxy.OnClient(once(func(msg pgproto3.FrontendMessage) bool {
			return isCommit(msg) && syscall.Kill(pid, syscall.SIGKILL) == nil
		}, faulty.Cut))
		return row(bookAnnReturning, new(int))
	})

	require.ErrorIs(t, err, fencedb.ErrCommitUnknown)
	<-came
	require.Empty(t, w.guests())
	return given == xid
}

// A write that such a crash forgets takes its fence along. A seal has been told to its holder, and
// a revocation to an operator.
func TestACrashForgetsNoSeal(t *testing.T) {
	t.Parallel()
	for name, seal := range map[string]func(ctx context.Context, pool *pgxpool.Pool, g fencedb.Grant) error{
		"a holder's": func(ctx context.Context, pool *pgxpool.Pool, g fencedb.Grant) error {
			return fencedb.Seal(ctx, pool, g)
		},
		"a revocation's": func(ctx context.Context, pool *pgxpool.Pool, g fencedb.Grant) error {
			return fencedb.Tx(ctx, pool, g, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `SELECT fencedb.record('revoke', $1, 'ann@host', 'it hangs')`, g.Resource())
				return err
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testenv.OwnPostgres(t, "synchronous_commit=off", "wal_writer_delay=10s",
				"synchronous_standby_names=nobody") // for whom it does not wait
			w := &world{T: t, pool: server.Pool()}
			require.NoError(t, seal(t.Context(), w.pool, grantFor("table:12", 41, time.Minute)))
			w.exec(`SELECT pg_switch_wal()`) // as above
			w.exec(`CHECKPOINT`)

			require.NoError(t, seal(t.Context(), w.pool, grantFor("table:12", 42, time.Minute)))
			server.Kill()
			server.Restart()

			w.pool = server.Pool()
			require.EqualValues(t, 42, w.fence("table:12"))
		})
	}
}

func TestCancellingDuringCommitStillTellsTheTruth(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"Tx", "TxSQL"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			pool, proxy := w.behindProxy()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()

			err := ways[way](ctx, pool, grant("table:12", 41), func(row func(string, any) error) error {
				proxy.OnServer(func(msg pgproto3.BackendMessage) faulty.Fate {
					if isCommitted(msg) {
						cancel()
						return faulty.Orphan
					}
					return faulty.Pass
				})
				return row(bookAnnReturning, new(int))
			})

			require.NoError(t, err, "it committed, whatever became of the context")
			require.Equal(t, []string{"ann"}, w.guests())
		})
	}
}

// Nothing was sent that could have committed, so there is nothing to doubt.
func TestCancellingAStatementLeavesNoDoubt(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"Tx", "TxSQL"} {
		w := newWorld(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		enough := errors.New("enough")

		err := ways[way](ctx, w.pool, grant("table:12", 41), func(row func(string, any) error) error {
			if err := row(bookAnnReturning, new(int)); err != nil {
				return err
			}
			time.AfterFunc(50*time.Millisecond, func() { cancel(enough) })
			return row(`SELECT 1 FROM pg_sleep(60)`, new(int))
		})

		require.ErrorIs(t, err, enough, way)
		require.NotErrorIs(t, err, fencedb.ErrCommitUnknown, way)
		require.Empty(t, w.guests(), way)
	}
}

// Without the transaction's id, which was in the lost answer, nobody can be asked.
func TestAOneShotWriteWhoseWholeAnswerIsLostIsUnknown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pool, proxy := w.behindProxy()
	_, err := fencedb.Exec(t.Context(), pool, grant("table:12", 41), insertAnn, 1) // warm, so that it is one round trip
	require.NoError(t, err)

	arm := func(verdict faulty.Fate, nth int) {
		proxy.OnServer(func(msg pgproto3.BackendMessage) faulty.Fate {
			if _, row := msg.(*pgproto3.DataRow); row && nth == 0 {
				return verdict
			}
			if _, ready := msg.(*pgproto3.ReadyForQuery); ready && nth == 1 {
				nth++
				return verdict
			}
			return faulty.Pass
		})
	}

	arm(faulty.Cut, 0)
	_, err = fencedb.Exec(t.Context(), pool, grant("table:12", 42), insertAnn, 2)
	require.ErrorIs(t, err, fencedb.ErrCommitUnknown)
	proxy.OnServer(nil)

	_, err = fencedb.Exec(t.Context(), pool, grant("table:12", 43), insertAnn, 3) // warm again
	require.NoError(t, err)
	arm(faulty.Cut, 1)
	_, err = fencedb.Exec(t.Context(), pool, grant("table:12", 44), insertAnn, 4)
	require.NoError(t, err, "with the id the server could be asked")
	require.EqualValues(t, 44, w.fence("table:12"))
}

// To seal twice is as good as once, so nobody needs to find out.
func TestASealWhoseAnswerIsLostIsNoReasonForDoubt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pool, proxy := w.behindProxy()
	g := grant("table:12", 41)
	proxy.OnServer(once(func(msg pgproto3.BackendMessage) bool {
		_, row := msg.(*pgproto3.DataRow)
		return row
	}, faulty.Cut))

	err := fencedb.Seal(t.Context(), pool, g)

	require.ErrorContains(t, err, "Postgres did not answer, and it is unknown whether the token was sealed")
	require.NotContains(t, err.Error(), "crashed", "there is no id to ask about, so nothing is said of the server")
	require.NotErrorIs(t, err, fencedb.ErrCommitUnknown)
	require.NoError(t, fencedb.Seal(t.Context(), pool, g))
}

func (w *world) has(id int) bool {
	var n int
	if err := w.pool.QueryRow(w.Context(), `SELECT count(*) FROM effects WHERE id = $1`, id).Scan(&n); err != nil {
		w.Errorf("reading effect %d: %v", id, err)
	}
	return n > 0
}

func TestAnEntryThatWasMadeByHandKnowsNothing(t *testing.T) {
	t.Parallel()
	for _, err := range []error{nil, errors.New("lost")} {
		require.ErrorIs(t, new(fencedb.Entry).Outcome(t.Context(), newWorld(t).pool, err), fencedb.ErrCommitUnknown)
	}
}
