package fencedb_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/lease"
)

// Mistakes of callers, and what they are told.

// calls are the ways to run one statement, each under a grant of its own.
var calls = map[string]func(ctx context.Context, w *world, g fencedb.Grant, sql string, args ...any) error{
	"Exec": func(ctx context.Context, w *world, g fencedb.Grant, sql string, args ...any) error {
		_, err := fencedb.Exec(ctx, w.pool, g, sql, args...)
		return err
	},
	"Query": func(ctx context.Context, w *world, g fencedb.Grant, sql string, args ...any) error {
		return query(fencedb.Query(ctx, w.pool, g, sql, args...))
	},
	"QueryRow": func(ctx context.Context, w *world, g fencedb.Grant, sql string, args ...any) error {
		if err := fencedb.QueryRow(ctx, w.pool, g, sql, args...).Scan(); !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		return nil
	},
	"SendBatch": func(ctx context.Context, w *world, g fencedb.Grant, sql string, args ...any) error {
		b := &pgx.Batch{}
		b.Queue(sql, args...)
		return fencedb.SendBatch(ctx, w.pool, g, b)
	},
	"Tx, Exec": func(ctx context.Context, w *world, g fencedb.Grant, sql string, args ...any) error {
		return fencedb.Tx(ctx, w.pool, g, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, sql, args...)
			return err
		})
	},
	"Tx, second Exec": func(ctx context.Context, w *world, g fencedb.Grant, sql string, args ...any) error {
		return fencedb.Tx(ctx, w.pool, g, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `SELECT 1`); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, sql, args...)
			return err
		})
	},
	"Tx, Query": func(ctx context.Context, w *world, g fencedb.Grant, sql string, args ...any) error {
		return fencedb.Tx(ctx, w.pool, g, func(tx pgx.Tx) error { return query(tx.Query(ctx, sql, args...)) })
	},
	"Tx, QueryRow": func(ctx context.Context, w *world, g fencedb.Grant, sql string, args ...any) error {
		return fencedb.Tx(ctx, w.pool, g, func(tx pgx.Tx) error {
			if err := tx.QueryRow(ctx, sql, args...).Scan(); !errors.Is(err, pgx.ErrNoRows) {
				return err
			}
			return nil
		})
	},
	"Tx, SendBatch": func(ctx context.Context, w *world, g fencedb.Grant, sql string, args ...any) error {
		return fencedb.Tx(ctx, w.pool, g, func(tx pgx.Tx) error {
			b := &pgx.Batch{}
			b.Queue(sql, args...)
			return tx.SendBatch(ctx, b).Close()
		})
	},
	"Tx, savepoint": func(ctx context.Context, w *world, g fencedb.Grant, sql string, args ...any) error {
		return fencedb.Tx(ctx, w.pool, g, func(tx pgx.Tx) error {
			return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, sql, args...)
				return err
			})
		})
	},
}

func TestOptionsAmongTheArgumentsAreRefusedByName(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, option := range map[string]any{
		"argument 2 is a fencedb.Option":   fencedb.Timeout(1),
		"argument 2 is a lease.Option":     lease.NoWait(),
		"argument 2 is a func(*pgx.Batch)": func(*pgx.Batch) {},
	} {
		for call, run := range calls {
			err := run(t.Context(), w, grant("table:12", 41), `INSERT INTO bookings VALUES ($1, 12, 'ann')`, 1, option)
			require.ErrorContains(t, err, name, call)
			require.ErrorContains(t, err, "nothing was sent", call)
		}
		err := fencedb.ExplainNoRows(t.Context(), w.pool, grant("table:12", 41), `SELECT $1::bigint`, 1, option)
		require.ErrorContains(t, err, name)
	}
	require.Empty(t, w.guests())
	require.Zero(t, w.fence("table:12"))
	w.awaitIdle(w.pool)
}

// over is a grant that tells why it is over, as a lease does.
type over struct {
	fencedb.Grant
	until    time.Time
	cause    error
	released bool
}

func (g over) ValidUntil() time.Time { return g.until }
func (g over) Err() error            { return g.cause }
func (g over) Released() bool        { return g.released }

