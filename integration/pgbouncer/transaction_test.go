package pgbouncer

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
)

// withoutNames are the modes of pgx that leave no prepared statement on the server connection: right for every PgBouncer.
var withoutNames = []pgx.QueryExecMode{pgx.QueryExecModeExec, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeSimpleProtocol}

// everyWay books table 12 by each entry point of the write layer.
var everyWay = map[string]func(*world, *pgxpool.Pool, fencedb.Grant) error{
	"Tx": func(w *world, pool *pgxpool.Pool, grant fencedb.Grant) error { return w.book(pool, grant, "ann") },
	"Exec": func(w *world, pool *pgxpool.Pool, grant fencedb.Grant) error {
		_, err := fencedb.Exec(w.Context(), pool, grant, insert, 12, "ann")
		return err
	},
	"QueryRow": func(w *world, pool *pgxpool.Pool, grant fencedb.Grant) error {
		var id int
		return fencedb.QueryRow(w.Context(), pool, grant, insert+` RETURNING id`, 12, "ann").Scan(&id)
	},
	"SendBatch": func(w *world, pool *pgxpool.Pool, grant fencedb.Grant) error {
		b := &pgx.Batch{}
		b.Queue(`SELECT count(*) FROM bookings`)
		b.Queue(insert, 12, "ann")
		return fencedb.SendBatch(w.Context(), pool, grant, b)
	},
	"Enter": func(w *world, pool *pgxpool.Pool, grant fencedb.Grant) error {
		return pgx.BeginFunc(w.Context(), pool, func(tx pgx.Tx) error {
			if err := fencedb.Enter(w.Context(), tx, grant); err != nil {
				return err
			}
			_, err := tx.Exec(w.Context(), insert, 12, "ann")
			return err
		})
	},
	"EnterSQL": func(w *world, pool *pgxpool.Pool, grant fencedb.Grant) error {
		tx, err := stdlib.OpenDBFromPool(pool).BeginTx(w.Context(), nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if err := fencedb.EnterSQL(w.Context(), tx, grant); err != nil {
			return err
		}
		if _, err := tx.ExecContext(w.Context(), insert, 12, "ann"); err != nil {
			return err
		}
		return tx.Commit()
	},
}

func TestEveryWayInWorksInTransactionMode(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bouncer := testenv.PgBouncer(t, w.url(), "transaction")
	var token int64 = 1
	for _, mode := range withoutNames {
		pool := w.pool(bouncer, mode)
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

// One server connection serves all clients in turn. Nothing of a holder's transaction may meet the next client: not its
// token, or a write that forgot to enter would pass, and not its time limits.
func TestNothingIsLeftForTheNextClient(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bouncer := testenv.PgBouncer(t, w.url(), "transaction")
	holder, other := w.pool(bouncer, pgx.QueryExecModeExec), w.pool(bouncer, pgx.QueryExecModeExec)
	before := w.state(other)
	changed := errors.New("changed my mind")

	var token int64
	for name, transaction := range map[string]func(fencedb.Grant) error{
		"committed": func(g fencedb.Grant) error { return w.book(holder, g, "ann") },
		"rolled back": func(g fencedb.Grant) error {
			return fencedb.Tx(t.Context(), holder, g, func(pgx.Tx) error { return changed })
		},
		"refused": func(g fencedb.Grant) error {
			return fencedb.Tx(t.Context(), holder, g, func(tx pgx.Tx) error {
				_, err := tx.Exec(t.Context(), insert, 13, "ann")
				return err
			})
		},
		"in one round trip": func(g fencedb.Grant) error { return everyWay["Exec"](w, holder, g) },
	} {
		token++
		err := transaction(grantFor("table:12", token, time.Minute))
		require.True(t, err == nil || errors.Is(err, changed) || errors.Is(err, fencedb.ErrWrongResource), "%s: %v", name, err)

		require.Equal(t, before, w.state(other), name)
		_, err = other.Exec(t.Context(), insert, 12, "ben")
		require.ErrorIs(t, fencedb.Explain(err), fencedb.ErrNoToken, name)
	}
	require.NotContains(t, w.guests(), "ben")
}

// state is what a transaction could leave on a server connection, and the connection's own id.
func (w *world) state(pool *pgxpool.Pool) (state [5]string) {
	w.Helper()
	row := pool.QueryRow(w.Context(), `SELECT pg_backend_pid()::text, coalesce(current_setting('fencedb.granted', true), ''),
		current_setting('lock_timeout'), current_setting('statement_timeout'), current_setting('idle_in_transaction_session_timeout')`)
	require.NoError(w, row.Scan(&state[0], &state[1], &state[2], &state[3], &state[4]))
	return state
}

// S7. PgBouncer keeps the client's connection open while Postgres ends the transaction on its own.
func TestAStoppedHolderBehindPgBouncerIsEndedToo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bouncer := testenv.PgBouncer(t, w.url(), "transaction", "default_pool_size=2")
	pool := w.pool(bouncer, pgx.QueryExecModeExec)
	const validity = time.Second
	began := time.Now()

	err := fencedb.Tx(t.Context(), pool, grantFor("table:12", 41, validity), func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), insert, 12, "ann"); err != nil {
			return err
		}
		// While the holder stands still, the next one waits for the fence.
		require.NoError(t, w.book(pool, grantFor("table:12", 42, 10*time.Second), "ben"))
		require.Less(t, time.Since(began), validity+time.Second)
		return nil
	})

	require.ErrorIs(t, err, fencedb.ErrLeaseOver)
	require.Equal(t, []string{"ben"}, w.guests())
	require.NoError(t, w.book(pool, grant("table:12", 43), "cid"), "PgBouncer has replaced the connection")
}
