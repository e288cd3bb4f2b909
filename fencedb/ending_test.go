package fencedb_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/faulty"
)

// Statements of the caller that end the transaction which holds the fence.

// ending is statements, and what is then true if they are sent. They are refused, unless hidden
// says that nobody can see it.
type ending struct {
	statements string // separated by semicolons
	outcome    string // of the transaction; "" if the statements do not end it
	effects    []int
	hidden     bool
	quoted     bool  // in a way that hides it in one string
	rest       []int // what Postgres commits besides, where the statements are one string that nobody sees
}

var endings = []ending{
	{statements: `INSERT INTO effects VALUES (1); ROLLBACK`, outcome: "aborted"},
	{statements: `INSERT INTO effects VALUES (1); ABORT`, outcome: "aborted"},
	{statements: `INSERT INTO effects VALUES (1); ROLLBACK; INSERT INTO effects VALUES (2)`, outcome: "aborted", rest: []int{2}},
	{statements: `INSERT INTO effects VALUES (1); ROLLBACK AND CHAIN; INSERT INTO effects VALUES (2)`, outcome: "aborted"},
	{statements: `INSERT INTO effects VALUES (1); ROLLBACK; BEGIN; INSERT INTO effects VALUES (2)`, outcome: "aborted"},
	{statements: `INSERT INTO effects VALUES (1); COMMIT`, outcome: "committed", effects: []int{1}},
	{statements: `INSERT INTO effects VALUES (1); COMMIT; INSERT INTO effects VALUES (2)`, outcome: "committed", effects: []int{1}, rest: []int{2}},
	{statements: `INSERT INTO effects VALUES (1); /* then */ COMMIT AND CHAIN; INSERT INTO effects VALUES (2)`, outcome: "committed", effects: []int{1}},
	{statements: `INSERT INTO effects VALUES (1); COMMIT; BEGIN; INSERT INTO effects VALUES (2)`, outcome: "committed", effects: []int{1}},
	{statements: `INSERT INTO effects VALUES (1); END; START TRANSACTION; INSERT INTO effects VALUES (2)`, outcome: "committed", effects: []int{1}},
	{statements: `INSERT INTO effects VALUES (1); COMMIT; BEGIN; INSERT INTO effects VALUES (2), (2)`, outcome: "committed", effects: []int{1}},
	{statements: `INSERT INTO effects VALUES (1); PREPARE TRANSACTION 'ending'`, outcome: "in progress"},
	{statements: `INSERT INTO effects VALUES (1); PREPARE TRANSACTION 'ending'; BEGIN; INSERT INTO effects VALUES (2)`, outcome: "in progress"},
	{statements: `INSERT INTO effects VALUES (1); RESET ALL`, outcome: "aborted", hidden: true}, // it takes away what enter has set
	{statements: `COMMIT`, outcome: "committed"},
	{statements: `ROLLBACK`, outcome: "aborted"},
	{statements: `COMMIT AND CHAIN`, outcome: "committed"},
	{statements: "--\rROLLBACK AND CHAIN", outcome: "aborted"},
	{statements: `/*x/*/ SELECT */*/ COMMIT AND CHAIN`, outcome: "committed", hidden: true},
	{statements: `PREPARE TRANSACTION 'ending'`, outcome: "in progress"},
	{statements: `INSERT INTO effects VALUES (1, E'\''); COMMIT; INSERT INTO effects VALUES (2)`, outcome: "committed", effects: []int{1}, quoted: true, rest: []int{2}},

	{statements: `INSERT INTO effects VALUES (1, ';commit;'); DO $$ BEGIN INSERT INTO effects VALUES (2);END $$; DELETE FROM effects AS ";rollback" WHERE false`, effects: []int{1, 2}},
	{statements: `INSERT INTO effects VALUES (1, 'C:\', ';commit'); DELETE FROM effects WHERE false /* ;abort */`, effects: []int{1}},
	{statements: `INSERT INTO effects VALUES (1, E'a\';commit;\'d')`, effects: []int{1}},
	{statements: "CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql BEGIN ATOMIC SELECT 1;END; INSERT INTO effects VALUES (1) -- ;rollback\n", effects: []int{1}},
	{statements: `SAVEPOINT a; INSERT INTO effects VALUES (1); ROLLBACK TO a; INSERT INTO effects VALUES (2); RELEASE a`, effects: []int{2}},
	{statements: `BEGIN; INSERT INTO effects VALUES (1)`, effects: []int{1}},
	{statements: "-- name: Insert :exec\nINSERT INTO effects VALUES (1)", effects: []int{1}},
	{statements: `/* /* */ SELECT */ INSERT INTO effects VALUES (1)`, effects: []int{1}},
	{statements: `/*/// totals /// */ INSERT INTO effects VALUES (1)`, effects: []int{1}},
}