func TestALeaseThatIsOverSaysWhichAndWhy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	db := w.sqlDB()
	before := func(int) time.Time { return time.Now().Add(-time.Second) }
	soon := func(try int) time.Time { return time.Now().Add(time.Duration(try) * time.Second) }
	for name, c := range map[string]struct {
		until    func(try int) time.Time
		released bool
		want     error
	}{
		"before it began":            {before, false, fencedb.ErrLeaseOver},
		"released before it began":   {before, true, fencedb.ErrInvalidGrant},
		"while it lasted":            {soon, false, fencedb.ErrLeaseOver},
		"released while it lasted":   {soon, true, fencedb.ErrInvalidGrant},
		"a grant without any causes": {soon, false, fencedb.ErrLeaseOver},
	} {
		ended := errors.New("ended")
		tell := map[string]func(fencedb.Grant) error{"TxSQL": func(g fencedb.Grant) error {
			return fencedb.TxSQL(t.Context(), db, g, func(tx *sql.Tx) error {
				_, err := tx.ExecContext(t.Context(), `SELECT pg_sleep(60)`)
				return err
			})
		}, "Enter": func(g fencedb.Grant) error {
			tx, err := w.pool.Begin(t.Context())
			require.NoError(t, err)
			entry, err := fencedb.Enter(t.Context(), tx, g)
			if err != nil {
				return errors.Join(err, tx.Rollback(t.Context()))
			}
			_, err = tx.Exec(t.Context(), `SELECT pg_sleep(60)`)
			_ = tx.Rollback(t.Context()) // from Postgres 17 on the session has ended
			return entry.Outcome(t.Context(), w.pool, err)
		}}
		for call, run := range calls {
			tell[call] = func(g fencedb.Grant) error { return run(t.Context(), w, g, `SELECT pg_sleep(60)`) }
		}
		var all sync.WaitGroup
		for call, run := range tell {
			all.Go(func() {
				for tries := 1; ; tries++ { // on a machine that stands still meanwhile, time is over elsewhere before the lease is
					g := over{fencedb.NewGrant("table:12, "+call, time.Now().UnixMicro(), uuid.New(), fencedb.NoEnd), c.until(tries), ended, c.released}
					if strings.Contains(name, "without") {
						g.cause = nil
					}
					err := run(g)
					says := errors.Is(err, c.want) && strings.Contains(err.Error(), `"table:12, `) && errors.Is(err, ended) == (g.cause != nil)
					if says && lease.IsLost(err) == (c.want == fencedb.ErrLeaseOver) {
						return
					}
					if t.Logf("%s, %s, %v before its end: %v", name, call, time.Until(g.until), err); tries == 6 {
						t.Errorf("%s, %s: not what is over, six times", name, call)
						return
					}
				}
			})
		}
		all.Wait()
	}
}

// The context of work under a lease is over once the lease is released, so that comes on top.
func TestAReleasedLeaseIsSaidOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	released := errors.New("released")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(released)
	before := time.Now().Add(-time.Second)
	for call, run := range calls {
		err := run(ctx, w, over{grant("table:12", 41), before, released, true}, `SELECT 1`)
		require.ErrorIs(t, err, fencedb.ErrInvalidGrant, call)
		require.ErrorIs(t, err, released, call)
		for line := range strings.Lines(err.Error()) { // the function may repeat what it was told
			require.Equal(t, 1, strings.Count(line, "fencedb: "), "%s: %v", call, err)
		}
	}
}

func TestAFunctionThatIsNilIsRefusedBeforeAnythingIsAsked(t *testing.T) {
	t.Parallel()
	db, err := sql.Open("pgx", "postgres://127.0.0.1:1/nothing")
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	nowhere, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/nothing")
	require.NoError(t, err)
	t.Cleanup(nowhere.Close)
	for _, err := range []error{
		fencedb.Tx(t.Context(), nowhere, grant("table:12", 41), nil),
		fencedb.TxSQL(t.Context(), db, grant("table:12", 41), nil),
	} {
		require.ErrorContains(t, err, "nothing was written: the function is nil")
	}
}

