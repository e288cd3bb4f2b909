package fencedb_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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
)

// S7 when nothing answers: the network drops everything in silence, and the context has no
// deadline.

const (
	asking = 5 * time.Second // how long a call may outlast its lease, or its context
	slack  = time.Minute     // of a machine that is busy; what nothing bounds lasts longer
)

// silences are the places where a connection falls silent in a write.
var silences = map[string]func(*faulty.PostgresProxy){
	"before BEGIN arrives": func(p *faulty.PostgresProxy) {
		p.OnClient(once(func(pgproto3.FrontendMessage) bool { return true }, faulty.Silence))
	},
	"before the first answer": func(p *faulty.PostgresProxy) { p.AfterBytes(0, faulty.Silence) },
	"within the answers":      func(p *faulty.PostgresProxy) { p.AfterBytes(150, faulty.Silence) },
	"before COMMIT arrives":   func(p *faulty.PostgresProxy) { p.OnClient(once(commits, faulty.Silence)) },
	"before COMMIT's answer":  func(p *faulty.PostgresProxy) { p.OnServer(once(isCommitted, faulty.Silence)) },
}

// commits is isCommit also where COMMIT is part of a batch.
func commits(msg pgproto3.FrontendMessage) bool {
	switch msg := msg.(type) {
	case *pgproto3.Bind:
		return false
	case *pgproto3.Parse:
		return msg.Query == "commit"
	}
	return isCommit(msg)
}

func TestASilentConnectionIsNotWaitedForLongerThanTheLease(t *testing.T) {
	t.Parallel()
	const validity = time.Second
	w := newWorld(t)
	var all waiting
	for name, write := range writes {
		for place, arm := range silences {
			pool, proxy := w.behindProxyIn(pgx.QueryExecModeExec)
			id := int(ids.Add(1))
			arm(proxy)
			all.start(func() (judge func()) {
				start := time.Now()
				delivered, err := write(context.Background(), pool, grantFor(tableOf(id), 1, validity), id)
				took := time.Since(start)
				return func() {
					require.Less(t, took, validity+asking+slack, "%s, silent %s", name, place)
					w.judge(name+", silent "+place, id, delivered, err)
					w.awaitIdle(pool)
				}
			})
		}
	}
	all.judge()
}

// waiting runs at once what mostly waits, and then judges it.
type waiting struct {
	running sync.WaitGroup
	places  chan struct{}
	mu      sync.Mutex
	judges  []func()
}

func (all *waiting) start(run func() (judge func())) {
	if all.places == nil {
		all.places = make(chan struct{}, 20) // connections are few
	}
	all.places <- struct{}{}
	all.running.Go(func() {
		defer func() { <-all.places }()
		judge := run()
		all.mu.Lock()
		defer all.mu.Unlock()
		all.judges = append(all.judges, judge)
	})
}

func (all *waiting) judge() {
	all.running.Wait()
	for _, judge := range all.judges {
		judge()
	}
}

// The statements of the function have contexts of their own, without an end.
func TestTxSQLOnASilentConnectionEndsWithTheLease(t *testing.T) {
	t.Parallel()
	const validity = time.Second
	w := newWorld(t)
	var all waiting
	for name, send := range map[string]func(tx *sql.Tx) error{
		"Exec":  inSQL(`SELECT 1`),
		"Query": func(tx *sql.Tx) error { return tx.QueryRow(`SELECT 1`).Scan(new(int)) },
	} {
		attempt := func(pool *pgxpool.Pool, proxy *faulty.PostgresProxy) (took time.Duration, err error) {
			db := stdlib.OpenDBFromPool(pool)
			defer db.Close()
			start := time.Now()
			time.AfterFunc(validity+asking+slack, proxy.Sever)
			err = fencedb.TxSQL(context.Background(), db, grantFor("table:"+name, 41, validity), func(tx *sql.Tx) error {
				proxy.AfterBytes(0, faulty.Silence)
				return send(tx)
			})
			return time.Since(start), err
		}
		pool, proxy := w.behindProxyIn(pgx.QueryExecModeExec)
		all.start(func() (judge func()) {
			took, err := attempt(pool, proxy)
			return func() {
				for tries := 1; couldNotAsk(err) && tries < 4; tries++ {
					pool, proxy = w.behindProxyIn(pgx.QueryExecModeExec)
					took, err = attempt(pool, proxy)
				}
				require.Less(t, took, validity+asking+slack, name)
				require.ErrorIs(t, err, fencedb.ErrLeaseOver, name)
				w.awaitIdle(pool)
			}
		})
	}
	all.judge()
}