// run runs statements in one of many ways; those that it cannot run that way are skipped.
type run func(ctx context.Context, db fencedb.DB, g fencedb.Grant, statements []string) error

var errSkip = errors.New("skip")

func batchOf(statements []string) *pgx.Batch {
	b := &pgx.Batch{}
	for _, sql := range statements {
		b.Queue(sql)
	}
	return b
}

// each runs the statements one by one, in a transaction of Tx.
func each(use func(ctx context.Context, tx pgx.Tx, sql string) error) run {
	return func(ctx context.Context, db fencedb.DB, g fencedb.Grant, statements []string) error {
		return fencedb.Tx(ctx, db, g, func(tx pgx.Tx) error {
			for _, sql := range statements {
				if err := use(ctx, tx, sql); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

func modeOf(db fencedb.DB) pgx.QueryExecMode {
	return db.(*pgxpool.Pool).Config().ConnConfig.DefaultQueryExecMode
}

// oneString runs the statements in one string, in a transaction of Tx. The other modes of pgx do
// not differ for it.
func oneString(use func(ctx context.Context, tx pgx.Tx, sql string) error) run {
	return func(ctx context.Context, db fencedb.DB, g fencedb.Grant, statements []string) error {
		if mode := modeOf(db); mode != pgx.QueryExecModeCacheStatement && mode != pgx.QueryExecModeSimpleProtocol {
			return errSkip
		}
		return fencedb.Tx(ctx, db, g, func(tx pgx.Tx) error { return use(ctx, tx, strings.Join(statements, ";")) })
	}
}

// rewriter makes the statement that is sent.
type rewriter func(*pgx.Conn) string

func (r rewriter) RewriteQuery(_ context.Context, conn *pgx.Conn, _ string, args []any) (string, []any, error) {
	return r(conn), args, nil
}

// single runs the only statement.
func single(use func(ctx context.Context, db fencedb.DB, g fencedb.Grant, sql string) error) run {
	return func(ctx context.Context, db fencedb.DB, g fencedb.Grant, statements []string) error {
		if len(statements) > 1 {
			return errSkip
		}
		return use(ctx, db, g, statements[0])
	}
}

func query(rows pgx.Rows, err error) error {
	rows.Close()
	return errors.Join(err, rows.Err())
}

var runs = map[string]run{
	"SendBatch": func(ctx context.Context, db fencedb.DB, g fencedb.Grant, statements []string) error {
		return fencedb.SendBatch(ctx, db, g, batchOf(statements))
	},
	"Exec": single(func(ctx context.Context, db fencedb.DB, g fencedb.Grant, sql string) error {
		_, err := fencedb.Exec(ctx, db, g, sql)
		return err
	}),
	"Query": single(func(ctx context.Context, db fencedb.DB, g fencedb.Grant, sql string) error {
		return query(fencedb.Query(ctx, db, g, sql))
	}),
	"QueryRow": single(func(ctx context.Context, db fencedb.DB, g fencedb.Grant, sql string) error {
		err := fencedb.QueryRow(ctx, db, g, sql).Scan()
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	}),
	"Exec of all in one string": func(ctx context.Context, db fencedb.DB, g fencedb.Grant, statements []string) error {
		if modeOf(db) != pgx.QueryExecModeSimpleProtocol {
			return errSkip
		}
		_, err := fencedb.Exec(ctx, db, g, strings.Join(statements, ";"))
		return err
	},
	"Tx with Exec": each(func(ctx context.Context, tx pgx.Tx, sql string) error {
		_, err := tx.Exec(ctx, sql)
		return err
	}),
	"Tx with Query": each(func(ctx context.Context, tx pgx.Tx, sql string) error { return query(tx.Query(ctx, sql)) }),
	"Tx with QueryRow": each(func(ctx context.Context, tx pgx.Tx, sql string) error {
		if err := tx.QueryRow(ctx, sql).Scan(); !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		return nil
	}),
	"Tx with a batch for each": each(func(ctx context.Context, tx pgx.Tx, sql string) error {
		return tx.SendBatch(ctx, batchOf([]string{sql})).Close()
	}),
	"Tx with SendBatch": func(ctx context.Context, db fencedb.DB, g fencedb.Grant, statements []string) error {
		return fencedb.Tx(ctx, db, g, func(tx pgx.Tx) error { return tx.SendBatch(ctx, batchOf(statements)).Close() })
	},
	"Tx with a late SendBatch": func(ctx context.Context, db fencedb.DB, g fencedb.Grant, statements []string) error {
		return fencedb.Tx(ctx, db, g, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `SELECT 1`); err != nil {
				return err
			}
			return tx.SendBatch(ctx, batchOf(statements)).Close()
		})
	},
	"Tx with all in one string": oneString(func(ctx context.Context, tx pgx.Tx, sql string) error {
		_, err := tx.Exec(ctx, sql)
		return err
	}),
	"Tx with all in one late string": oneString(func(ctx context.Context, tx pgx.Tx, sql string) error {
		if _, err := tx.Exec(ctx, `SELECT 1`); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, sql+`; SELECT $1::int`, pgx.QueryExecModeSimpleProtocol, 1)
		return err
	}),
	"Tx with all in one string in the simple protocol": oneString(func(ctx context.Context, tx pgx.Tx, sql string) error {
		_, err := tx.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol)
		return err
	}),
	"Tx with all in one string and an argument": oneString(func(ctx context.Context, tx pgx.Tx, sql string) error {
		_, err := tx.Exec(ctx, sql+`; SELECT $1::int`, pgx.QueryExecModeSimpleProtocol, 1)
		return err
	}),
	"Tx with all in one string and no named argument": oneString(func(ctx context.Context, tx pgx.Tx, sql string) error {
		_, err := tx.Exec(ctx, sql, pgx.NamedArgs{})
		return err
	}),
	"Tx with all in one string that a rewriter makes": oneString(func(ctx context.Context, tx pgx.Tx, sql string) error {
		_, err := tx.Exec(ctx, `SELECT 1`, rewriter(func(*pgx.Conn) string { return sql }))
		return err
	}),
	"Tx with Query of all in one string": oneString(func(ctx context.Context, tx pgx.Tx, sql string) error {
		return query(tx.Query(ctx, sql, pgx.QueryExecModeSimpleProtocol))
	}),
	"Tx with Query of all in one string and an argument": oneString(func(ctx context.Context, tx pgx.Tx, sql string) error {
		return query(tx.Query(ctx, sql+`; SELECT $1::int`, pgx.QueryExecModeSimpleProtocol, 1))
	}),
	"Exec of all in one string and an argument": func(ctx context.Context, db fencedb.DB, g fencedb.Grant, statements []string) error {
		if modeOf(db) != pgx.QueryExecModeSimpleProtocol {
			return errSkip
		}
		_, err := fencedb.Exec(ctx, db, g, strings.Join(statements, ";")+`; SELECT $1::int`, 1)
		return err
	},
	"Query of all in one string and an argument": func(ctx context.Context, db fencedb.DB, g fencedb.Grant, statements []string) error {
		if modeOf(db) != pgx.QueryExecModeSimpleProtocol {
			return errSkip
		}
		return query(fencedb.Query(ctx, db, g, strings.Join(statements, ";")+`; SELECT $1::int`, 1))
	},
	"Tx with all in one string past us": func(ctx context.Context, db fencedb.DB, g fencedb.Grant, statements []string) error {
		return fencedb.Tx(ctx, db, g, func(tx pgx.Tx) error {
			_, err := tx.Conn().Exec(ctx, strings.Join(statements, ";"))
			return err
		})
	},
	"Tx with an error that is swallowed": func(ctx context.Context, db fencedb.DB, g fencedb.Grant, statements []string) error {
		return fencedb.Tx(ctx, db, g, func(tx pgx.Tx) error {
			for _, sql := range statements {
				_, _ = tx.Exec(ctx, sql)
			}
			return nil
		})
	},
	"Tx with a savepoint": func(ctx context.Context, db fencedb.DB, g fencedb.Grant, statements []string) error {
		return fencedb.Tx(ctx, db, g, func(tx pgx.Tx) error {
			inner, err := tx.Begin(ctx)
			if err != nil {
				return err
			}
			for _, sql := range statements {
				if _, err := inner.Exec(ctx, sql); err != nil {
					return err
				}
			}
			return nil
		})
	},
}

func TestAStatementThatEndsTheTransactionIsNoticed(t *testing.T) {
	t.Parallel()
	for _, mode := range queryModes {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.exec(`CREATE TABLE effects (id int PRIMARY KEY, note text, more text)`)
			token := int64(0)
			for name, run := range runs {
				pool := w.poolIn(mode)
				gid := uuid.NewString() // of the whole server
				for _, c := range endings {
					what := name + ": " + c.statements
					w.exec(`DELETE FROM effects`)
					token++

					err := run(t.Context(), pool, grant("effects", token), strings.Split(strings.ReplaceAll(c.statements, "'ending'", "'"+gid+"'"), "; "))
					if errors.Is(err, errSkip) {
						continue
					}

					effects := collect[int](w, `SELECT id FROM effects ORDER BY id`)
					unseen := strings.HasSuffix(name, "past us") || strings.HasSuffix(name, "rewriter makes")
					unseen = unseen || c.quoted && strings.Contains(name, "in one")
					if c.outcome != "" && !c.hidden && !unseen {
						require.NotErrorIs(t, err, fencedb.ErrTxEnded, what)
						if !strings.Contains(name, "swallowed") { // then the rest commits
							require.ErrorContains(t, err, "nothing was sent", what)
							require.Empty(t, effects, what)
						}
						continue
					}
					if strings.Contains(name, "in one") {
						c.effects = append(slices.Clip(c.effects), c.rest...)
					}
					require.ElementsMatch(t, c.effects, effects, "%s: %v", what, err)
					if c.outcome == "" {
						require.NoError(t, err, what)
						continue
					}
					require.ErrorIs(t, err, fencedb.ErrTxEnded, what)
					var ended *fencedb.TxEndedError
					require.ErrorAs(t, err, &ended, what)
					require.Equal(t, c.outcome, ended.Outcome, what)
					require.Equal(t, []string{c.outcome}, collect[string](w, `SELECT pg_xact_status($1::text::xid8)`, fmt.Sprint(ended.XID)))
					if c.outcome == "in progress" {
						w.exec(`ROLLBACK PREPARED '` + gid + `'`)
					}
					w.awaitIdle(pool)
				}
				pool.Close()
			}
		})
	}
}