// The end of a context alone would say neither.
func TestACallWhoseContextIsOverSaysWhatWasNotWritten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	over, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	db, conn := w.sqlDB(), w.conn()
	tx, err := w.pool.Begin(t.Context())
	require.NoError(t, err)
	txSQL, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	_, enter := fencedb.Enter(over, tx, grant("table:12", 41))
	_, enterSQL := fencedb.EnterSQL(over, txSQL, grant("table:12", 41))
	errs := map[string]error{
		"TxSQL":          fencedb.TxSQL(over, db, grant("table:12", 41), func(*sql.Tx) error { return nil }),
		"Seal":           fencedb.Seal(over, w.pool, grant("table:12", 41)),
		"Seal on a Conn": fencedb.Seal(over, conn, grant("table:12", 41)),
		"Enter":          enter,
		"EnterSQL":       enterSQL,
	}
	for call, run := range calls {
		errs[call] = run(over, w, grant("table:12", 41), `SELECT 1`)
	}
	for call, err := range errs {
		require.ErrorIs(t, err, context.DeadlineExceeded, call)
		require.ErrorContains(t, err, `nothing was written to ["table:12"]: `, call)
	}
	require.NoError(t, tx.Rollback(t.Context()))
	require.NoError(t, txSQL.Rollback())
}

// As in an errgroup. One of them is told, and nothing is lost in silence.
func TestTwoGoroutinesInOneTransactionAreTold(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	for name, use := range map[string]func(tx pgx.Tx, id int) error{
		"Exec": func(tx pgx.Tx, id int) error {
			_, err := tx.Exec(ctx, insertAnn, id)
			return err
		},
		"QueryRow": func(tx pgx.Tx, id int) error {
			return tx.QueryRow(ctx, insertAnn+` RETURNING id`, id).Scan(&id)
		},
		"SendBatch": func(tx pgx.Tx, id int) error {
			b := &pgx.Batch{}
			b.Queue(insertAnn, id)
			return tx.SendBatch(ctx, b).Close()
		},
		"CopyFrom": func(tx pgx.Tx, id int) error {
			_, err := tx.CopyFrom(ctx, pgx.Identifier{"bookings"}, []string{"id", "table_id", "guest"}, pgx.CopyFromRows([][]any{{id, 12, "ann"}}))
			return err
		},
		"Prepare": func(tx pgx.Tx, id int) error {
			_, err := tx.Prepare(ctx, "", insertAnn)
			return err
		},
		"Begin": func(tx pgx.Tx, id int) error { return pgx.BeginFunc(ctx, tx, func(pgx.Tx) error { return nil }) },
		"LargeObjects": func(tx pgx.Tx, id int) error {
			objects := tx.LargeObjects()
			_, err := objects.Create(ctx, 0)
			return err
		},
		"Rollback": func(tx pgx.Tx, id int) error { return tx.Rollback(ctx) },
	} {
		// The first holds the call while the second tries: it waits for a lock within its statement.
		w.exec(`TRUNCATE fencedb.fences`)
		blocker := w.locking("fencedb.fences")
		err := fencedb.Tx(ctx, w.pool, grant("table:12", 41), func(tx pgx.Tx) error {
			var g errgroup.Group
			g.Go(func() error {
				_, err := tx.Exec(ctx, insertAnn, ids.Add(1))
				return err
			})
			require.Eventually(t, func() bool {
				return collect[bool](w, `SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'fencedb.fences'::regclass
					AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`)[0] // other tests wait on this server, too
			}, time.Minute, time.Millisecond)
			second := use(tx, int(ids.Add(1)))
			_ = tx.Conn() // must not wait either
			require.NoError(t, blocker.Rollback(ctx))
			require.NoError(t, g.Wait(), name)
			return second
		})

		if name == "LargeObjects" { // which has no error of its own
			require.ErrorIs(t, err, pgx.ErrTxClosed)
			continue
		}
		require.ErrorContains(t, err, "busy", name)
		require.NotErrorIs(t, err, fencedb.ErrBusy, "that is the fence")
		require.Empty(t, w.guests(), name)
		w.awaitIdle(w.pool)
	}
}

// For the race detector.
func TestManyGoroutinesInOneTransactionLoseNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for range 20 {
		var told, done int
		var mu sync.Mutex
		err := fencedb.Tx(t.Context(), w.pool, grant("table:12", time.Now().UnixMicro()), func(tx pgx.Tx) error {
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() {
					_, err := tx.Exec(t.Context(), insertAnn, ids.Add(1))
					mu.Lock()
					defer mu.Unlock()
					if err == nil {
						done++
					} else {
						told++
					}
				})
			}
			all.Wait()
			return nil
		})
		require.NoError(t, err)
		require.Equal(t, 4, told+done)
		require.Len(t, w.guests(), done)
		w.exec(`ALTER TABLE bookings DISABLE TRIGGER USER; TRUNCATE bookings; ALTER TABLE bookings ENABLE TRIGGER USER`)
	}
	w.awaitIdle(w.pool)
}