func TestANetworkThatHangsAtCommitLeavesTheOutcomeUnknownInTime(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		validity, cancelAfter time.Duration // 0 for none
		bound                 time.Duration
	}{
		"lease":                     {validity: 3 * time.Second, bound: 3*time.Second + asking},
		"context before the lease":  {validity: time.Hour, cancelAfter: time.Millisecond, bound: asking},
		"context without any lease": {cancelAfter: time.Millisecond, bound: asking},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			pool, proxy := w.behindProxy()
			g := grant("table:12", 41)
			if c.validity > 0 {
				g = grantFor("table:12", 41, c.validity)
			}
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			var start time.Time

			err := fencedb.Tx(ctx, pool, g, func(tx pgx.Tx) error {
				start = time.Now()
				proxy.OnServer(once(func(msg pgproto3.BackendMessage) bool {
					if !isCommitted(msg) {
						return false
					}
					proxy.Hang(true)
					if c.cancelAfter > 0 {
						time.AfterFunc(c.cancelAfter, cancel)
					}
					return true
				}, faulty.Silence))
				return book(ctx, tx, 12, "ann")
			})

			require.ErrorIs(t, err, fencedb.ErrCommitUnknown)
			require.Less(t, time.Since(start), c.bound+slack)
			proxy.Hang(false)
			require.Equal(t, []string{"ann"}, w.guests())
		})
	}
}

// Rolling back waits for an answer. So do the questions behind it: what a statement has ended, and
// who is in the way.
func TestACallOutlastsItsContextAndItsLeaseByFiveSecondsAtMost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.holder(grant("table:12", 41)).enter()
	mine := errors.New("mine")
	newcomer := func(validity time.Duration) fencedb.Grant { return grantFor("table:12", 42, validity) }
	var all waiting
	for name, write := range map[string]func(ctx context.Context, pool *pgxpool.Pool, validity time.Duration) error{
		"Tx": func(ctx context.Context, pool *pgxpool.Pool, validity time.Duration) error {
			return fencedb.Tx(ctx, pool, grantFor("table:"+fmt.Sprint(ids.Add(1)), 41, validity), func(tx pgx.Tx) error {
				_ = tx.Conn() // through which the transaction may have been ended
				return mine
			})
		},
		"TxSQL": func(ctx context.Context, pool *pgxpool.Pool, validity time.Duration) error {
			db := stdlib.OpenDBFromPool(pool)
			defer db.Close()
			return fencedb.TxSQL(ctx, db, grantFor("table:"+fmt.Sprint(ids.Add(1)), 41, validity), func(*sql.Tx) error { return mine })
		},
		"Tx that is refused": func(ctx context.Context, pool *pgxpool.Pool, validity time.Duration) error {
			return fencedb.Tx(ctx, pool, newcomer(validity), func(pgx.Tx) error { return nil })
		},
		"TxSQL that is refused": func(ctx context.Context, pool *pgxpool.Pool, validity time.Duration) error {
			db := stdlib.OpenDBFromPool(pool)
			defer db.Close()
			return fencedb.TxSQL(ctx, db, newcomer(validity), func(*sql.Tx) error { return nil })
		},
		"SendBatch that is refused": func(ctx context.Context, pool *pgxpool.Pool, validity time.Duration) error {
			return fencedb.Seal(ctx, pool, newcomer(validity))
		},
	} {
		for silent, answers := range map[string]bool{"silent instead of an answer": false, "silent behind a late answer": true} {
			for bound, validity := range map[string]time.Duration{"context": time.Hour, "lease": time.Second} {
				attempt := func() (time.Duration, error) { return w.outlasts(write, answers, bound == "context", validity) }
				all.start(func() (judge func()) {
					took, err := attempt()
					return func() {
						for tries := 1; took > asking+time.Second; tries++ { // a busy machine is late at times, a lost bound each time
							require.Less(t, tries, 5, "%s, %s, bounded by the %s: %v after %v", name, silent, bound, err, took)
							took, err = attempt()
						}
						require.Error(t, err, "%s, %s, bounded by the %s", name, silent, bound)
					}
				})
			}
		}
	}
	all.judge()
}

