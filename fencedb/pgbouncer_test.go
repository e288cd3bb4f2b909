package fencedb_test

import (
	"errors"
	"fmt"
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

// These tests show the write layer behind PgBouncer, where a client has a server connection for one
// transaction and the next client finds on it what it left there.

func newBouncerWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.exec(`ALTER TABLE bookings ALTER id ADD GENERATED ALWAYS AS IDENTITY`)
	return w
}

// behind is a client of the PgBouncer whose queries are sent in a mode of pgx.
func (w *world) behind(b *testenv.PgBouncerServer, mode pgx.QueryExecMode) *pgxpool.Pool {
	w.Helper()
	config, err := pgxpool.ParseConfig(b.URL())
	require.NoError(w, err)
	config.ConnConfig.DefaultQueryExecMode = mode
	pool, err := pgxpool.NewWithConfig(w.Context(), config)
	require.NoError(w, err)
	w.Cleanup(pool.Close)
	return pool
}

const insertBooking = `INSERT INTO bookings (table_id, guest) VALUES ($1, $2)`

// bookFor is a transaction that books table 12.
func (w *world) bookFor(db fencedb.DB, grant fencedb.Grant, guest string) error {
	return fencedb.Tx(w.Context(), db, grant, func(tx pgx.Tx) error {
		_, err := tx.Exec(w.Context(), insertBooking, 12, guest)
		return err
	})
}

// withoutNames are the modes of pgx that leave no prepared statement on the server connection:
// right for every PgBouncer.
var withoutNames = []pgx.QueryExecMode{
	pgx.QueryExecModeExec, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeSimpleProtocol}

