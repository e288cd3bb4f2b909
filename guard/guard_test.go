package guard_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/fencedbtest"
	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

func TestMain(m *testing.M) { testenv.Main(m) }

type world struct {
	*testing.T
	pool   *pgxpool.Pool
	redis  *redis.Client
	config lease.Config
	issuer *lease.Issuer
	desk   *guard.Desk
}

func newWorld(t *testing.T) *world {
	w := &world{T: t, redis: testenv.Redis(t)}
	w.pool = testenv.Postgres(t, `CREATE TABLE bookings (table_id int NOT NULL, guest text)`,
		`SELECT fencedb.protect('bookings', 'table:{table_id}')`)
	w.config = lease.Config{TTL: 10 * time.Second, Namespace: testenv.Namespace(t)}
	var err error
	w.issuer, err = lease.New(w.redis, w.config)
	require.NoError(t, err)
	w.desk = guard.New(w.issuer, w.pool)
	return w
}

const insertAnn = `INSERT INTO bookings VALUES (12, 'ann') RETURNING guest`

func (w *world) insert(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, insertAnn)
	return err
}

func (w *world) bookings() (n int) {
	require.NoError(w, w.pool.QueryRow(w.Context(), `SELECT count(*) FROM bookings`).Scan(&n))
	return n
}

// stored is the fence of a resource; 0 if it has none.
func (w *world) stored(resource string) (token int64) {
	require.NoError(w, w.pool.QueryRow(w.Context(), `SELECT coalesce(fencedb.last_token($1), 0)`, resource).Scan(&token))
	return token
}

// ahead makes Redis look as if it had gone backwards: Postgres has seen a token of the future.
func (w *world) ahead(resources ...string) int64 {
	future := time.Now().Add(time.Hour).UnixMicro()
	for _, resource := range resources {
		require.NoError(w, fencedb.Seal(w.Context(), w.pool, fencedb.NewGrant(resource, future, uuid.New(), fencedb.NoEnd)))
	}
	return future
}

func (w *world) free(resource string) {
	w.Helper()
	// It may be given back behind the call.
	l, err := w.issuer.Acquire(w.Context(), resource, lease.WaitAtMost(5*time.Second))
	require.NoError(w, err, "the lease must have been given back")
	require.NoError(w, l.Release(w.Context()))
}

func batch(sql string) *pgx.Batch {
	b := &pgx.Batch{}
	b.Queue(sql)
	return b
}

// read returns the error of all rows.
func read(rows pgx.Rows, _ error) error { // the rows have it too
	_, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return err
}

// work is what a Holder can write a statement with.
var work = map[string]func(ctx context.Context, w *world, h *guard.Holder, sql string) error{
	"Tx": func(ctx context.Context, _ *world, h *guard.Holder, sql string) error {
		return h.Tx(ctx, func(tx pgx.Tx) error { _, err := tx.Exec(ctx, sql); return err })
	},
	"TxSQL": func(ctx context.Context, w *world, h *guard.Holder, statement string) error {
		db := stdlib.OpenDBFromPool(w.pool)
		defer db.Close()
		return h.TxSQL(ctx, db, func(tx *sql.Tx) error { _, err := tx.ExecContext(ctx, statement); return err })
	},
	"Exec": func(ctx context.Context, _ *world, h *guard.Holder, sql string) error {
		_, err := h.Exec(ctx, sql)
		return err
	},
	"Query": func(ctx context.Context, _ *world, h *guard.Holder, sql string) error { return read(h.Query(ctx, sql)) },
	"QueryRow": func(ctx context.Context, _ *world, h *guard.Holder, sql string) error {
		return h.QueryRow(ctx, sql).Scan(new(string))
	},
	"SendBatch": func(ctx context.Context, _ *world, h *guard.Holder, sql string) error {
		return h.SendBatch(ctx, batch(sql))
	},
	"fencedb.Enter": func(ctx context.Context, w *world, h *guard.Holder, sql string) error {
		return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
			if _, err := fencedb.Enter(ctx, tx, h.Grant()); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, sql)
			return err
		})
	},
	"fencedb.All": func(ctx context.Context, w *world, h *guard.Holder, sql string) error {
		_, err := fencedb.Exec(ctx, w.pool, fencedb.All(h.Grant()), sql)
		return err
	},
}

