package fencedb_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
)

// firstUses is every way in which a function can use its transaction first. Each books table 12 for
// "ann".
var firstUses = map[string]func(ctx context.Context, tx pgx.Tx) error{
	"Exec": func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, insertAnn, 1)
		return errors.Join(err, expect(tag.String() == "INSERT 0 1", "tag %q", tag))
	},
	"Exec without arguments": func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO bookings (id, table_id, guest) VALUES (1, 12, 'ann');`)
		return err
	},
	"Exec of several statements": func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `SET LOCAL application_name = 'x'; INSERT INTO bookings (id, table_id, guest) VALUES (1, 12, 'ann')`)
		return err
	},
	"Exec of nothing, then something": func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "")
		if err == nil {
			_, err = tx.Exec(ctx, insertAnn, 1)
		}
		return err
	},
	"Exec with a query mode": func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, insertAnn, pgx.QueryExecModeSimpleProtocol, 1)
		return err
	},
	"Exec with named arguments": func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO bookings (id, table_id, guest) VALUES (@id, 12, 'ann')`, pgx.NamedArgs{"id": 1})
		return err
	},
	"Query to the end": func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, insertAnn+` RETURNING guest`, 1)
		if err != nil {
			return err
		}
		guests, err := pgx.CollectRows(rows, pgx.RowTo[string])
		return errors.Join(err, expect(len(guests) == 1 && guests[0] == "ann", "guests %q", guests))
	},
	"Query and close": func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, insertAnn+` RETURNING guest`, 1)
		rows.Close()
		return errors.Join(err, rows.Err())
	},
	"QueryRow": func(ctx context.Context, tx pgx.Tx) error {
		var guest string
		err := tx.QueryRow(ctx, insertAnn+` RETURNING guest`, 1).Scan(&guest)
		return errors.Join(err, expect(guest == "ann", "guest %q", guest))
	},
	"SendBatch": func(ctx context.Context, tx pgx.Tx) error {
		b := &pgx.Batch{}
		b.Queue(`SELECT 7`)
		b.Queue(insertAnn, 1)
		results := tx.SendBatch(ctx, b)
		var seven int
		err := results.QueryRow().Scan(&seven)
		return errors.Join(err, results.Close(), expect(seven == 7 && results.Tx() == nil, "got %d", seven))
	},
	"SendBatch with callbacks": func(ctx context.Context, tx pgx.Tx) error {
		var tag pgconn.CommandTag
		b := &pgx.Batch{}
		b.Queue(insertAnn, 1).Exec(func(ct pgconn.CommandTag) error { tag = ct; return nil })
		return errors.Join(tx.SendBatch(ctx, b).Close(), expect(tag.RowsAffected() == 1, "tag %q", tag))
	},
	"CopyFrom": func(ctx context.Context, tx pgx.Tx) error {
		n, err := tx.CopyFrom(ctx, pgx.Identifier{"bookings"}, []string{"id", "table_id", "guest"},
			pgx.CopyFromRows([][]any{{1, 12, "ann"}}))
		return errors.Join(err, expect(n == 1, "%d rows", n))
	},
	"Begin": func(ctx context.Context, tx pgx.Tx) error {
		return pgx.BeginFunc(ctx, tx, func(savepoint pgx.Tx) error {
			_, err := savepoint.Exec(ctx, insertAnn, 1)
			return err
		})
	},
	"Prepare": func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Prepare(ctx, "ins", insertAnn)
		if err == nil {
			_, err = tx.Exec(ctx, "ins", 1)
		}
		return err
	},
	"Conn": func(ctx context.Context, tx pgx.Tx) error {
		conn := tx.Conn()
		if conn == nil {
			return errors.New("no connection")
		}
		_, err := conn.Exec(ctx, insertAnn, 1)
		return err
	},
	"LargeObjects": func(ctx context.Context, tx pgx.Tx) error {
		objects := tx.LargeObjects()
		if _, err := objects.Create(ctx, 0); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, insertAnn, 1)
		return err
	},
}

const insertAnn = `INSERT INTO bookings (id, table_id, guest) VALUES ($1, 12, 'ann')`