// outlasts tells for how long a write goes on after its context has ended, or its lease, when the
// connection falls silent as it rolls back, at once or behind a late answer.
func (w *world) outlasts(write func(ctx context.Context, pool *pgxpool.Pool, validity time.Duration) error,
	answers, cancels bool, validity time.Duration) (took time.Duration, err error) {
	_, proxy := w.behindProxy()
	config, err := pgxpool.ParseConfig(proxy.URL())
	require.NoError(w, err)
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	config.ConnConfig.RuntimeParams["statement_timeout"] = "500ms" // its refusal names nobody
	pool, err := pgxpool.NewWithConfig(w.Context(), config)
	require.NoError(w, err)
	w.Cleanup(pool.Close)
	w.Cleanup(proxy.Sever)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	over := new(atomic.Pointer[time.Time])
	proxy.OnClient(once(func(msg pgproto3.FrontendMessage) bool {
		q, ok := msg.(*pgproto3.Query)
		if !ok || q.String != "rollback" {
			return false
		}
		if cancels {
			over.Store(new(time.Now()))
			cancel()
		}
		proxy.Hang(!answers)
		return !answers
	}, faulty.Silence))
	proxy.OnRound(func(round faulty.Round) faulty.Fate {
		if slices.Contains(round.SQL, "rollback") {
			<-time.After(time.Until(over.Load().Add(asking/2 - 300*time.Millisecond)))
			proxy.Hang(true)
		}
		return faulty.Pass
	})
	over.Store(new(time.Now().Add(validity)))
	err = write(ctx, pool, validity)
	took = time.Since(*over.Load())
	proxy.Hang(false)
	return took, err
}

// One idle connection of the pool is as silent as the one that was lost; only new ones stand.
func TestAnIdleConnectionThatIsSilentAsWellDoesNotKeepUsFromAsking(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	attempt := func(table int) (asked int32, err error) {
		pool, proxy := w.behindProxy()
		config := pool.Config()
		config.MaxConns = 2
		pool, err = pgxpool.NewWithConfig(t.Context(), config)
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		t.Cleanup(proxy.Sever)
		other, err := pool.Acquire(t.Context())
		require.NoError(t, err)
		var questions atomic.Int32
		err = fencedb.Tx(t.Context(), pool, grantFor(tableOf(table), 41, 3*time.Second), func(tx pgx.Tx) error {
			other.Release()
			proxy.OnServer(func(msg pgproto3.BackendMessage) faulty.Fate {
				if isCommitted(msg) {
					return faulty.Silence
				}
				return faulty.Pass
			})
			proxy.OnClient(func(msg pgproto3.FrontendMessage) faulty.Fate {
				if parse, ok := msg.(*pgproto3.Parse); ok && strings.Contains(parse.Query, "fencedb.outcome") && questions.Add(1) == 1 {
					return faulty.Silence
				}
				return faulty.Pass
			})
			return book(t.Context(), tx, table, "ann")
		})
		return questions.Load(), err
	}

	asked, err := attempt(1)
	for table := 2; couldNotAsk(err) && table < 5; table++ {
		asked, err = attempt(table)
	}

	require.NoError(t, err)
	require.EqualValues(t, 2, asked)
}