// calls are those of a desk, each writing a statement to table 12.
func calls() map[string]func(ctx context.Context, w *world, d *guard.Desk, sql string) error {
	calls := map[string]func(ctx context.Context, w *world, d *guard.Desk, sql string) error{
		"Tx": func(ctx context.Context, _ *world, d *guard.Desk, sql string) error {
			return d.Tx(ctx, "table:12", func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, sql); return err })
		},
		"Exec": func(ctx context.Context, _ *world, d *guard.Desk, sql string) error {
			_, err := d.Exec(ctx, "table:12", sql)
			return err
		},
		"Query": func(ctx context.Context, _ *world, d *guard.Desk, sql string) error {
			return read(d.Query(ctx, "table:12", sql))
		},
		"QueryRow": func(ctx context.Context, _ *world, d *guard.Desk, sql string) error {
			return d.QueryRow(ctx, "table:12", sql).Scan(new(string))
		},
		"SendBatch": func(ctx context.Context, _ *world, d *guard.Desk, sql string) error {
			return d.SendBatch(ctx, []string{"table:12"}, batch(sql))
		},
	}
	for name, write := range work {
		calls["Do "+name] = func(ctx context.Context, w *world, d *guard.Desk, sql string) error {
			return d.Do(ctx, "table:12", func(ctx context.Context, h *guard.Holder) error { return write(ctx, w, h, sql) })
		}
	}
	calls["DoAll"] = func(ctx context.Context, _ *world, d *guard.Desk, sql string) error {
		return d.DoAll(ctx, []string{"table:13", "table:12"}, func(ctx context.Context, h *guard.Holder) error {
			_, err := h.Exec(ctx, sql)
			return err
		})
	}
	calls["Lead"] = func(ctx context.Context, _ *world, d *guard.Desk, sql string) (err error) {
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		_ = d.Lead(ctx, "table:12", func(ctx context.Context, h *guard.Holder) error {
			_, err = h.Exec(ctx, sql)
			stop()
			return err
		}, lease.OnTerm(func(told error) { err = errors.Join(err, told); stop() }))
		return err
	}
	return calls
}

func TestEveryCallWritesAndGivesTheLeaseBack(t *testing.T) {
	t.Parallel()
	for name, call := range calls() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			require.NoError(t, call(t.Context(), w, w.desk, insertAnn))
			require.Equal(t, 1, w.bookings())
			w.free("table:12")

			err := call(t.Context(), w, w.desk, `INSERT INTO bookings VALUES (14, 'ann') RETURNING guest`)
			require.ErrorIs(t, err, fencedb.ErrWrongResource)
			require.Equal(t, 1, w.bookings())
			w.free("table:12")
		})
	}
}

func TestTheLeaseIsGivenBackOnErrorAndPanic(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	mine := errors.New("mine")
	for name, call := range map[string]func(ctx context.Context, fn func() error) error{
		"Tx": func(ctx context.Context, fn func() error) error {
			return w.desk.Tx(ctx, "table:12", func(context.Context, pgx.Tx) error { return fn() })
		},
		"Do": func(ctx context.Context, fn func() error) error {
			return w.desk.Do(ctx, "table:12", func(context.Context, *guard.Holder) error { return fn() })
		},
		"SendBatch": func(ctx context.Context, fn func() error) error {
			b := &pgx.Batch{}
			b.Queue(`SELECT`).Exec(func(pgconn.CommandTag) error { return fn() })
			return w.desk.SendBatch(ctx, []string{"table:12"}, b)
		},
	} {
		require.ErrorIs(t, call(t.Context(), func() error { return mine }), mine, name)
		w.free("table:12")
		require.Panics(t, func() { _ = call(t.Context(), func() error { panic("boom") }) }, name)
		w.free("table:12")
	}
	ctx, cancel := context.WithCancel(t.Context())
	err := w.desk.Tx(ctx, "table:12", func(ctx context.Context, tx pgx.Tx) error {
		cancel()
		return w.insert(ctx, tx)
	})
	require.ErrorIs(t, err, context.Canceled)
	w.free("table:12")
	require.Zero(t, w.bookings())
}