func expect(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(format, args...)
}

func TestEveryFirstUseIsBehindTheFence(t *testing.T) {
	t.Parallel()
	for name, use := range firstUses {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			current, stale := grant("table:12", 42), grant("table:12", 41)
			write := func(g fencedb.Grant) error {
				return fencedb.Tx(t.Context(), w.pool, g, func(tx pgx.Tx) error { return use(t.Context(), tx) })
			}

			require.NoError(t, write(current))
			require.Equal(t, []string{"ann"}, w.guests())
			require.EqualValues(t, 42, w.fence("table:12"))

			require.ErrorIs(t, write(stale), fencedb.ErrStale)
			require.Equal(t, []string{"ann"}, w.guests())
			w.awaitIdle(w.pool)
		})
	}
}

var queryModes = []pgx.QueryExecMode{
	pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
	pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
}

func (w *world) poolIn(mode pgx.QueryExecMode) *pgxpool.Pool {
	w.Helper()
	config := w.pool.Config()
	config.ConnConfig.DefaultQueryExecMode = mode
	pool, err := pgxpool.NewWithConfig(w.Context(), config)
	require.NoError(w, err)
	w.Cleanup(pool.Close)
	return pool
}

func TestEveryQueryMode(t *testing.T) {
	t.Parallel()
	for _, mode := range queryModes {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			pool := w.poolIn(mode)
			const odd = `"a"\b,{c} d'`
			ctx, one, two := t.Context(), grant("table:12", 42), fencedb.All(grant("table:12", 43), grant(odd, 43))

			for _, g := range []fencedb.Grant{one, two} {
				require.NoError(t, fencedb.Tx(ctx, pool, g, func(tx pgx.Tx) error { return book(ctx, tx, 12, "ann") }))
				_, err := fencedb.Exec(ctx, pool, g, `UPDATE bookings SET guest = $1`, "ben")
				require.NoError(t, err)
			}
			require.ErrorIs(t, fencedb.Seal(ctx, pool, one), fencedb.ErrStale)
			require.Equal(t, []string{"ben", "ben"}, w.guests())
			require.EqualValues(t, 43, w.fence(odd))
		})
	}
}

// A table is a type as well, and a search_path may name pg_catalog behind it.
func TestTypesOfTheApplicationAreNotTakenForOurs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`CREATE SCHEMA app; CREATE TABLE app.text (body int); CREATE DOMAIN app.uuid AS int; CREATE DOMAIN app.xid8 AS int; CREATE DOMAIN app.bytea AS int`)
	config := w.pool.Config()
	config.ConnConfig.RuntimeParams["search_path"] = "app, public, pg_catalog"
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	ctx, one, two := t.Context(), grant("table:12", 42), grant("table:13", 42)

	require.NoError(t, fencedb.Tx(ctx, pool, one, func(tx pgx.Tx) error {
		_ = tx.Conn() // then Tx asks before COMMIT
		return book(ctx, tx, 12, "ann")
	}))
	for _, g := range []fencedb.Grant{one, fencedb.All(one, two)} {
		require.NoError(t, fencedb.Tx(ctx, pool, g, func(tx pgx.Tx) error {
			_, _, err := fencedb.Once(ctx, tx, "once:1", []byte("request"), func() ([]byte, error) { return []byte("result"), nil })
			return err
		}))
	}
	tx, err := pool.Begin(ctx)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(ctx) }()
	entry, err := fencedb.Enter(ctx, tx, two)
	require.NoError(t, err)
	var busy *fencedb.BusyError
	require.ErrorAs(t, fencedb.Seal(ctx, pool, grantFor("table:13", 43, 3*time.Second)), &busy)
	require.Len(t, busy.Blockers, 1)
	require.NoError(t, tx.Commit(ctx))
	require.NoError(t, entry.Outcome(ctx, pool, nil))
}