func TestAStatementWhoseErrorWasSwallowedIsNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	const failing = `SELECT 1 / (table_id - 12) FROM bookings`
	for name, use := range map[string]func(tx pgx.Tx){
		"Exec":     func(tx pgx.Tx) { _, _ = tx.Exec(ctx, failing) },
		"Query":    func(tx pgx.Tx) { _ = query(tx.Query(ctx, failing)) },
		"QueryRow": func(tx pgx.Tx) { _ = tx.QueryRow(ctx, failing).Scan(new(int)) },
		"and others behind it": func(tx pgx.Tx) {
			_, _ = tx.Exec(ctx, failing)
			_, _ = tx.Exec(ctx, `SELECT 2`)
		},
		"behind one that a savepoint has undone": func(tx pgx.Tx) {
			_ = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { _, err := tx.Exec(ctx, `SELECT 'x'::int`); return err })
			_, _ = tx.Exec(ctx, failing)
		},
		"past us": func(tx pgx.Tx) {
			_ = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { _, err := tx.Exec(ctx, `SELECT 'x'::int`); return err })
			_, _ = tx.Conn().Exec(ctx, failing)
		},
		"SendBatch": func(tx pgx.Tx) {
			b := &pgx.Batch{}
			b.Queue(`SELECT 2`)
			b.Queue(failing)
			_ = tx.SendBatch(ctx, b).Close()
		},
		"CopyFrom": func(tx pgx.Tx) {
			_, _ = tx.CopyFrom(ctx, pgx.Identifier{"bookings"}, []string{"id", "table_id", "guest"}, pgx.CopyFromRows([][]any{{0, 12, "ann"}}))
		},
		"Prepare": func(tx pgx.Tx) { _, _ = tx.Prepare(ctx, "", `SELECT nothing`) },
		"long":    func(tx pgx.Tx) { _, _ = tx.Exec(ctx, failing+strings.Repeat(" ", 300)) },
	} {
		for _, first := range []bool{false, true} {
			w.exec(`ALTER TABLE bookings DISABLE TRIGGER USER; TRUNCATE bookings`)
			w.exec(`INSERT INTO bookings VALUES (0, 12, 'zoe'); ALTER TABLE bookings ENABLE TRIGGER USER`)
			err := fencedb.Tx(ctx, w.pool, grant("table:12", time.Now().UnixMicro()), func(tx pgx.Tx) error {
				if !first {
					if err := book(ctx, tx, 12, "ann"); err != nil {
						return err
					}
				}
				use(tx)
				return nil
			})

			require.ErrorIs(t, err, pgx.ErrTxCommitRollback, name)
			var refused *pgconn.PgError
			switch name {
			case "past us":
				require.False(t, errors.As(err, &refused), "%v", err)
				continue
			case "SendBatch":
				require.ErrorContains(t, err, `"a batch of length 2 that begins with SELECT 2"`)
			case "CopyFrom":
				require.ErrorContains(t, err, `COPY \"bookings\"`)
			case "Prepare":
				require.ErrorContains(t, err, `"SELECT nothing"`)
			case "long":
				require.ErrorContains(t, err, `…"`)
			default:
				require.ErrorContains(t, err, `"`+failing+`"`, name)
			}
			require.ErrorContains(t, err, "SQLSTATE ", name)
			require.ErrorAs(t, err, &refused, name)
			require.Equal(t, []string{"zoe"}, w.guests(), name)
		}
	}
}

func TestTxSQLSaysThatAnErrorWasSwallowed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	err := fencedb.TxSQL(t.Context(), w.sqlDB(), grant("table:12", 41), func(tx *sql.Tx) error {
		_, _ = tx.ExecContext(t.Context(), `SELECT 1 / 0`)
		return nil
	})
	require.ErrorContains(t, err, "fencedb: rolled back: a statement failed, and the function returned nil (database/sql does not show which): ")
	require.ErrorContains(t, err, "SQLSTATE 25P02")
}

