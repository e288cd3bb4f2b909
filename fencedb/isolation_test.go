package fencedb_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
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
)

// bookIfFree decides by what it reads: at most one guest for table 12, whatever the level.
const bookIfFree = `INSERT INTO bookings (id, table_id, guest)
	SELECT $1::int, 12, $2::text WHERE NOT EXISTS (SELECT FROM bookings WHERE table_id = 12)`

// attempt books table 12 for ben under g if it is free, on a connection whose transactions have the
// level by default.
type attempt func(ctx context.Context, conn *pgx.Conn, g fencedb.Grant) error

var attempts = map[string]attempt{
	"Tx, Exec": inTx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, bookIfFree, ids.Add(1), "ben")
		return err
	}),
	"Tx, Query": inTx(func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, bookIfFree, ids.Add(1), "ben")
		if err != nil {
			return err
		}
		rows.Close()
		return rows.Err()
	}),
	"Tx, QueryRow": inTx(func(ctx context.Context, tx pgx.Tx) error {
		err := tx.QueryRow(ctx, bookIfFree+" RETURNING id", ids.Add(1), "ben").Scan(new(int))
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	}),
	"Tx, SendBatch": inTx(func(ctx context.Context, tx pgx.Tx) error {
		b := &pgx.Batch{}
		b.Queue(bookIfFree, ids.Add(1), "ben")
		return tx.SendBatch(ctx, b).Close()
	}),
	"Tx, Begin": inTx(func(ctx context.Context, tx pgx.Tx) error {
		return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, bookIfFree, ids.Add(1), "ben")
			return err
		})
	}),
	"Tx, Conn": inTx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Conn().Exec(ctx, bookIfFree, ids.Add(1), "ben")
		return err
	}),
	"Tx, Prepare": inTx(func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Prepare(ctx, "book", bookIfFree); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "book", ids.Add(1), "ben")
		return err
	}),
	"Tx, CopyFrom": inTx(func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.CopyFrom(ctx, pgx.Identifier{"log"}, []string{"line"}, pgx.CopyFromRows([][]any{{"ben"}})); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, bookIfFree, ids.Add(1), "ben")
		return err
	}),
	"Exec": func(ctx context.Context, conn *pgx.Conn, g fencedb.Grant) error {
		_, err := fencedb.Exec(ctx, conn, g, bookIfFree, ids.Add(1), "ben")
		return err
	},
	"Query": func(ctx context.Context, conn *pgx.Conn, g fencedb.Grant) error {
		rows, err := fencedb.Query(ctx, conn, g, bookIfFree+" RETURNING id", ids.Add(1), "ben")
		if err != nil {
			return err
		}
		rows.Close()
		return rows.Err()
	},
	"QueryRow": func(ctx context.Context, conn *pgx.Conn, g fencedb.Grant) error {
		err := fencedb.QueryRow(ctx, conn, g, bookIfFree+" RETURNING id", ids.Add(1), "ben").Scan(new(int))
		if errors.Is(err, pgx.ErrNoRows) { // it was booked
			return nil
		}
		return err
	},
	"SendBatch": func(ctx context.Context, conn *pgx.Conn, g fencedb.Grant) error {
		b := &pgx.Batch{}
		called := false
		b.Queue(bookIfFree, ids.Add(1), "ben").Exec(func(pgconn.CommandTag) error {
			if called {
				return errors.New("called twice")
			}
			called = true
			return nil
		})
		return fencedb.SendBatch(ctx, conn, g, b)
	},
	"Enter": func(ctx context.Context, conn *pgx.Conn, g fencedb.Grant) error {
		enter := func() error {
			return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
				if err := enter(ctx, tx, g); err != nil {
					return err
				}
				_, err := tx.Exec(ctx, bookIfFree, ids.Add(1), "ben")
				return err
			})
		}
		return afterSealing(ctx, conn, g, enter())(enter)
	},
}

// afterSealing does what ErrUnsealed asks for.
func afterSealing(ctx context.Context, db fencedb.DB, g fencedb.Grant, err error) func(again func() error) error {
	return func(again func() error) error {
		if !errors.Is(err, fencedb.ErrUnsealed) {
			return err
		}
		if err := fencedb.Seal(ctx, db, g); err != nil {
			return err
		}
		return again()
	}
}

func inTx(book func(ctx context.Context, tx pgx.Tx) error) attempt {
	return func(ctx context.Context, conn *pgx.Conn, g fencedb.Grant) error {
		return fencedb.Tx(ctx, conn, g, func(tx pgx.Tx) error { return book(ctx, tx) })
	}
}

