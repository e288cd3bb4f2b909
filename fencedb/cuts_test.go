package fencedb_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
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

// S6 at every byte: the connection ends within the answers of the server, in every way of writing
// and every query mode.

const insertReturning = `INSERT INTO bookings (id, table_id, guest) VALUES ($1, $1, 'ann') RETURNING id`

func tableOf(id int) string { return fmt.Sprint("table:", id) }

// write writes the booking id, of the table with the same number, and reports whether its result
// has come.
type write func(ctx context.Context, db fencedb.DB, g fencedb.Grant, id int) (delivered bool, err error)

func within(use func(ctx context.Context, tx pgx.Tx, id int) (bool, error)) write {
	return func(ctx context.Context, db fencedb.DB, g fencedb.Grant, id int) (delivered bool, err error) {
		err = fencedb.Tx(ctx, db, g, func(tx pgx.Tx) (err error) {
			delivered, err = use(ctx, tx, id)
			return err
		})
		return delivered, err
	}
}

// readAll reads rows as callers do who look at the fields first.
func readAll(rows pgx.Rows, id int) (delivered bool, err error) {
	_ = rows.FieldDescriptions()
	for rows.Next() {
		var got int
		if err := rows.Scan(&got); err != nil {
			return false, err
		}
		delivered = got == id
	}
	rows.Close()
	return delivered, rows.Err()
}

var writes = map[string]write{
	"Exec": func(ctx context.Context, db fencedb.DB, g fencedb.Grant, id int) (bool, error) {
		tag, err := fencedb.Exec(ctx, db, g, insertReturning, id)
		return tag.String() == "INSERT 0 1", err
	},
	"Query": func(ctx context.Context, db fencedb.DB, g fencedb.Grant, id int) (bool, error) {
		rows, err := fencedb.Query(ctx, db, g, insertReturning, id)
		delivered, readErr := readAll(rows, id)
		return delivered, errors.Join(err, readErr)
	},
	"QueryRow": func(ctx context.Context, db fencedb.DB, g fencedb.Grant, id int) (bool, error) {
		var got int
		err := fencedb.QueryRow(ctx, db, g, insertReturning, id).Scan(&got)
		return got == id, err
	},
	"SendBatch": func(ctx context.Context, db fencedb.DB, g fencedb.Grant, id int) (bool, error) {
		var called, got int
		b := &pgx.Batch{}
		b.Queue(`SELECT 1`).Exec(func(pgconn.CommandTag) error { called++; return nil })
		b.Queue(insertReturning, id).QueryRow(func(row pgx.Row) error { return row.Scan(&got) })
		b.Queue(`SELECT 2`)
		b.Queue(`SELECT x FROM generate_series(1, 3) x`).Query(func(rows pgx.Rows) error {
			for rows.Next() {
			}
			called++
			return rows.Err()
		})
		err := fencedb.SendBatch(ctx, db, g, b)
		return called == 2 && got == id, err
	},
	"SendBatch whose callback swallows its error": func(ctx context.Context, db fencedb.DB, g fencedb.Grant, id int) (bool, error) {
		var got int
		b := &pgx.Batch{}
		b.Queue(insertReturning, id).QueryRow(func(row pgx.Row) error { _ = row.Scan(&got); return nil })
		err := fencedb.SendBatch(ctx, db, g, b)
		return got == id, err
	},
	"Exec of a statement that could have ended the transaction": func(ctx context.Context, db fencedb.DB, g fencedb.Grant, id int) (bool, error) {
		tag, err := fencedb.Exec(ctx, db, g, `/* /* */ */ `+insertReturning, id)
		return tag.String() == "INSERT 0 1", err
	},
	"Tx with Exec": within(func(ctx context.Context, tx pgx.Tx, id int) (bool, error) {
		tag, err := tx.Exec(ctx, insertReturning, id)
		return tag.String() == "INSERT 0 1", err
	}),
	"Tx with Query": within(func(ctx context.Context, tx pgx.Tx, id int) (bool, error) {
		rows, _ := tx.Query(ctx, insertReturning, id)
		return readAll(rows, id)
	}),
	"Tx with QueryRow": within(func(ctx context.Context, tx pgx.Tx, id int) (bool, error) {
		var got int
		err := tx.QueryRow(ctx, insertReturning, id).Scan(&got)
		return got == id, err
	}),
	"Tx with SendBatch": within(func(ctx context.Context, tx pgx.Tx, id int) (bool, error) {
		b := &pgx.Batch{}
		b.Queue(insertReturning, id)
		err := tx.SendBatch(ctx, b).Close()
		return err == nil, err
	}),
	"Tx with CopyFrom": within(func(ctx context.Context, tx pgx.Tx, id int) (bool, error) {
		n, err := tx.CopyFrom(ctx, pgx.Identifier{"bookings"}, []string{"id", "table_id", "guest"}, pgx.CopyFromRows([][]any{{id, id, "ann"}}))
		return n == 1, err
	}),
	"Tx with Begin": within(func(ctx context.Context, tx pgx.Tx, id int) (bool, error) {
		err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, insertReturning, id)
			return err
		})
		return err == nil, err
	}),
	"Tx with Conn": within(func(ctx context.Context, tx pgx.Tx, id int) (bool, error) {
		conn := tx.Conn()
		if conn == nil {
			return false, errors.New("no connection")
		}
		_, err := conn.Exec(ctx, insertReturning, id)
		return err == nil, err
	}),
	"TxSQL": func(ctx context.Context, db fencedb.DB, g fencedb.Grant, id int) (delivered bool, err error) {
		sqlDB := stdlib.OpenDBFromPool(db.(*pgxpool.Pool))
		defer sqlDB.Close()
		err = fencedb.TxSQL(ctx, sqlDB, g, func(tx *sql.Tx) error {
			var got int
			err := tx.QueryRowContext(ctx, insertReturning, id).Scan(&got)
			delivered = got == id
			return err
		})
		return delivered, err
	},
	"Tx with Once": within(func(ctx context.Context, tx pgx.Tx, id int) (bool, error) {
		result, _, err := fencedb.Once(ctx, tx, fmt.Sprint("once:", id), nil, func() ([]byte, error) {
			_, err := tx.Exec(ctx, insertReturning, id)
			return []byte("done"), err
		})
		return string(result) == "done", err
	}),
}