// Rows keep the lease until they are closed, read to their end, or cannot be read.
func TestRowsKeepTheLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, end := range map[string]func(rows pgx.Rows){
		"closed": func(rows pgx.Rows) { rows.Close() },
		"read": func(rows pgx.Rows) {
			for rows.Next() {
			}
		},
		"not scanned": func(rows pgx.Rows) {
			require.True(t, rows.Next())
			require.Error(t, rows.Scan(new(int)))
		},
		"values": func(rows pgx.Rows) {
			require.True(t, rows.Next())
			values, err := rows.Values()
			require.NoError(t, err)
			require.Equal(t, []any{"ann"}, values)
			require.False(t, rows.Next())
		},
	} {
		rows, err := w.desk.Query(t.Context(), "table:12", insertAnn)
		require.NoError(t, err)
		_, err = w.issuer.Acquire(t.Context(), "table:12", lease.NoWait())
		require.ErrorIs(t, err, lease.ErrHeld, name)
		end(rows)
		w.free("table:12")
		if name == "not scanned" {
			require.ErrorIs(t, rows.Err(), fencedb.ErrCommitted, name)
		} else {
			require.NoError(t, rows.Err(), name)
		}
		rows.Close()
	}
	require.Equal(t, 4, w.bookings())

	rows, err := guard.New(nil, w.pool).Query(t.Context(), "table:12", insertAnn)
	require.ErrorIs(t, err, lease.ErrInvalid)
	require.ErrorIs(t, rows.Err(), lease.ErrInvalid)
	require.ErrorIs(t, rows.Scan(new(string)), lease.ErrInvalid)
	require.Nil(t, rows.FieldDescriptions())
	require.False(t, rows.Next())
}

// entry is a text of the first statement that enters.
func entry(call string) string {
	if call == "DoAll" {
		return "fencedb.enter_all("
	}
	return "fencedb.enter("
}

// What a function does before its first statement, it does behind the fence.
func TestTxEntersBeforeItsFunctionRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	err := w.desk.Tx(t.Context(), "table:12", func(context.Context, pgx.Tx) error {
		next := fencedb.NewGrant("table:12", time.Now().Add(time.Hour).UnixMicro(), uuid.New(), fencedb.NoEnd)
		var err error
		for within := 500 * time.Millisecond; within < 5*time.Second && !errors.Is(err, fencedb.ErrBusy); within *= 2 {
			// a busy machine may answer too late
			ctx, cancel := context.WithTimeout(t.Context(), within)
			err = fencedb.Seal(ctx, w.pool, next)
			cancel()
		}
		require.ErrorIs(t, err, fencedb.ErrBusy, "the transaction is in the way")
		return nil
	})
	require.NoError(t, err)

	postgres := fencedbtest.NewPostgres(t, w.pool.Config().ConnString())
	slow, err := pgxpool.New(t.Context(), postgres.URL())
	require.NoError(t, err)
	t.Cleanup(slow.Close)
	postgres.Pause("fencedb.enter(", func() { fencedbtest.Overtake(t, w.issuer, w.pool, "table:12") })
	err = guard.New(w.issuer, slow).Tx(t.Context(), "table:12", func(context.Context, pgx.Tx) error {
		t.Error("a zombie charges")
		return nil
	})
	require.ErrorIs(t, err, fencedb.ErrStale)
}

func TestTheWorkEndsWithTheLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lost := func(ctx context.Context) {
		_, err := w.issuer.Revoke(t.Context(), "table:12")
		require.NoError(t, err)
		<-ctx.Done()
		require.ErrorIs(t, context.Cause(ctx), lease.ErrRevoked)
	}

	err := w.desk.Tx(t.Context(), "table:12", func(ctx context.Context, tx pgx.Tx) error {
		lost(ctx)
		return w.insert(ctx, tx)
	})
	require.ErrorIs(t, err, lease.ErrRevoked)
	require.Zero(t, w.bookings())

	err = w.desk.Do(t.Context(), "table:12", func(ctx context.Context, h *guard.Holder) error {
		_, err := h.Exec(ctx, insertAnn)
		require.NoError(t, err)
		lost(ctx)
		require.ErrorIs(t, h.Err(), lease.ErrRevoked)
		return nil
	})
	require.NoError(t, err, "what it committed stands")
	require.Equal(t, 1, w.bookings())
}