// S3. B takes over while A, who shares a fence that it had before, still decides. A only locks the
// fence, which is no conflict for Postgres: a snapshot that B took before A ended would not show
// what A wrote.
func TestANewcomerSeesWhatTheHolderBeforeHasWritten(t *testing.T) {
	t.Parallel()
	for level := range levels {
		for name, attempt := range attempts {
			t.Run(level+"/"+name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.exec(`CREATE TABLE log (line text)`)
				conn := w.connAt(level)
				old := grant("table:12", 41)
				require.NoError(t, fencedb.Seal(t.Context(), w.pool, old))
				a := w.holder(old).enter()

				newer := grant("table:12", 42)
				waiting := make(chan error, 1)
				go func() { waiting <- attempt(t.Context(), conn, newer) }()
				w.awaitBlocked(conn.PgConn().PID())
				a.book("ann")
				a.commit()

				require.NoError(t, received(t, waiting))
				require.Equal(t, []string{"ann"}, w.guests(), "the table was taken")
				require.EqualValues(t, 42, w.fence("table:12"))
				require.NoError(t, attempt(t.Context(), conn, newer), "a later transaction under the same grant")

				require.NoError(t, fencedb.Seal(t.Context(), w.pool, grant("table:12", 43)))
				require.ErrorIs(t, attempt(t.Context(), conn, newer), fencedb.ErrStale)
			})
		}
	}
}

// S7. The seal in front waits for the fence until the lease ends. Then it is the fence that was
// busy, not the lease that was short.
func TestANewcomerThatCannotSealLearnsWhoHasTheFence(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var all waiting
	for level := range levels {
		for name, attempt := range attempts {
			resource := level + "/" + name
			older := grant(resource, 41)
			require.NoError(t, fencedb.Seal(t.Context(), w.pool, older)) // who holds a fence that is new is only guessed
			conn, blocker := w.connAt(level), w.holder(older).enter()
			all.start(func() (judge func()) {
				err := attempt(t.Context(), conn, grantFor(resource, 42, 3*time.Second))
				return func() {
					var busy *fencedb.BusyError
					require.ErrorAs(t, err, &busy, resource)
					require.Len(t, busy.Blockers, 1, resource)
					require.EqualValues(t, blocker.conn.PgConn().PID(), busy.Blockers[0].PID, resource)
					blocker.commit()
				}
			})
		}
	}
	all.judge()
	require.Empty(t, w.guests())
}

// A holder that has entered before meets a newcomer: its snapshot may show its own token, but the
// fence does not any more.
func TestAHolderThatIsOvertakenWhileItBeginsIsStale(t *testing.T) {
	t.Parallel()
	for level := range levels {
		for name, attempt := range attempts {
			t.Run(level+"/"+name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.exec(`CREATE TABLE log (line text)`)
				conn := w.connAt(level)
				older := grant("table:12", 41)
				require.NoError(t, fencedb.Seal(t.Context(), w.pool, older))
				b := w.holder(grant("table:12", 42)).enter()

				waiting := make(chan error, 1)
				go func() { waiting <- attempt(t.Context(), conn, older) }()
				w.awaitBlocked(conn.PgConn().PID())
				b.commit()

				require.ErrorIs(t, received(t, waiting), fencedb.ErrStale)
				require.Empty(t, w.guests())
			})
		}
	}
}

// Two seals: the first raises the fence, the second finds that a newer holder has done so since.
func TestAHolderThatIsOvertakenBehindItsSealIsStale(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]func(
		ctx context.Context, pool *pgxpool.Pool, g fencedb.Grant, level fencedb.Option) error{
		"Tx": func(ctx context.Context, pool *pgxpool.Pool, g fencedb.Grant, level fencedb.Option) error {
			return fencedb.Tx(ctx, pool, g, func(tx pgx.Tx) error { return book(ctx, tx, 12, "ann") }, level)
		},
		"Exec": func(ctx context.Context, pool *pgxpool.Pool, g fencedb.Grant, level fencedb.Option) error {
			_, err := fencedb.Exec(ctx, fencedb.With(pool, level), g, bookAnn)
			return err
		},
		"TxSQL": func(ctx context.Context, pool *pgxpool.Pool, g fencedb.Grant, level fencedb.Option) error {
			db := stdlib.OpenDBFromPool(pool)
			defer db.Close()
			return fencedb.TxSQL(ctx, db, g, inSQL(bookAnn), level)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			pool, proxy := w.behindProxyIn(pgx.QueryExecModeExec)
			var pid uint32
			require.NoError(t, pool.QueryRow(t.Context(), `SELECT pg_backend_pid()`).Scan(&pid))
			sealed, goOn := make(chan struct{}), make(chan struct{})
			entries := 0
			proxy.OnClient(func(msg pgproto3.FrontendMessage) faulty.Fate {
				if parse, ok := msg.(*pgproto3.Parse); ok && strings.Contains(parse.Query, "fencedb.enter") {
					if entries++; entries == 3 { // refused, sealed, and this one again
						close(sealed)
						<-goOn
					}
				}
				return faulty.Pass
			})

			done := make(chan error, 1)
			go func() {
				done <- write(t.Context(), pool, grant("table:12", 41), fencedb.TxOptions(pgx.TxOptions{IsoLevel: pgx.RepeatableRead}))
			}()
			<-sealed
			newer := w.holder(grant("table:12", 42)).enter()
			close(goOn)
			w.awaitBlocked(pid)
			newer.commit()

			require.ErrorIs(t, received(t, done), fencedb.ErrStale)
			require.Empty(t, w.guests())
		})
	}
}