// everyWay books table 12 by each entry point of the write layer.
var everyWay = map[string]func(*world, *pgxpool.Pool, fencedb.Grant) error{
	"Tx": func(w *world, pool *pgxpool.Pool, grant fencedb.Grant) error { return w.bookFor(pool, grant, "ann") },
	"Exec": func(w *world, pool *pgxpool.Pool, grant fencedb.Grant) error {
		_, err := fencedb.Exec(w.Context(), pool, grant, insertBooking, 12, "ann")
		return err
	},
	"QueryRow": func(w *world, pool *pgxpool.Pool, grant fencedb.Grant) error {
		var id int
		return fencedb.QueryRow(w.Context(), pool, grant, insertBooking+` RETURNING id`, 12, "ann").Scan(&id)
	},
	"SendBatch": func(w *world, pool *pgxpool.Pool, grant fencedb.Grant) error {
		b := &pgx.Batch{}
		b.Queue(`SELECT count(*) FROM bookings`)
		b.Queue(insertBooking, 12, "ann")
		return fencedb.SendBatch(w.Context(), pool, grant, b)
	},
	"Enter": func(w *world, pool *pgxpool.Pool, grant fencedb.Grant) error {
		return pgx.BeginFunc(w.Context(), pool, func(tx pgx.Tx) error {
			if err := enter(w.Context(), tx, grant); err != nil {
				return err
			}
			_, err := tx.Exec(w.Context(), insertBooking, 12, "ann")
			return err
		})
	},
	"EnterSQL": func(w *world, pool *pgxpool.Pool, grant fencedb.Grant) error {
		db := stdlib.OpenDBFromPool(pool)
		defer db.Close()
		tx, err := db.BeginTx(w.Context(), nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if err := enterSQL(w.Context(), tx, grant); err != nil {
			return err
		}
		if _, err := tx.ExecContext(w.Context(), insertBooking, 12, "ann"); err != nil {
			return err
		}
		return tx.Commit()
	},
}

func TestEveryWayInWorksInTransactionMode(t *testing.T) {
	t.Parallel()
	w := newBouncerWorld(t)
	bouncer := testenv.PgBouncer(t, w.pool.Config().ConnString(), "transaction")
	var token int64 = 1
	for _, mode := range withoutNames {
		pool := w.behind(bouncer, mode)
		for name, book := range everyWay {
			before := len(w.guests())
			token += 2
			for range 2 { // the second time over what the first has left
				require.NoError(t, book(w, pool, fencedb.All(grant("table:12", token), grantFor("table:13", token, time.Minute))), "%s, %v", name, mode)
				token += 2
			}
			require.ErrorIs(t, book(w, pool, grant("table:12", token-3)), fencedb.ErrStale, "%s, %v", name, mode)
			require.Len(t, w.guests(), before+2, "%s, %v", name, mode)
		}
	}
}

// One server connection serves all clients in turn. Nothing of a holder's transaction may meet the
// next client: not its token, or a write that forgot to enter would pass, and not its time limits.
func TestNothingIsLeftForTheNextClient(t *testing.T) {
	t.Parallel()
	w := newBouncerWorld(t)
	bouncer := testenv.PgBouncer(t, w.pool.Config().ConnString(), "transaction")
	holder, other := w.behind(bouncer, pgx.QueryExecModeExec), w.behind(bouncer, pgx.QueryExecModeExec)
	before := w.leftovers(other)
	changed := errors.New("changed my mind")

	var token int64
	for name, transaction := range map[string]func(fencedb.Grant) error{
		"committed": func(g fencedb.Grant) error { return w.bookFor(holder, g, "ann") },
		"rolled back": func(g fencedb.Grant) error {
			return fencedb.Tx(t.Context(), holder, g, func(pgx.Tx) error { return changed })
		},
		"refused": func(g fencedb.Grant) error {
			return fencedb.Tx(t.Context(), holder, g, func(tx pgx.Tx) error {
				_, err := tx.Exec(t.Context(), insertBooking, 13, "ann")
				return err
			})
		},
		"in one round trip": func(g fencedb.Grant) error { return everyWay["Exec"](w, holder, g) },
	} {
		token++
		err := transaction(grantFor("table:12", token, time.Minute))
		require.True(t, err == nil || errors.Is(err, changed) || errors.Is(err, fencedb.ErrWrongResource), "%s: %v", name, err)

		require.Equal(t, before, w.leftovers(other), name)
		_, err = other.Exec(t.Context(), insertBooking, 12, "ben")
		require.ErrorIs(t, fencedb.Explain(err), fencedb.ErrNoToken, name)
	}
	require.NotContains(t, w.guests(), "ben")
}

// leftovers are what a transaction could leave on a server connection, and the connection's own id.
func (w *world) leftovers(pool *pgxpool.Pool) (found [5]string) {
	w.Helper()
	row := pool.QueryRow(w.Context(), `SELECT pg_backend_pid()::text, coalesce(current_setting('fencedb.entered', true), ''),
		current_setting('lock_timeout'), current_setting('statement_timeout'), current_setting('idle_in_transaction_session_timeout')`)
	require.NoError(w, row.Scan(&found[0], &found[1], &found[2], &found[3], &found[4]))
	return found
}

// S7. PgBouncer keeps the client's connection open while Postgres ends the transaction on its own.
func TestAStoppedHolderBehindPgBouncerIsEndedToo(t *testing.T) {
	t.Parallel()
	w := newBouncerWorld(t)
	bouncer := testenv.PgBouncer(t, w.pool.Config().ConnString(), "transaction", "default_pool_size=2")
	pool := w.behind(bouncer, pgx.QueryExecModeExec)
	const validity = 3 * time.Second
	began := time.Now()

	err := fencedb.Tx(t.Context(), pool, grantFor("table:12", 41, validity), func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), insertBooking, 12, "ann"); err != nil {
			return err
		}
		// While the holder stands still, the next one waits for the fence.
		require.NoError(t, w.bookFor(pool, grantFor("table:12", 42, 30*time.Second), "ben"))
		require.Less(t, time.Since(began), validity+slack)
		return nil
	})

	require.ErrorIs(t, err, fencedb.ErrLeaseOver)
	require.Equal(t, []string{"ben"}, w.guests())
	require.NoError(t, w.bookFor(pool, grant("table:12", 43), "cid"), "PgBouncer has replaced the connection")
}

// PgBouncer 1.21 and newer keep track of prepared statements; older ones hand clients connections
// on which others have prepared, under the same names. There pgx's default mode fails, and the
// write layer writes nothing.
func TestPgxsDefaultModeNeedsANewerPgBouncer(t *testing.T) {
	t.Parallel()
	w := newBouncerWorld(t)
	bouncer := testenv.PgBouncer(t, w.pool.Config().ConnString(), "transaction")
	var major, minor int
	_, err := fmt.Sscanf(bouncer.Version, "PgBouncer %d.%d", &major, &minor)
	require.NoError(t, err)
	tracks := major > 1 || minor >= 21
	if tracks {
		bouncer = testenv.PgBouncer(t, w.pool.Config().ConnString(), "transaction", "max_prepared_statements=100")
	}
	first, second := w.behind(bouncer, pgx.QueryExecModeCacheStatement), w.behind(bouncer, pgx.QueryExecModeCacheStatement)
	require.NoError(t, w.bookFor(first, grant("table:12", 41), "ann"))

	err = w.bookFor(second, grant("table:12", 42), "ben")

	if tracks {
		require.NoError(t, err)
		require.Equal(t, []string{"ann", "ben"}, w.guests())
		return
	}
	const duplicatePreparedStatement = "42P05"
	var pgErr *pgconn.PgError
	require.ErrorAs(t, err, &pgErr)
	require.Equal(t, duplicatePreparedStatement, pgErr.Code)
	require.ErrorContains(t, err, "use pgx.QueryExecModeExec", "the error says what to do")
	require.Equal(t, []string{"ann"}, w.guests())
	require.EqualValues(t, 41, w.fence("table:12"))
}