// As in pgx, where BEGIN was sent before, under the context of the transaction.
func TestAStatementUnderAContextThatIsOverFailsAlone(t *testing.T) {
	t.Parallel()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	statements := map[string]func(tx pgx.Tx) error{
		"Exec": func(tx pgx.Tx) error {
			_, err := tx.Exec(over, insertAnn, 1)
			return err
		},
		"Exec of several": func(tx pgx.Tx) error {
			_, err := tx.Exec(over, `SELECT 1; SELECT 2`)
			return err
		},
		"Query":    func(tx pgx.Tx) error { return query(tx.Query(over, `SELECT 1`)) },
		"QueryRow": func(tx pgx.Tx) error { return tx.QueryRow(over, `SELECT 1`).Scan(new(int)) },
		"SendBatch": func(tx pgx.Tx) error {
			b := &pgx.Batch{}
			b.Queue(`SELECT 1`)
			return tx.SendBatch(over, b).Close()
		},
		"Prepare": func(tx pgx.Tx) error {
			_, err := tx.Prepare(over, "one", `SELECT 1`)
			return err
		},
		"CopyFrom": func(tx pgx.Tx) error {
			_, err := tx.CopyFrom(over, pgx.Identifier{"bookings"}, []string{"id"}, pgx.CopyFromRows(nil))
			return err
		},
		"Begin": func(tx pgx.Tx) error {
			_, err := tx.Begin(over)
			return err
		},
	}
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeSimpleProtocol} {
		w := newWorld(t)
		pool := w.poolIn(mode)
		conn, err := pool.Acquire(t.Context())
		require.NoError(t, err)
		defer conn.Release()
		for name, statement := range statements {
			then := func(tx pgx.Tx) error {
				require.ErrorIs(t, statement(tx), context.Canceled, name)
				return book(t.Context(), tx, 12, name)
			}
			ctx, next := t.Context(), func() fencedb.Grant { return grant("table:12", w.fence("table:12")+1) }
			for _, db := range []fencedb.DB{pool, conn, conn.Conn()} {
				require.NoError(t, fencedb.Tx(ctx, db, next(), then), "%s, %T", name, db)
				require.ErrorIs(t, fencedb.Tx(ctx, db, next(), statement), context.Canceled, "%s, %T", name, db)
			}
			require.NoError(t, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				_, err := fencedb.Enter(ctx, tx, next())
				require.NoError(t, err)
				return then(tx)
			}), "%s, in a transaction of pgx", name)
		}
		require.Len(t, w.guests(), 4*len(statements))
		require.ErrorIs(t, fencedb.Tx(over, pool, grant("table:13", 41), func(tx pgx.Tx) error { return book(t.Context(), tx, 13, "ann") }), context.Canceled, "that of the call")
	}
}

// It gets the connection, and may decide by what it reads there.
func TestARewriterRunsBehindTheFence(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var status byte
	notes := rewriter(func(conn *pgx.Conn) string {
		status = conn.PgConn().TxStatus()
		return `SELECT 1`
	})
	for name, use := range map[string]func(tx pgx.Tx) error{
		"Exec": func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `SELECT`, notes)
			return err
		},
		"Query": func(tx pgx.Tx) error { return query(tx.Query(t.Context(), `SELECT`, notes)) },
		"SendBatch": func(tx pgx.Tx) error {
			b := &pgx.Batch{}
			b.Queue(`SELECT`, notes)
			return tx.SendBatch(t.Context(), b).Close()
		},
	} {
		status = 0
		require.NoError(t, fencedb.Tx(t.Context(), w.pool, grant("table:12", w.fence("table:12")+1), use), name)
		require.Equal(t, "T", string(status), name)
	}
}

func TestOptionsOfPgxHoldForTheFirstStatementToo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, args := range [][]any{
		{pgx.QueryResultFormats{pgx.TextFormatCode}, pgx.NamedArgs{"n": 7}},
		{pgx.NamedArgs{"n": 7}, pgx.QueryResultFormatsByOID{pgtype.Int4OID: pgx.TextFormatCode}},
		{pgx.NamedArgs{"n": 7}, pgx.QueryExecModeSimpleProtocol},
	} {
		require.NoError(t, fencedb.Tx(t.Context(), w.pool, grant("table:12", w.fence("table:12")+1), func(tx pgx.Tx) error {
			rows, err := tx.Query(t.Context(), `SELECT @n::int`, args...)
			require.NoError(t, err)
			require.True(t, rows.Next())
			require.Equal(t, "7", string(rows.RawValues()[0]), "%T", args)
			rows.Close()
			return rows.Err()
		}))
	}
}