func TestTheNameOfAPreparedStatementIsNotTakenForItsText(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`CREATE TABLE effects (id int PRIMARY KEY)`)
	for _, use := range []string{"SendBatch", "Tx with Exec", "Tx with Query", "Tx with a batch for each", "Tx with Prepare"} {
		conn, g := w.conn(), grant("effects", w.fence("effects")+1)
		run, name := runs[use], "release"
		if use == "Tx with Prepare" {
			name = "insert something"
			run = each(func(ctx context.Context, tx pgx.Tx, sql string) error {
				_, err := tx.Prepare(ctx, name, `COMMIT AND CHAIN`)
				if err == nil {
					_, err = tx.Exec(ctx, sql)
				}
				return err
			})
		} else {
			_, err := conn.Prepare(t.Context(), name, `COMMIT AND CHAIN`)
			require.NoError(t, err)
		}

		err := run(t.Context(), conn, g, []string{name, `INSERT INTO effects VALUES (2)`})

		require.ErrorIs(t, err, fencedb.ErrTxEnded, use)
		require.Empty(t, collect[int](w, `SELECT id FROM effects`), use)
	}
}

// What enter leaves for the guards is there again, and is not of the transaction that Tx began.
func TestAStatementThatEntersOnceMoreIsNoticed(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"Tx with all in one string that a rewriter makes", "Tx with all in one string past us"} {
		w := newWorld(t)
		w.exec(`CREATE TABLE effects (id int PRIMARY KEY)`)

		err := runs[name](t.Context(), w.pool, grant("effects", 1), []string{`INSERT INTO effects VALUES (1)`, `ROLLBACK`, `BEGIN`,
			`DO $$ BEGIN PERFORM fencedb.enter('other', 1, gen_random_uuid()); END $$`, `INSERT INTO effects VALUES (2)`})

		require.ErrorIs(t, err, fencedb.ErrTxEnded, name)
		require.Empty(t, collect[int](w, `SELECT id FROM effects`), name)
	}
}

