package fencedb_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
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
	"github.com/fencedb/fencedb/internal/testenv"
)

// S7, for whoever waits: for how long, for a connection and for the fence, and whom it learns to be
// in the way.

func TestANewcomerThatCannotGetTheFenceLearnsWhoHasIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, g := range map[string]fencedb.Grant{"first": grant("table:12", 41), "shared": nil} {
		if g == nil {
			g = grant("table:13", 41)
			require.NoError(t, fencedb.Seal(t.Context(), w.pool, g))
		}
		blocker := w.holder(g).enter()

		newcomer := grantFor(g.Resource(), 42, 3*time.Second)
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

	err := fencedb.Seal(t.Context(), w.pool, fencedb.All(grantFor("table:11", 42, 3*time.Second), grantFor("table:12", 42, 3*time.Second)))

	var busy *fencedb.BusyError
	require.ErrorAs(t, err, &busy)
	require.Len(t, busy.Blockers, 1)
	require.EqualValues(t, maker.conn.PgConn().PID(), busy.Blockers[0].PID)
}

func awaitEnd(w *world, pid uint32) {
	w.Helper()
	require.Eventually(w, func() bool {
		return collect[int](w, `SELECT count(*) FROM pg_stat_activity WHERE pid = $1`, pid)[0] == 0
	}, time.Minute, 5*time.Millisecond, "the server ends the session")
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
	// The server answers a fifth of the time of a context before its end.
	bounds := map[string]time.Duration{"lease": 2 * time.Second, "context": 5 * time.Second}
	waits := func(t *testing.T, by string, attempt func(context.Context, *pgx.Conn, fencedb.Grant) error) error {
		bound := bounds[by]
		w := newWorld(t)
		w.exec(`CREATE TABLE log (line text)`)
		conn := w.conn()
		old := grant("table:12", 41)
		require.NoError(t, fencedb.Seal(t.Context(), w.pool, old))
		for n := range 4 { // if the bound began anew for each, the newcomer would wait for three times as long
			sharer := w.holder(old).enter()
			done := make(chan error, 1)
			go func() { // each leaves before the newcomer has waited for it for as long as it may
				_, err := sharer.conn.PgConn().Exec(context.Background(), fmt.Sprintf(`SELECT pg_sleep(%f); COMMIT`, float64(n+1)/2*bound.Seconds())).ReadAll()
				done <- err
			}()
			t.Cleanup(func() { require.NoError(t, <-done) })
		}
		w.holder(old).enter() // and this one stays
		took := testenv.Stopwatch(t)
		ctx, g := t.Context(), grantFor("table:12", 42, bound)
		if by == "context" {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, bound)
			defer cancel()
			g = grant("table:12", 42)
		}

		err := attempt(ctx, conn, g)

		require.Less(t, took(), bound*5/2)
		require.Empty(t, w.guests())
		require.EqualValues(t, 41, w.fence("table:12"))
		return err
	}
	for name, attempt := range entries {
		for by := range bounds {
			t.Run(name+" bounded by the "+by, func(t *testing.T) {
				t.Parallel()
				err := waits(t, by, attempt)
				for range 2 {
					if by == "context" && errors.Is(err, context.DeadlineExceeded) { // the machine stood still for that fifth
						err = waits(t, by, attempt)
					}
				}
				var busy *fencedb.BusyError
				require.ErrorAs(t, err, &busy)
				require.NotEmpty(t, busy.Blockers)
			})
		}
	}
}

// The transaction may last longer than the lease; the wait for the fence, before it, may not.
func TestANewcomerWithTimeoutWaitsNoLongerThanItsLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.holder(grant("table:12", 41)).enter()
	db, limit := w.sqlDB(), fencedb.Timeout(30*time.Second)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var all waiting
	for name, write := range map[string]func(g fencedb.Grant) error{
		"Tx": func(g fencedb.Grant) error {
			return fencedb.Tx(ctx, w.pool, g, func(pgx.Tx) error { return nil }, limit)
		},
		"Seal": func(g fencedb.Grant) error { return fencedb.Seal(ctx, fencedb.With(w.pool, limit), g) },
		"two resources": func(g fencedb.Grant) error {
			return fencedb.SendBatch(ctx, w.pool, fencedb.All(g, grant("table:13", 1)), &pgx.Batch{}, limit)
		},
		"TxSQL": func(g fencedb.Grant) error {
			return fencedb.TxSQL(context.Background(), db, g, func(*sql.Tx) error { return nil }, limit)
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
				over := time.Now().Add(3 * time.Second)
				sealed <- fencedb.Seal(context.Background(), conn, fencedb.NewGrant("table:12", 42, id, over))
			}()
			w.awaitBlocked(conn.PgConn().PID())
			var left time.Duration // the server counts from when it began
			err = w.pool.QueryRow(t.Context(), `SELECT query_start + interval '3250 ms' - clock_timestamp() FROM pg_stat_activity WHERE pid = $1`,
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
	<-time.After(5 * time.Second)

	require.NoError(t, maintenance.Rollback(t.Context()))

	require.NoError(t, received(t, done))
	require.WithinDuration(t, over, server, 3*time.Second)
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
		time.AfterFunc(6*time.Second, only.Release)
		all.start(func() (judge func()) {
			id := int(ids.Add(1))
			delivered, err := writes[name](context.Background(), pool, renewed{grant(tableOf(id), 1), 5 * time.Second}, id)
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
		_, err := fencedb.Exec(context.Background(), conn, renewed{grant("bookings", 1), 5 * time.Second}, `SELECT FROM bookings`)
		done <- err
	}()
	<-time.After(6 * time.Second)
	require.NoError(t, migration.Rollback(t.Context()))
	require.NoError(t, received(t, done))
}

// Timeout is the time of the transaction, and does not pass before it begins.
func TestTimeoutDoesNotCountWhileAConnectionIsWaitedFor(t *testing.T) {
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
		time.AfterFunc(7*time.Second, only.Release)
		all.start(func() (judge func()) {
			err := write(pool, grantFor("table:"+name, 41, time.Hour), fencedb.Timeout(5*time.Second))
			return func() { require.NoError(t, err, name) }
		})
	}
	all.judge()
}