func TestAFunctionThatSendsNothingChecksTheFence(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	nothing := func(pgx.Tx) error { return nil }

	require.NoError(t, fencedb.Tx(t.Context(), w.pool, grant("table:12", 42), nothing))
	require.EqualValues(t, 42, w.fence("table:12"))
	require.ErrorIs(t, fencedb.Tx(t.Context(), w.pool, grant("table:12", 41), nothing), fencedb.ErrStale)
}

func TestARefusalCannotBeSwallowed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	require.NoError(t, fencedb.Seal(t.Context(), w.pool, grant("table:12", 42)))

	for name, use := range firstUses {
		err := fencedb.Tx(t.Context(), w.pool, grant("table:12", 41), func(tx pgx.Tx) error {
			_ = use(t.Context(), tx)
			_ = use(t.Context(), tx)
			return nil
		})
		require.ErrorIs(t, err, fencedb.ErrStale, name)
	}
	err := fencedb.Tx(t.Context(), w.pool, grant("table:12", 43), func(tx pgx.Tx) error {
		require.NoError(t, book(t.Context(), tx, 12, "ann"))
		require.Error(t, book(t.Context(), tx, 13, "ann"))
		return nil
	})
	require.ErrorIs(t, err, pgx.ErrTxCommitRollback)
	require.ErrorIs(t, err, fencedb.ErrWrongResource)
	require.Empty(t, w.guests())
}

// pgx prepares and encodes before it sends BEGIN.
func TestNothingIsSentPastATransactionThatCouldNotBegin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`CREATE TABLE notes (note text)`) // that nothing protects
	ctx, g := t.Context(), grant("table:12", 41)
	for _, mode := range queryModes {
		pool := w.poolIn(mode)
		for sql, arg := range map[string]any{`INSERT INTO nowhere VALUES ($1)`: 1, `INSERT INTO notes VALUES ($1)`: make(chan int)} {
			err := fencedb.Tx(ctx, pool, g, func(tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, sql, arg); err == nil {
					return errors.New("no error")
				}
				_, err := tx.Conn().Exec(ctx, `INSERT INTO notes VALUES ('past the fence')`)
				require.Error(t, err, mode)
				return nil
			})
			require.Error(t, err, mode)
			require.NotErrorIs(t, err, fencedb.ErrTxEnded, mode)
			require.Empty(t, collect[string](w, `SELECT note FROM notes`), mode)
			require.NoError(t, fencedb.Seal(ctx, pool, g), "the connection is good for more")
		}
	}
}

func TestTheFunctionDoesNotCommitOrRollBackByItself(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()

	err := fencedb.Tx(ctx, w.pool, grant("table:12", 41), func(tx pgx.Tx) error {
		require.NoError(t, book(ctx, tx, 12, "ann"))
		require.ErrorContains(t, tx.Commit(ctx), "do not call Commit")
		return errors.New("changed my mind")
	})
	require.EqualError(t, err, "changed my mind")

	err = fencedb.Tx(ctx, w.pool, grant("table:12", 41), func(tx pgx.Tx) error {
		require.NoError(t, book(ctx, tx, 12, "ann"))
		require.NoError(t, tx.Rollback(ctx))
		_, err := tx.Conn().Exec(ctx, `SELECT 1`)
		require.Error(t, err, "it would be a transaction of its own")
		return nil
	})
	require.ErrorIs(t, err, pgx.ErrTxClosed)
	require.ErrorContains(t, err, "the function did so itself")

	err = fencedb.Tx(ctx, w.pool, grant("table:12", 41), func(tx pgx.Tx) error { return tx.Rollback(ctx) })
	require.ErrorIs(t, err, pgx.ErrTxClosed)
	require.Empty(t, w.guests())
}