// stride is how many bytes apart the cuts are. Close together where answers are read in ways of our
// own and of pgx's own: in a pipeline, and in the simple protocol. With -short they are farther
// apart, as on other versions of Postgres, whose answers have the same messages.
func stride(mode pgx.QueryExecMode, name string) int {
	own, wider := mode == pgx.QueryExecModeCacheStatement || mode == pgx.QueryExecModeSimpleProtocol, 1
	if testenv.Small() {
		wider = 13
	}
	switch {
	case own && !strings.HasPrefix(name, "Tx"):
		return 17 * wider
	case own:
		return 41 * wider
	}
	return 101 * wider
}

func TestAnAnswerThatEndsAtAnyByteIsNoReasonForALie(t *testing.T) {
	t.Parallel()
	shared := newWorld(t).pool
	for _, mode := range queryModes {
		for name, write := range writes {
			t.Run(mode.String()+"/"+name, func(t *testing.T) {
				t.Parallel()
				w := &world{T: t, pool: shared}
				pool, proxy := w.behindProxyIn(mode)
				for n, again := 0, true; again; n += stride(mode, name) {
					id := int(ids.Add(2)) - 1
					_, err := write(t.Context(), pool, grant(tableOf(id), 1), id) // now the statement caches are warm
					require.NoError(t, err)

					proxy.AfterBytes(n, faulty.Cut)
					delivered, err := write(t.Context(), pool, grant(tableOf(id+1), 1), id+1)
					again = proxy.Fired()
					proxy.AfterBytes(-1, faulty.Cut)

					w.judge(fmt.Sprintf("after %d bytes", n), id+1, delivered, err)
					w.awaitIdle(pool)
				}
			})
		}
	}
}

// What the server meant is lost with the byte, so nothing is promised of the answer; but the call
// ends, nothing panics, and the pool is as before. (TLS is what keeps bytes as they are.)
func TestAnAlteredByteMakesNothingPanic(t *testing.T) {
	t.Parallel()
	shared := newWorld(t).pool
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeSimpleProtocol} {
		for name, write := range writes {
			t.Run(mode.String()+"/"+name, func(t *testing.T) {
				t.Parallel()
				w := &world{T: t, pool: shared}
				pool, proxy := w.behindProxyIn(mode)
				for n, again := 0, true; again; n += stride(mode, name) {
					id := int(ids.Add(2)) - 1
					_, err := write(t.Context(), pool, grant(tableOf(id), 1), id) // now the statement caches are warm
					require.NoError(t, err)

					proxy.AfterBytes(n, faulty.Garble)
					ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond) // for a length that grew
					_, _ = write(ctx, pool, grant(tableOf(id+1), 1), id+1)
					cancel()
					again = proxy.Fired()
					proxy.AfterBytes(-1, faulty.Cut)

					w.awaitIdle(pool)
					pool.Reset() // what the caches of this connection hold may be altered
				}
			})
		}
	}
}