// The fence has decided by then, so the caller is not told of an error.
func TestWorkThatReturnedNilIsDoneWhateverBecameOfItsLease(t *testing.T) {
	t.Parallel()
	type work = func(ctx context.Context, h *guard.Holder) error
	for name, lose := range map[string]func(t *testing.T, w *world, key string) error{
		"revoked": func(t *testing.T, w *world, _ string) error {
			_, err := w.issuer.Revoke(t.Context(), "table:12")
			return err
		},
		"gone from Redis": func(t *testing.T, w *world, key string) error { return w.redis.Del(t.Context(), key).Err() },
		"not to be released": func(t *testing.T, w *world, key string) error {
			return errors.Join(w.redis.Del(t.Context(), key).Err(), w.redis.LPush(t.Context(), key, "x").Err())
		},
	} {
		for call, try := range map[string]func(w *world, fn work) error{
			"Do":    func(w *world, fn work) error { return w.desk.Do(t.Context(), "table:12", fn) },
			"DoAll": func(w *world, fn work) error { return w.desk.DoAll(t.Context(), []string{"table:11", "table:12"}, fn) },
		} {
			t.Run(call+" "+name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				owner := "lease:v1:{" + w.config.Namespace + "/table:12}:owner"
				require.NoError(t, try(w, func(ctx context.Context, h *guard.Holder) error {
					_, err := h.Exec(ctx, insertAnn)
					return errors.Join(err, lose(t, w, owner))
				}))
				require.Equal(t, 1, w.bookings())
				require.NoError(t, w.redis.Del(t.Context(), owner).Err())

				failed := errors.New("failed")
				require.ErrorIs(t, try(w, func(context.Context, *guard.Holder) error {
					return errors.Join(failed, lose(t, w, owner))
				}), failed)
			})
		}
	}
}

func TestAServerThatIsAwayGivesNoLease(t *testing.T) {
	t.Parallel()
	for name, call := range calls() {
		w := newWorld(t)
		require.NoError(t, w.redis.Close())
		require.Error(t, call(t.Context(), w, w.desk, insertAnn), name)
		require.Zero(t, w.bookings())
	}
	w := newWorld(t)
	for name, call := range calls() {
		require.Error(t, call(t.Context(), w, guard.New(w.issuer, (*pgxpool.Pool)(nil)), insertAnn), name)
		w.free("table:12")
	}
}

// A holder of several is all its grants for everything that writes.
func TestAHolderOfSeveralEntersAll(t *testing.T) {
	t.Parallel()
	w, n := newWorld(t), 0
	for name, write := range work {
		n += 2
		require.NoError(t, w.desk.DoAll(t.Context(), []string{"table:12", "table:13"}, func(ctx context.Context, h *guard.Holder) error {
			return write(ctx, w, h, `INSERT INTO bookings VALUES (12, 'ann'), (13, 'ben') RETURNING guest`)
		}), name)
		require.Equal(t, n, w.bookings(), name)
	}
}

// One lease that is over ends the work of all.
func TestAHolderOfSeveralIsOverWithTheFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	err := w.desk.DoAll(t.Context(), []string{"table:12", "table:13"}, func(ctx context.Context, h *guard.Holder) error {
		require.Len(t, h.Leases(), 2)
		require.NoError(t, h.Err())
		before := h.ValidUntil()
		require.NoError(t, h.Extend(ctx))
		require.True(t, h.ValidUntil().After(before))
		_, err := w.issuer.Revoke(ctx, "table:13")
		require.NoError(t, err)
		err = h.Extend(ctx)
		require.ErrorIs(t, err, lease.ErrRevoked)
		require.ErrorContains(t, err, `"table:13"`)
		<-ctx.Done()
		require.ErrorIs(t, h.Err(), lease.ErrRevoked)
		require.False(t, h.ValidUntil().After(time.Now()))
		_, err = h.Exec(t.Context(), insertAnn)
		return err
	})
	require.ErrorIs(t, err, fencedb.ErrLeaseOver)
	require.True(t, lease.IsLost(err))
	require.Zero(t, w.bookings())
}