// Strings that end the transaction, and rows that keep it from ending.
func TestRowsThatAFunctionLeavesOpenRollBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	err := fencedb.Tx(ctx, w.pool, grant("table:12", 99), func(tx pgx.Tx) error {
		require.NoError(t, book(ctx, tx, 12, "ann"))
		_, err := tx.Query(ctx, `SELECT generate_series(1, 1000)`)
		return err
	})
	require.ErrorContains(t, err, "left rows or batch results open")
	require.Empty(t, w.guests())
	w.awaitIdle(w.pool)
}

// angry is an argument whose encoder panics.
type angry struct{}

func (angry) Value() (driver.Value, error) { panic("angry") }

func TestAPanicInAnArgumentOrACallbackGivesTheConnectionBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := &pgx.Batch{}
	b.Queue(`SELECT 1`).QueryRow(func(pgx.Row) error { panic("angry") })
	for name, call := range map[string]func(g fencedb.Grant) error{
		"first statement": func(g fencedb.Grant) error {
			return fencedb.Tx(t.Context(), w.pool, g, func(tx pgx.Tx) error {
				_, err := tx.Exec(t.Context(), insertAnn, angry{})
				return err
			})
		},
		"one-shot": func(g fencedb.Grant) error {
			_, err := fencedb.Exec(t.Context(), w.pool, g, insertAnn, angry{})
			return err
		},
		"callback": func(g fencedb.Grant) error { return fencedb.SendBatch(t.Context(), w.pool, g, b) },
	} {
		require.PanicsWithValue(t, "angry", func() { _ = call(grant("table:12", w.fence("table:12")+1)) }, name)
		w.awaitIdle(w.pool)
	}
}

func TestAPanicRollsBackAndGoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)

	require.PanicsWithValue(t, "boom", func() {
		_ = fencedb.Tx(t.Context(), w.pool, grant("table:12", 41), func(tx pgx.Tx) error {
			require.NoError(t, book(t.Context(), tx, 12, "ann"))
			panic("boom")
		})
	})

	require.Empty(t, w.guests())
	w.awaitIdle(w.pool)
}

func TestATransactionOutlivesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var kept pgx.Tx

	require.NoError(t, fencedb.Tx(t.Context(), w.pool, grant("table:12", 41), func(tx pgx.Tx) error {
		kept = tx
		return nil
	}))

	require.ErrorIs(t, book(t.Context(), kept, 12, "late"), pgx.ErrTxClosed)

	require.Error(t, fencedb.Tx(t.Context(), w.pool, grant("table:12", 42), func(tx pgx.Tx) error {
		kept = tx
		return errors.New("before the first statement")
	}))
	require.ErrorIs(t, book(t.Context(), kept, 12, "late"), pgx.ErrTxClosed)
	require.Nil(t, kept.Conn())
	objects := kept.LargeObjects()
	_, err := objects.Create(t.Context(), 0)
	require.ErrorIs(t, err, pgx.ErrTxClosed)
	require.Empty(t, w.guests())
}

func TestABatchThatBeginsATransactionIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := &pgx.Batch{}
	b.BeginTx(pgx.TxOptions{})

	err := fencedb.Tx(t.Context(), w.pool, grant("table:12", 41), func(tx pgx.Tx) error {
		return tx.SendBatch(t.Context(), b).Close()
	})
	require.ErrorContains(t, err, "cannot be used within a transaction")
	require.ErrorContains(t, fencedb.SendBatch(t.Context(), w.pool, grant("table:12", 41), b), "SendBatch begins the transaction")
}

func TestAnArgumentThatCannotBeEncodedIsAnError(t *testing.T) {
	t.Parallel()
	w := newWorld(t)

	err := fencedb.Tx(t.Context(), w.pool, grant("table:12", 41), func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), insertAnn, "not a number")
		require.Error(t, err)
		return nil
	})

	require.Error(t, err, "what could not be opened cannot be committed")
	w.awaitIdle(w.pool)
	require.Empty(t, w.guests())
}