// judge compares what a write said with what the database holds.
func (w *world) judge(when string, id int, delivered bool, err error) {
	w.Helper()
	committed := collect[bool](w, `SELECT EXISTS (SELECT FROM bookings WHERE id = $1)`, id)[0]
	switch unknown := (*fencedb.CommitUnknownError)(nil); {
	case couldNotAsk(err):
		w.late++
		require.Less(w, w.late, 4, "%s, as before: %v", when, err)
	case err == nil:
		require.True(w, committed, "%s: nil, and nothing was written", when)
		require.True(w, delivered, "%s: nil, and the result has not come", when)
	case errors.Is(err, fencedb.ErrCommitted):
		require.True(w, committed, "%s: nothing was written: %v", when, err)
	case errors.As(err, &unknown):
		require.Zero(w, unknown.XID, "%s: the server could be asked: %v", when, err)
	default:
		require.False(w, committed, "%s: it was written: %v", when, err)
	}
}

// couldNotAsk reports whether the server was asked what became of a transaction and did not answer
// in five seconds, as happens on a busy machine now and then.
func couldNotAsk(err error) bool {
	return errors.Is(err, fencedb.ErrCommitUnknown) && errors.Is(err, context.DeadlineExceeded)
}

func (w *world) behindProxyIn(mode pgx.QueryExecMode) (*pgxpool.Pool, *faulty.PostgresProxy) {
	w.Helper()
	pool, proxy := w.behindProxy()
	config := pool.Config()
	config.ConnConfig.DefaultQueryExecMode = mode
	pool, err := pgxpool.NewWithConfig(w.Context(), config)
	require.NoError(w, err)
	w.Cleanup(pool.Close)
	w.Cleanup(proxy.Sever)
	return pool, proxy
}

// A seal has no result, so it is done or it is not.
func TestASealThatIsCutAtAnyByteIsNoReasonForALie(t *testing.T) {
	t.Parallel()
	for _, mode := range queryModes {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			pool, proxy := w.behindProxyIn(mode)
			for n, again := 0, true; again; n += stride(mode, "Seal") {
				require.NoError(t, fencedb.Seal(t.Context(), pool, grant("warm", int64(n)+1)))

				proxy.AfterBytes(n, faulty.Cut)
				err := fencedb.Seal(t.Context(), pool, grant("table:12", int64(n)+1))
				again = proxy.Fired()
				proxy.AfterBytes(-1, faulty.Cut)

				switch sealed := w.fence("table:12") == int64(n)+1; {
				case err == nil:
					require.True(t, sealed, "after %d bytes", n)
				case strings.Contains(err.Error(), "unknown whether the token was sealed"):
				default:
					require.False(t, sealed, "after %d bytes: %v", n, err)
				}
				require.NotErrorIs(t, err, fencedb.ErrCommitted)
				require.NotErrorIs(t, err, fencedb.ErrCommitUnknown)
				w.awaitIdle(pool)
			}
		})
	}
}

// As rows of pgx do, whose callers rely on it.
func TestRowsThatCannotBeScannedGiveTheConnectionBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for n, use := range []func(rows pgx.Rows) error{
		func(rows pgx.Rows) error { return rows.Scan(new(time.Time)) },
		func(rows pgx.Rows) error { return rows.Scan(new(int), new(int)) },
	} {
		id := n + 1
		rows, err := fencedb.Query(t.Context(), w.pool, grant(tableOf(id), 41), insertReturning, id)
		require.NoError(t, err)
		require.True(t, rows.Next())

		require.Error(t, use(rows))

		w.awaitIdle(w.pool)
		require.Len(t, w.guests(), id, "it has committed all the same")
	}
}