// It is a mistake, and not "busy, try again".
func TestAHolderThatWasReleasedWritesNoMore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	err := w.desk.DoAll(t.Context(), []string{"table:12", "table:13"}, func(ctx context.Context, h *guard.Holder) error {
		require.NoError(t, h.Leases().Release(t.Context())) // ctx ends with the leases, and bounds the wait for the answer
		w.free("table:12")
		w.free("table:13")
		_, err := h.Exec(t.Context(), insertAnn)
		return err
	})
	require.ErrorIs(t, err, fencedb.ErrInvalidGrant)
	require.ErrorIs(t, err, lease.ErrReleased)
	require.ErrorContains(t, err, "was released already; write before its release, within the function of Do")
	require.False(t, lease.IsLost(err))
	require.Zero(t, w.bookings())
}

func TestAWritePastTheHolderSaysWhatItLacks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, call := range map[string]func(ctx context.Context, fn func(context.Context, *guard.Holder) error) error{
		"Do": func(ctx context.Context, fn func(context.Context, *guard.Holder) error) error {
			return w.desk.Do(ctx, "table:12", fn)
		},
		"DoAll": func(ctx context.Context, fn func(context.Context, *guard.Holder) error) error {
			return w.desk.DoAll(ctx, []string{"table:12"}, fn)
		},
		"Lead": func(ctx context.Context, fn func(context.Context, *guard.Holder) error) (err error) {
			ctx, stop := context.WithCancel(ctx)
			_ = w.desk.Lead(ctx, "table:12", fn, lease.OnTerm(func(told error) { err = told; stop() }))
			return err
		},
	} {
		err := call(t.Context(), func(ctx context.Context, _ *guard.Holder) error {
			_, err := w.pool.Exec(ctx, insertAnn)
			return err
		})
		require.ErrorIs(t, err, fencedb.ErrNoToken, name)
		require.ErrorContains(t, err, "hint: ", name)

		limit := &pgconn.PgError{Code: "25P03"} // of a transaction that has nothing to do with the lease
		require.Equal(t, limit, call(t.Context(), func(context.Context, *guard.Holder) error { return limit }), name)
	}
	require.Zero(t, w.bookings())
}

// Its transaction begins when the lease has been over for long.
func TestAHolderIsOverWithItsFunction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var kept *guard.Holder
	require.NoError(t, w.desk.Do(t.Context(), "table:12", func(_ context.Context, h *guard.Holder) error { kept = h; return nil }))
	_, err := kept.Exec(t.Context(), insertAnn)
	require.ErrorIs(t, err, fencedb.ErrInvalidGrant)
	require.ErrorContains(t, err, `"table:12" was released already; write before its release, within the function of Do`)
	require.Zero(t, w.bookings())
}

func TestOptionsAmongTheArgumentsAreRefusedByName(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for says, option := range map[string]any{"a lease.Option": lease.NoWait(), "a fencedb.Option": fencedb.Timeout(time.Minute)} {
		_, err := w.desk.Exec(t.Context(), "table:12", insertAnn, option)
		_, queryErr := w.desk.Query(t.Context(), "table:12", insertAnn, option)
		for _, err := range []error{err, queryErr, w.desk.QueryRow(t.Context(), "table:12", insertAnn, option).Scan(new(string))} {
			require.ErrorContains(t, err, says)
			require.ErrorContains(t, err, "issuer.With(...)")
		}
	}
	require.Zero(t, w.bookings())
}