// PgBouncer itself ends a client that begins a transaction here, and says why; it has no SQLSTATE
// of its own for it.
func TestStatementPoolingRefusesTransactions(t *testing.T) {
	t.Parallel()
	w := newBouncerWorld(t)
	bouncer := testenv.PgBouncer(t, w.pool.Config().ConnString(), "statement")
	for _, mode := range withoutNames {
		pool := w.behind(bouncer, mode)
		for _, name := range []string{"Tx", "Enter", "EnterSQL"} {
			err := everyWay[name](w, pool, grant("table:12", 41))
			require.ErrorAs(t, err, new(*pgconn.PgError), "%s, %v", name, mode)
			require.NotErrorIs(t, err, fencedb.ErrCommitUnknown, "%s, %v", name, mode)
		}
	}
	require.Empty(t, w.guests())
	require.Zero(t, w.fence("table:12"))
}

// A single round trip is a transaction as well, and passes only if its answers reach PgBouncer in
// one piece. Otherwise PgBouncer ends the client in the middle of them. Either way the answer is
// true, or says that nobody knows.
func TestStatementPoolingAndSingleRoundTrips(t *testing.T) {
	t.Parallel()
	w := newBouncerWorld(t)
	bouncer := testenv.PgBouncer(t, w.pool.Config().ConnString(), "statement", "default_pool_size=2")
	pool := w.behind(bouncer, pgx.QueryExecModeExec)
	for i, name := range []string{"Exec", "QueryRow", "SendBatch"} {
		before := len(w.guests())
		err := everyWay[name](w, pool, grant("table:12", int64(41+i)))
		committed := len(w.guests()) > before
		if !errors.Is(err, fencedb.ErrCommitUnknown) {
			require.Equal(t, committed, err == nil, "%s: %v", name, err)
		}
	}
}

// S6. The connection between PgBouncer and Postgres breaks at COMMIT. To its client PgBouncer
// answers with an error of its own, which looks like a refusal and is none: it does not know
// either.
func TestTheOutcomeOfACommitThatPgBouncerLost(t *testing.T) {
	t.Parallel()
	isCommit := func(msg pgproto3.FrontendMessage) bool {
		query, ok := msg.(*pgproto3.Query)
		return ok && query.String == "commit"
	}
	isCommitted := func(msg pgproto3.BackendMessage) bool {
		complete, ok := msg.(*pgproto3.CommandComplete)
		return ok && string(complete.CommandTag) == "COMMIT"
	}
	for name, cut := range map[string]struct {
		committed bool
		arm       func(*faulty.PostgresProxy)
	}{
		"before COMMIT arrives": {false, func(p *faulty.PostgresProxy) { p.OnClient(first(isCommit)) }},
		"before the answer":     {true, func(p *faulty.PostgresProxy) { p.OnServer(first(isCommitted)) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newBouncerWorld(t)
			proxy := faulty.NewPostgresProxy(t, w.pool.Config().ConnString())
			pool := w.behind(testenv.PgBouncer(t, proxy.URL(), "transaction"), pgx.QueryExecModeExec)

			err := fencedb.Tx(t.Context(), pool, grant("table:12", 41), func(tx pgx.Tx) error {
				cut.arm(proxy)
				_, err := tx.Exec(t.Context(), insertBooking, 12, "ann")
				return err
			})

			if cut.committed {
				require.NoError(t, err)
				require.Equal(t, []string{"ann"}, w.guests())
			} else {
				require.Error(t, err)
				require.NotErrorIs(t, err, fencedb.ErrCommitUnknown)
				require.Empty(t, w.guests())
			}
		})
	}
}

// first cuts at the first message that matches, and passes the rest.
func first[M any](matches func(M) bool) func(M) faulty.Fate {
	var done bool
	return func(msg M) faulty.Fate {
		if done || !matches(msg) {
			return faulty.Pass
		}
		done = true
		return faulty.Cut
	}
}