// A thousand transactions of Tx, and five hundred behind Enter, cut at random places, some with
// their context cancelled as well. Nothing but the truth.
func TestRandomCutsRoundCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)

	cuts := 1000
	if testenv.Small() {
		cuts = 100
	}
	tally := w.cutAtRandom(cuts, func(ctx context.Context, pool *pgxpool.Pool, id int, fn func(pgx.Tx) error) answer {
		g := grant(fmt.Sprintf("effect:%d", id), 1)
		var err error
		if id%3 > 0 {
			err = fencedb.Tx(ctx, pool, g, fn)
		} else {
			err = enterAndAsk(ctx, pool, g, fn)
		}
		switch {
		case err == nil:
			return saysCommitted
		case couldNotAsk(err):
			return saysNothingInTime
		case errors.Is(err, fencedb.ErrCommitUnknown):
			return saysUnknown
		}
		return saysRolledBack
	})

	t.Logf("%+v", tally)
	require.Zero(t, tally.wrong)
	require.Zero(t, tally.unknown)
	require.Less(t, tally.late, cuts/10)
	require.NotZero(t, tally.lost, "no answer to a COMMIT that took effect was ever lost: the test tests nothing")
}

// The control: the same cuts, judged by what pgx says about running the transaction again.
func TestRandomCutsJudgedBySafeToRetryAreMisjudged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)

	tally := w.cutAtRandom(300, func(ctx context.Context, pool *pgxpool.Pool, _ int, fn func(pgx.Tx) error) answer {
		err := pgx.BeginFunc(ctx, pool, fn)
		switch {
		case err == nil:
			return saysCommitted
		case pgconn.SafeToRetry(err):
			return saysRolledBack
		}
		return saysUnknown
	})

	t.Logf("%+v", tally)
	require.NotZero(t, tally.wrong, "when pgx answers this rightly, the controls can go")
}

// answer is what a way of running transactions says became of one.
type answer int

const (
	saysCommitted answer = iota
	saysRolledBack
	saysUnknown
	saysNothingInTime
)

type tally struct {
	wrong, unknown, late int
	lost                 int // the connection was cut, and yet it committed
}

// cutAtRandom runs n transactions on four connections at once, cuts each at a random message, and
// compares what run answers with what the database holds.
func (w *world) cutAtRandom(n int,
	run func(ctx context.Context, pool *pgxpool.Pool, id int, fn func(pgx.Tx) error) answer) tally {
	w.exec(`CREATE TABLE effects (id int PRIMARY KEY)`)
	const workers = 4
	var (
		group sync.WaitGroup
		mu    sync.Mutex
		sum   tally
	)
	for worker := range workers {
		pool, proxy := w.behindProxy()
		random := rand.New(rand.NewPCG(1, uint64(worker)))
		group.Go(func() {
			for id := worker; id < n; id += workers {
				says, cut := cutOnce(w.Context(), pool, proxy, random, id, run)
				committed := w.has(id)
				mu.Lock()
				switch {
				case says == saysUnknown:
					sum.unknown++
				case says == saysNothingInTime:
					sum.late++
				case (says == saysCommitted) != committed:
					sum.wrong++
				}
				if cut && committed {
					sum.lost++
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
	return sum
}

// cutOnce runs one transaction and cuts it at a random message after its first statement.
func cutOnce(ctx context.Context, pool *pgxpool.Pool, proxy *faulty.PostgresProxy, random *rand.Rand, id int,
	run func(context.Context, *pgxpool.Pool, int, func(pgx.Tx) error) answer) (says answer, cut bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	const messages = 6 // INSERT and COMMIT, each a Query, a CommandComplete and a ReadyForQuery
	verdict := []faulty.Fate{faulty.Cut, faulty.CutHalf, faulty.CutAfter}[random.IntN(3)]
	countdown, cancelToo := 1+random.IntN(messages+1), random.IntN(4) == 0
	judge := func() faulty.Fate { // called for one message at a time
		if countdown--; countdown != 0 {
			return faulty.Pass
		}
		if cancelToo {
			cancel()
		}
		cut = true
		return verdict
	}

	says = run(ctx, pool, id, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT 1`); err != nil {
			return err
		}
		proxy.OnClient(func(pgproto3.FrontendMessage) faulty.Fate { return judge() })
		proxy.OnServer(func(pgproto3.BackendMessage) faulty.Fate { return judge() })
		_, err := tx.Exec(ctx, fmt.Sprintf(`INSERT INTO effects VALUES (%d)`, id)) // no arguments: one message
		return err
	})
	proxy.OnClient(nil)
	proxy.OnServer(nil)
	return says, cut
}