func TestAConnectionThatDoesNotComeInTimeEndsWithTheLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pool, _ := w.behindProxy()
	only, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer only.Release()
	for name, write := range writes {
		const validity = 200 * time.Millisecond
		start := time.Now()

		_, err := write(context.Background(), pool, grantFor("table:12", 41, validity), 1)

		if name == "Tx with Conn" {
			require.Error(t, err)
		} else {
			require.ErrorIs(t, err, fencedb.ErrLeaseOver, name)
		}
		require.Less(t, time.Since(start), validity+slack, name)
	}
	for _, early := range []time.Duration{-time.Second, 2 * time.Millisecond} { // what the context has of the lease
		until := time.Now().Add(time.Second)
		ctx, cancel := context.WithDeadline(t.Context(), until.Add(-early))
		err = fencedb.Seal(ctx, pool, fencedb.NewGrant("table:12", 41, uuid.New(), until))
		cancel()
		require.ErrorContains(t, err, "the token was not sealed: no connection came free")
		require.NotErrorIs(t, err, fencedb.ErrLeaseOver, "it would be tried again, for as long as the pool is used up")
	}
}

// What bounds one user's wait must not end the next one's.
func TestTheNextUserOfAConnectionIsNotBoundByTheLeaseOfTheLast(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var all waiting
	for name, write := range writes {
		pool, _ := w.behindProxy()
		id := int(ids.Add(1))
		all.start(func() (judge func()) {
			_, err := write(t.Context(), pool, grantFor(tableOf(id), 1, 3*time.Second), id)
			_, nextErr := pool.Exec(t.Context(), `SELECT pg_sleep(6.5)`)
			return func() {
				require.NoError(t, err, name)
				require.NoError(t, nextErr, name)
				require.EqualValues(t, 1, pool.Stat().NewConnsCount(), "%s: the next user had another connection", name)
			}
		})
	}
	all.judge()
}

func TestEnterOnASilentConnectionEndsWithTheLease(t *testing.T) {
	t.Parallel()
	silent := func(p *faulty.PostgresProxy) { p.AfterBytes(0, faulty.Silence) }
	for name, c := range map[string]struct {
		begin func(w *world, pool *pgxpool.Pool) (enters func(g fencedb.Grant) error, rollback func() error)
		arm   func(p *faulty.PostgresProxy)
	}{
		"Enter": {func(w *world, pool *pgxpool.Pool) (func(g fencedb.Grant) error, func() error) {
			tx, err := pool.Begin(w.Context())
			require.NoError(w, err)
			return func(g fencedb.Grant) error { return enter(context.Background(), tx, g) },
				func() error { return tx.Rollback(w.Context()) }
		}, silent},
		"EnterSQL": {func(w *world, pool *pgxpool.Pool) (func(g fencedb.Grant) error, func() error) {
			db := stdlib.OpenDBFromPool(pool)
			w.Cleanup(func() { _ = db.Close() })
			tx, err := db.Begin()
			require.NoError(w, err)
			return func(g fencedb.Grant) error { return enterSQL(context.Background(), tx, g) }, tx.Rollback
		}, silent},
		"EnterSQL, when it asks for the transaction": {func(w *world, pool *pgxpool.Pool) (func(g fencedb.Grant) error, func() error) {
			db := stdlib.OpenDBFromPool(pool)
			w.Cleanup(func() { _ = db.Close() })
			conn, err := db.Conn(w.Context())
			require.NoError(w, err)
			_, err = conn.ExecContext(w.Context(), `BEGIN`)
			require.NoError(w, err)
			return func(g fencedb.Grant) error { return enterSQL(context.Background(), conn, g) }, func() error {
				defer conn.Close()
				_, err := conn.ExecContext(w.Context(), `ROLLBACK`)
				return err
			}
		}, func(p *faulty.PostgresProxy) {
			p.OnClient(once(func(msg pgproto3.FrontendMessage) bool {
				parse, ok := msg.(*pgproto3.Parse)
				return ok && strings.Contains(parse.Query, "pg_current_xact_id_if_assigned")
			}, faulty.Silence))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			pool, proxy := w.behindProxy()
			enters, rollback := c.begin(w, pool)
			c.arm(proxy)
			start := time.Now()

			const validity = 2 * time.Second
			err := enters(grantFor("table:12", 41, validity))

			require.ErrorIs(t, err, fencedb.ErrLeaseOver, fmt.Sprint(err))
			require.Less(t, time.Since(start), validity+asking+slack)
			require.Error(t, rollback())
		})
	}
}