// Neither the first word of a statement nor its command tag tells that nothing was written:
// functions and triggers write, and WITH does.
func TestNoRowsOfWhatMayHaveWrittenIsErrCommitted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`CREATE TABLE b (id int); CREATE TABLE effects (id int);
		CREATE FUNCTION book(n int) RETURNS SETOF int LANGUAGE sql AS 'INSERT INTO effects VALUES (n); SELECT 1 WHERE false';
		CREATE FUNCTION book() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO effects VALUES (0); RETURN NULL; END';
		CREATE TRIGGER instead BEFORE INSERT ON b FOR EACH ROW WHEN (NEW.id = 1) EXECUTE FUNCTION book();
		CREATE TRIGGER too AFTER UPDATE ON b EXECUTE FUNCTION book()`)
	for sql, written := range map[string]int{
		`INSERT INTO b VALUES (1) RETURNING id`:                                                 1,
		`UPDATE b SET id = 2 WHERE false RETURNING id`:                                          1,
		`DELETE FROM b WHERE EXISTS (SELECT book(1)) RETURNING id`:                              1,
		`INSERT INTO b SELECT book(2) RETURNING id`:                                             1,
		`WITH x AS (INSERT INTO effects VALUES (1) RETURNING id) SELECT id FROM x WHERE id < 0`: 1,
		`WITH x AS (INSERT INTO effects VALUES (1)) DELETE FROM b WHERE false RETURNING id`:     1,
		`SELECT book(1)`:               1,
		`SELECT id FROM b WHERE false`: 0,
		`MERGE INTO b USING b o ON false WHEN NOT MATCHED AND false THEN DO NOTHING`: 0,
	} {
		before := len(collect[int](w, `SELECT id FROM effects`))

		err := fencedb.QueryRow(t.Context(), w.pool, grant("b", time.Now().UnixMicro()), sql).Scan(new(int))

		require.ErrorIs(t, err, pgx.ErrNoRows, sql)
		require.ErrorIs(t, err, fencedb.ErrCommitted, sql)
		require.Len(t, collect[int](w, `SELECT id FROM effects`), before+written, sql)
	}
}

// The connection breaks when the transaction has used up its time, under a lease that was renewed.
// Nothing says that the server has ended it because of that.
func TestAConnectionThatIsLostLateIsNotATransactionThatLastedTooLong(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]func(pool *pgxpool.Pool, g fencedb.Grant, late func(pid int)) error{
		"Tx": func(pool *pgxpool.Pool, g fencedb.Grant, late func(pid int)) error {
			return fencedb.Tx(t.Context(), pool, g, func(tx pgx.Tx) error {
				var pid int
				if err := tx.QueryRow(t.Context(), `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
					return err
				}
				late(pid)
				return book(t.Context(), tx, 12, "ann")
			})
		},
		"TxSQL": func(pool *pgxpool.Pool, g fencedb.Grant, late func(pid int)) error {
			db := stdlib.OpenDBFromPool(pool)
			defer db.Close()
			return fencedb.TxSQL(t.Context(), db, g, func(tx *sql.Tx) error {
				var pid int
				if err := tx.QueryRowContext(t.Context(), `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
					return err
				}
				late(pid)
				_, err := tx.ExecContext(t.Context(), insertAnn, 1)
				return err
			})
		},
	} {
		w := newWorld(t)
		pool, proxy := w.behindProxy()
		g := renewed{grant("table:12", 41), 2 * time.Second} // until then the proxy has to cut, on a busy machine too

		err := write(pool, g, func(pid int) {
			cut := make(chan struct{})
			once := sync.OnceFunc(func() { close(cut) })
			proxy.OnServer(func(msg pgproto3.BackendMessage) faulty.Fate {
				if _, last := msg.(*pgproto3.ErrorResponse); last {
					once()
				}
				return faulty.Cut
			})
			awaitEnd(w, uint32(pid))
			<-cut // it may be read after the session has gone
			proxy.OnServer(nil)
		})

		require.Error(t, err)
		require.NotErrorIs(t, err, fencedb.ErrTooLong, name)
		require.NotErrorIs(t, err, fencedb.ErrLeaseOver, name)
		require.NotErrorIs(t, err, fencedb.ErrCommitUnknown, name)
		require.ErrorContains(t, err, "connection to Postgres was lost", name)
		require.Empty(t, w.guests(), name)
	}
}