// What is sent beside the transaction, on its connection, is not seen; that it has ended is.
func TestATransactionThatIsEndedBesideItIsNoticed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	mine := errors.New("mine")
	conn := w.conn()
	for name, c := range map[string]struct {
		end     func(tx pgx.Tx) error
		outcome string
		guests  []string
	}{
		"a transaction on it commits": {func(pgx.Tx) error {
			return pgx.BeginFunc(t.Context(), conn, func(inner pgx.Tx) error { return book(t.Context(), inner, 12, "ben") })
		}, "committed", []string{"ann", "ben"}},
		"a transaction on it rolls back": {func(pgx.Tx) error {
			_ = pgx.BeginFunc(t.Context(), conn, func(pgx.Tx) error { return mine })
			return nil
		}, "aborted", []string{}},
		"COMMIT on the connection of rows": {func(tx pgx.Tx) error {
			rows, err := tx.Query(t.Context(), `SELECT 1`)
			if err == nil {
				rows.Close()
				_, err = rows.Conn().Exec(t.Context(), `COMMIT`)
			}
			return err
		}, "committed", []string{"ann"}},
	} {
		for _, own := range []error{nil, mine} {
			w.exec(`TRUNCATE fencedb.fences`)
			w.exec(`ALTER TABLE bookings DISABLE TRIGGER USER`)
			w.exec(`TRUNCATE bookings`)
			w.exec(`ALTER TABLE bookings ENABLE TRIGGER USER`)

			err := fencedb.Tx(t.Context(), conn, grant("table:12", 41), func(tx pgx.Tx) error {
				if err := book(t.Context(), tx, 12, "ann"); err != nil {
					return err
				}
				return errors.Join(c.end(tx), own)
			})

			var ended *fencedb.TxEndedError
			require.ErrorAs(t, err, &ended, name)
			require.Equal(t, c.outcome, ended.Outcome, name)
			require.Equal(t, own != nil, errors.Is(err, mine), "%s: %v", name, err)
			require.Equal(t, c.guests, w.guests(), name)
		}
	}
}