// Both are strings, so nothing else tells that they are the wrong way round.
func TestAResourceThatIsTheSQLIsNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const sql, resource = insertAnn + ` -- and a comment that makes it long`, "table:12"
	_, execErr := w.desk.Exec(t.Context(), sql, resource)
	for name, err := range map[string]error{
		"Exec":     execErr,
		"Query":    read(w.desk.Query(t.Context(), sql, resource)),
		"QueryRow": w.desk.QueryRow(t.Context(), sql, resource).Scan(new(string)),
	} {
		require.ErrorContains(t, err, `on resource "INSERT INTO bookings VALUES (12, 'ann') RETURNING guest -- a…": `, name)
		refused, is := errors.AsType[*pgconn.PgError](err)
		require.True(t, is, name)
		require.Equal(t, "42601", refused.Code, name)
	}
	// Of rows, it comes when they are read.
	err := read(w.desk.Query(t.Context(), "table:12", `SELECT (1 / (2 - n))::text FROM generate_series(1, 2) n`))
	require.ErrorContains(t, err, `on resource "table:12": `)
	require.ErrorContains(t, err, "division by zero")

	_, err = w.desk.Exec(t.Context(), "table:13", insertAnn)
	require.ErrorIs(t, err, fencedb.ErrWrongResource)
	require.NotContains(t, err.Error(), "on resource", "the error names it")
}

func TestAFunctionThatIsNilIsRefusedBeforeAnythingIsAsked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, err := range map[string]error{
		"Do":    w.desk.Do(t.Context(), "table:12", nil),
		"DoAll": w.desk.DoAll(t.Context(), []string{"table:12"}, nil),
		"Lead":  w.desk.Lead(t.Context(), "table:12", nil),
		"Tx":    w.desk.Tx(t.Context(), "table:12", nil),
	} {
		require.ErrorIs(t, err, lease.ErrInvalid, name)
	}
	require.NoError(t, w.desk.Do(t.Context(), "table:12", func(ctx context.Context, h *guard.Holder) error {
		require.ErrorContains(t, h.Tx(ctx, nil), "the function is nil")
		return nil
	}))
}

func TestOptionsOfTheAcquisition(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	held, err := w.issuer.Acquire(t.Context(), "table:12", lease.NoWait())
	require.NoError(t, err)
	nothing := func(context.Context, *guard.Holder) error { return nil }
	for _, opt := range []lease.Option{lease.NoWait(), lease.WaitAtMost(3 * time.Second)} {
		var all sync.WaitGroup
		isHeld := func(name string, call func() error) {
			all.Go(func() { assert.ErrorIs(t, call(), lease.ErrHeld, name) })
		}
		for name, call := range calls() {
			if name != "Lead" { // which waits as it always does
				isHeld(name, func() error { return call(t.Context(), w, guard.New(w.issuer.With(opt), w.pool), insertAnn) })
			}
		}
		tx := func(context.Context, pgx.Tx) error { return nil }
		both := []string{"table:13", "table:12"}
		isHeld("Tx of the call", func() error { return w.desk.Tx(t.Context(), "table:12", tx, opt) })
		isHeld("Do of the call", func() error { return w.desk.Do(t.Context(), "table:12", nothing, opt) })
		isHeld("DoAll of the call", func() error { return w.desk.DoAll(t.Context(), both, nothing, opt) })
		isHeld("SendBatch of the call", func() error { return w.desk.SendBatch(t.Context(), both, new(pgx.Batch), opt) })
		all.Wait()
	}
	require.NoError(t, held.Release(t.Context()))

	require.NoError(t, w.desk.Do(t.Context(), "table:12", func(context.Context, *guard.Holder) error { return nil }, lease.NoWait()))
}

// What has committed is not told as if it had not, when its result cannot be read.
func TestOneShotsThatCannotReadTheirResult(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	require.ErrorIs(t, w.desk.QueryRow(t.Context(), "table:12", insertAnn).Scan(new(int)), fencedb.ErrCommitted)
	require.Equal(t, 1, w.bookings())
	err := w.desk.QueryRow(t.Context(), "table:12", `UPDATE bookings SET guest = 'eve' WHERE false RETURNING guest`).Scan(new(string))
	require.ErrorIs(t, err, pgx.ErrNoRows)
	require.ErrorIs(t, err, fencedb.ErrCommitted, "a trigger may have written")
	w.free("table:12")
}