// A seal that does not help is no reason to go on for ever.
func TestATokenThatStaysUnsealedIsRefusedInTheEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`CREATE OR REPLACE FUNCTION fencedb.enter(resource text, token bigint, lease_id uuid, remaining_ms bigint DEFAULT NULL, wait_ms bigint DEFAULT NULL, first boolean DEFAULT false, may_idle boolean DEFAULT true, OUT xid xid8, OUT epoch bigint)
		LANGUAGE plpgsql AS $$
		BEGIN
			IF current_setting('transaction_isolation') <> 'read committed' THEN
				RAISE EXCEPTION 'not sealed' USING ERRCODE = '40001';
			END IF;
			xid := pg_current_xact_id();
			PERFORM set_config('fencedb.entered', xid || ' 9000000000000 9000000000000 ', true);
			epoch := 1;
		END $$`)
	level := fencedb.TxOptions(pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	g := grant("table:12", 41)

	for name, write := range map[string]func(ctx context.Context) error{
		"Tx": func(ctx context.Context) error {
			return fencedb.Tx(ctx, w.pool, g, func(tx pgx.Tx) error { return book(ctx, tx, 12, "ann") }, level)
		},
		"Exec": func(ctx context.Context) error {
			_, err := fencedb.Exec(ctx, fencedb.With(w.pool, level), g, bookAnn)
			return err
		},
		"TxSQL": func(ctx context.Context) error { return fencedb.TxSQL(ctx, w.sqlDB(), g, inSQL(bookAnn), level) },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		require.ErrorIs(t, write(ctx), fencedb.ErrUnsealed, name)
		require.NoError(t, ctx.Err(), name)
		cancel()
	}
}

// The seal has committed, and its connection is lost behind that: no statement was sent.
func TestAConnectionThatIsLostBehindTheSealLeavesNoDoubt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pool, proxy := w.behindProxyIn(pgx.QueryExecModeExec)
	sealed := false
	proxy.OnServer(once(func(msg pgproto3.BackendMessage) bool {
		_, ready := msg.(*pgproto3.ReadyForQuery)
		sealed = sealed || isCommitted(msg)
		return ready && sealed
	}, faulty.Cut))

	_, err := fencedb.Exec(t.Context(), fencedb.With(pool, fencedb.TxOptions(pgx.TxOptions{IsoLevel: pgx.RepeatableRead})), grant("table:12", 41), bookAnn)

	require.ErrorContains(t, err, "nothing was written")
	require.NotErrorIs(t, err, fencedb.ErrCommitUnknown)
	require.EqualValues(t, 41, w.fence("table:12"))
	require.Empty(t, w.guests())
}

// The same through database/sql, where nobody but the application can seal.
func TestEnterSQLAsksForASealAboveReadCommitted(t *testing.T) {
	t.Parallel()
	for level, isolation := range map[string]sql.IsolationLevel{"repeatable read": sql.LevelRepeatableRead, "serializable": sql.LevelSerializable} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			g := grant("table:12", 41)
			enter := func(g fencedb.Grant) error {
				tx, err := w.sqlDB().BeginTx(t.Context(), &sql.TxOptions{Isolation: isolation})
				require.NoError(t, err)
				defer func() { _ = tx.Rollback() }()
				if err := enterSQL(t.Context(), tx, g); err != nil {
					return err
				}
				return tx.Commit()
			}

			err := enter(g)
			require.ErrorIs(t, err, fencedb.ErrUnsealed)
			var pgErr *pgconn.PgError
			require.ErrorAs(t, err, &pgErr)
			require.Equal(t, "40001", pgErr.Code, "whoever tries again on 40001 knows it")
			require.Zero(t, w.fence("table:12"))

			require.NoError(t, fencedb.Seal(t.Context(), w.pool, g))
			require.NoError(t, enter(g))
			require.ErrorIs(t, enter(grant("table:12", 42)), fencedb.ErrUnsealed, "nor over an older token")
			require.EqualValues(t, 41, w.fence("table:12"))
		})
	}
}

// A transaction that was refused for want of a seal goes on in the isolation level that it was
// asked for.
func TestTheLevelStaysWhatTheOptionSays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for level := range levels {
		var got string
		err := fencedb.Tx(t.Context(), w.pool, grant("level:"+level, 1), func(tx pgx.Tx) error {
			return tx.QueryRow(t.Context(), `SHOW transaction_isolation`).Scan(&got)
		}, fencedb.TxOptions(pgx.TxOptions{IsoLevel: pgx.TxIsoLevel(level)}))
		require.NoError(t, err)
		require.Equal(t, level, got)
	}
}

// levels are those above READ COMMITTED.
var levels = map[string]bool{"repeatable read": true, "serializable": true}

// connAt is a connection whose transactions have the level by default.
func (w *world) connAt(level string) *pgx.Conn {
	w.Helper()
	config := w.pool.Config().ConnConfig.Copy()
	config.RuntimeParams["default_transaction_isolation"] = level
	conn, err := pgx.ConnectConfig(w.Context(), config)
	require.NoError(w, err)
	w.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = conn.Close(ctx)
	})
	return conn
}