// The last statement of a batch must not be taken for COMMIT, and no result for another one's.
func TestABatchThatMayEndTheTransactionCallsItsCallbacks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i, mode := range queryModes {
		var first, second int
		b := &pgx.Batch{}
		b.Queue(`SELECT 1`).QueryRow(func(row pgx.Row) error { return row.Scan(&first) })
		b.Queue(`SAVEPOINT a`)
		b.Queue(`ROLLBACK TO a`)
		b.Queue(`SELECT 2`).QueryRow(func(row pgx.Row) error { return row.Scan(&second) })

		require.NoError(t, fencedb.SendBatch(t.Context(), w.poolIn(mode), grant("effects", int64(i)+1), b))

		require.Equal(t, []int{1, 2}, []int{first, second}, mode.String())
	}
}

// The connection is there for ROLLBACK, and lost for the question what became of the transaction.
func TestAConnectionThatIsLostWhileItIsAskedLeavesNoDoubt(t *testing.T) {
	t.Parallel()
	for name, run := range map[string]func(pool *pgxpool.Pool, statements ...string) error{
		"Tx": func(pool *pgxpool.Pool, statements ...string) error {
			return fencedb.Tx(t.Context(), pool, grant("effects", 41), func(tx pgx.Tx) error {
				for _, sql := range statements {
					if _, err := tx.Conn().Exec(t.Context(), sql); err != nil { // past us
						return err
					}
				}
				return nil
			})
		},
		"TxSQL": func(pool *pgxpool.Pool, statements ...string) error {
			db := stdlib.OpenDBFromPool(pool)
			defer db.Close()
			return fencedb.TxSQL(t.Context(), db, grant("effects", 41), func(tx *sql.Tx) error {
				for _, sql := range statements {
					if _, err := tx.ExecContext(t.Context(), sql); err != nil {
						return err
					}
				}
				return nil
			})
		},
	} {
		for outcome, statements := range map[string][]string{
			"aborted":   {`INSERT INTO effects VALUES (1)`, `SELECT 1; SELECT 1 / 0`},
			"committed": {`INSERT INTO effects VALUES (1)`, `SELECT 1; COMMIT`, `SELECT 1 / 0`},
		} {
			t.Run(name+"/"+outcome, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.exec(`CREATE TABLE effects (id int PRIMARY KEY)`)
				pool, proxy := w.behindProxy() // one connection
				var asked atomic.Bool
				proxy.OnClient(once(func(msg pgproto3.FrontendMessage) bool {
					parse, ok := msg.(*pgproto3.Parse)
					asked.Store(asked.Load() || ok && strings.Contains(parse.Query, "fencedb.outcome"))
					return asked.Load()
				}, faulty.Cut))

				err := run(pool, statements...)

				require.True(t, asked.Load(), "%v", err)
				require.NotErrorIs(t, err, fencedb.ErrCommitUnknown)
				var ended *fencedb.TxEndedError
				require.Equal(t, outcome == "committed", errors.As(err, &ended), "%v", err)
				require.Len(t, collect[int](w, `SELECT id FROM effects`), map[string]int{"committed": 1}[outcome])
			})
		}
	}
}