// It would be sent again.
func TestARowIsScannedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var guest string
	row := w.desk.QueryRow(t.Context(), "table:12", insertAnn)
	require.NoError(t, row.Scan(&guest))
	require.ErrorContains(t, row.Scan(&guest), "scanned before")
	require.Equal(t, 1, w.bookings())
}

// A permit has the type of a lease, and other holders beside it.
func TestAPermitIsNoGrant(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	permits, err := lease.NewSemaphore(w.redis, lease.SemaphoreConfig{Limit: 2, Lease: w.config})
	require.NoError(t, err)
	permit, err := permits.Acquire(t.Context(), "table:12")
	require.NoError(t, err)
	require.True(t, permit.IsPermit())
	for _, grant := range []fencedb.Grant{permit, fencedb.All(permit)} {
		_, err = fencedb.Exec(t.Context(), w.pool, grant, insertAnn)
		require.ErrorIs(t, err, fencedb.ErrInvalidGrant)
		require.ErrorContains(t, err, "permit of a semaphore")
	}
	require.Zero(t, w.bookings())
	require.NoError(t, permit.Release(t.Context()))
	require.NoError(t, permits.Close(t.Context()))
	require.False(t, (*lease.Lease)(nil).IsPermit())
}

// Options that come with the database of a desk hold for whatever its Holder writes with.
func TestTheOptionsOfTheDatabaseHoldForEveryWrite(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, write := range work {
		if strings.HasPrefix(name, "fencedb.") { // called with the pool itself
			continue
		}
		var told writes
		db := fencedb.With(w.pool, fencedb.Trace(&told), fencedb.TxOptions(pgx.TxOptions{IsoLevel: pgx.Serializable}))
		_, err := w.pool.Exec(t.Context(), `DROP TABLE IF EXISTS levels; CREATE TABLE levels (level text)`)
		require.NoError(t, err, name)
		err = guard.New(w.issuer, db).Do(t.Context(), "table:12", func(ctx context.Context, h *guard.Holder) error {
			return write(ctx, w, h, `INSERT INTO levels VALUES (current_setting('transaction_isolation')) RETURNING level`)
		})
		require.NoError(t, err, name)
		var level string
		require.NoError(t, w.pool.QueryRow(t.Context(), `SELECT level FROM levels`).Scan(&level), name)
		require.Equal(t, "serializable", level, name)
		require.EqualValues(t, 1, told.n.Load(), name)
	}

	db := stdlib.OpenDBFromPool(w.pool)
	t.Cleanup(func() { _ = db.Close() })
	desk := guard.New(w.issuer, fencedb.With(w.pool, fencedb.TxOptions(pgx.TxOptions{IsoLevel: pgx.Serializable})))
	require.NoError(t, desk.Do(t.Context(), "table:12", func(ctx context.Context, h *guard.Holder) error {
		return h.TxSQL(ctx, db, func(tx *sql.Tx) error {
			var level string
			require.NoError(t, tx.QueryRowContext(ctx, `SHOW transaction_isolation`).Scan(&level))
			require.Equal(t, "repeatable read", level, "those of the call come last")
			return nil
		}, fencedb.TxOptions(pgx.TxOptions{IsoLevel: pgx.RepeatableRead}))
	}))
}

// writes counts the writes that it is told.
type writes struct{ n atomic.Int32 }

func (*writes) TraceWriteStart(ctx context.Context, _ fencedb.TraceStart) context.Context { return ctx }
func (w *writes) TraceWriteEnd(_ context.Context, e fencedb.TraceEnd) {
	if e.Op == fencedb.OpWrite {
		w.n.Add(1)
	}
}

func TestZeroValuesAreRefused(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	w := newWorld(t)
	calls := calls()
	calls["Lead"] = func(ctx context.Context, _ *world, d *guard.Desk, _ string) error {
		return d.Lead(ctx, "table:12", func(context.Context, *guard.Holder) error { return nil })
	}
	for call, do := range calls {
		require.ErrorIs(t, do(ctx, w, new(guard.Desk), insertAnn), lease.ErrInvalid, call)
	}
	for call, write := range work {
		require.ErrorIs(t, write(ctx, w, new(guard.Holder), insertAnn), fencedb.ErrInvalidGrant, call)
	}
	require.Zero(t, w.bookings())
}
