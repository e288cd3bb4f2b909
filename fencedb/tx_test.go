package fencedb_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/testenv"
)

func TestTxCommitsBehindTheFence(t *testing.T) {
	t.Parallel()
	w := newWorld(t)

	err := fencedb.Tx(t.Context(), w.pool, grant("table:12", 41), func(tx pgx.Tx) error {
		return book(t.Context(), tx, 12, "ann")
	})

	require.NoError(t, err)
	require.Equal(t, []string{"ann"}, w.guests())
	require.EqualValues(t, 41, w.fence("table:12"))
}

func TestTxRefusesAStaleToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	require.NoError(t, fencedb.Seal(t.Context(), w.pool, grant("table:12", 42)))

	err := fencedb.Tx(t.Context(), w.pool, grant("table:12", 41), func(tx pgx.Tx) error {
		return book(t.Context(), tx, 12, "ann")
	})

	var stale *fencedb.StaleError
	require.ErrorAs(t, err, &stale)
	require.ErrorIs(t, err, fencedb.ErrStale)
	require.Equal(t, "table:12", stale.Resource)
	require.EqualValues(t, 41, stale.Token)
	require.EqualValues(t, 42, stale.Stored)
	require.Empty(t, w.guests())
}

func TestTxRefusesAnEqualTokenOfAnotherLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	require.NoError(t, fencedb.Seal(t.Context(), w.pool, grant("table:12", 41)))

	err := fencedb.Seal(t.Context(), w.pool, grant("table:12", 41))

	require.ErrorIs(t, err, fencedb.ErrStale)
}

func TestTxRollsBackOnError(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	soldOut := errors.New("sold out")

	err := fencedb.Tx(t.Context(), w.pool, grant("table:12", 41), func(tx pgx.Tx) error {
		require.NoError(t, book(t.Context(), tx, 12, "ann"))
		return soldOut
	})

	require.Equal(t, soldOut, err, "the function's own error comes back as it is")
	require.Empty(t, w.guests())
	require.Zero(t, w.fence("table:12"), "a fence that did not commit is not raised")
}

func TestClock(t *testing.T) {
	t.Parallel()
	now := fencedb.Clock(testenv.Postgres(t))
	first, err := now(t.Context())
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), first, time.Minute)
	second, err := now(t.Context())
	require.NoError(t, err)
	require.Less(t, first, second)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = now(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

// Counted on the wire, with warm statement caches. A cold cache costs pgx one round trip more, with
// the fence or without.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`CREATE TABLE plain (id int)`)
	pool, proxy := w.behindProxy()
	var trips atomic.Int64
	proxy.OnRound(func(faulty.Round) faulty.Fate {
		trips.Add(1)
		return faulty.Pass
	})
	ctx, g := t.Context(), grant("table:12", 41)
	two := fencedb.All(g, grant("table:13", 7))
	one := func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `SELECT count(*) FROM plain WHERE id = $1`, 1)
		return err
	}
	three := func() *pgx.Batch {
		b := &pgx.Batch{}
		for i := range 3 {
			b.Queue(`INSERT INTO plain VALUES ($1)`, i)
		}
		return b
	}

	for _, c := range []struct {
		name  string
		trips int64
		do    func() error
	}{
		{"pgx.BeginFunc, one statement", 3, func() error { return pgx.BeginFunc(ctx, pool, one) }},
		{"Tx, no statement", 2, func() error { return fencedb.Tx(ctx, pool, g, func(pgx.Tx) error { return nil }) }},
		{"Tx, one statement", 2, func() error { return fencedb.Tx(ctx, pool, g, one) }},
		{"Tx, one batch", 2, func() error {
			return fencedb.Tx(ctx, pool, g, func(tx pgx.Tx) error { return tx.SendBatch(ctx, three()).Close() })
		}},
		{"pgx.BeginFunc, savepoint with one statement", 5, func() error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return pgx.BeginFunc(ctx, tx, one) })
		}},
		{"Tx, savepoint with one statement", 4, func() error {
			return fencedb.Tx(ctx, pool, g, func(tx pgx.Tx) error { return pgx.BeginFunc(ctx, tx, one) })
		}},
		{"Tx, two resources", 2, func() error { return fencedb.Tx(ctx, pool, two, one) }},
		{"Exec", 1, func() error {
			_, err := fencedb.Exec(ctx, pool, g, `INSERT INTO plain VALUES ($1)`, 1)
			return err
		}},
		{"QueryRow", 1, func() error {
			var id int
			return fencedb.QueryRow(ctx, pool, g, `INSERT INTO plain VALUES ($1) RETURNING id`, 1).Scan(&id)
		}},
		{"Query", 1, func() error {
			rows, err := fencedb.Query(ctx, pool, g, `INSERT INTO plain VALUES ($1) RETURNING id`, 1)
			rows.Close()
			return errors.Join(err, rows.Err())
		}},
		{"SendBatch", 1, func() error { return fencedb.SendBatch(ctx, pool, g, three()) }},
		{"Seal", 1, func() error { return fencedb.Seal(ctx, pool, g) }},
	} {
		require.NoError(t, c.do(), "%s, cold", c.name) // pgx prepares what it has not sent before
		before := trips.Load()
		require.NoError(t, c.do(), "%s, warm", c.name)
		require.Equal(t, c.trips, trips.Load()-before, c.name)
	}

	// pgx forgets what it had prepared of a batch that has failed, and tells the server so.
	divide := func(by int) error {
		_, err := fencedb.Exec(ctx, pool, g, `SELECT 1 / $1::int`, by)
		return err
	}
	require.NoError(t, divide(1))
	require.Error(t, divide(0))
	before := trips.Load()
	require.NoError(t, divide(1))
	require.EqualValues(t, 3, trips.Load()-before, "after a failure")
}

// What a fenced write allocates more than pgx does for the four statements alone.
func TestAllocations(t *testing.T) {
	w := newWorld(t)
	conn, err := w.pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	ctx, g := t.Context(), grant("table:1", 1)
	const sql = `SELECT $1::text, $2::int`
	args := []any{"bob", 1}

	least := func(do func()) float64 { // what else the process does is counted too
		n := testing.AllocsPerRun(50, do)
		for range 4 {
			n = min(n, testing.AllocsPerRun(50, do))
		}
		return n
	}
	bare := least(func() {
		b := &pgx.Batch{}
		b.BeginTx(pgx.TxOptions{})
		b.Queue(`SELECT 1::bigint, 2::bigint, $1::text, $2::bigint`, "table:1", int64(1)).QueryRow(func(row pgx.Row) error {
			var xid, epoch, token int64
			var resource string
			return row.Scan(&xid, &epoch, &resource, &token)
		})
		b.Queue(sql, args...)
		b.Queue("commit")
		err = errors.Join(err, conn.SendBatch(ctx, b).Close())
	})
	exec := least(func() {
		_, execErr := fencedb.Exec(ctx, conn, g, sql, args...)
		err = errors.Join(err, execErr)
	})
	tx := least(func() {
		err = errors.Join(err, fencedb.Tx(ctx, conn, g, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, sql, args...)
			return err
		}))
	})
	require.NoError(t, err)
	require.LessOrEqual(t, exec, bare-15, "Exec, which is two statements, and listens for a notice of COMMIT")
	require.LessOrEqual(t, tx, bare+6, "Tx, whose COMMIT pgx sends without a pipeline, and which listens too")
}

// The rollback fails on rows that are open, and costs the connection, whose place the pool has to
// give back before the server is asked.
func TestOpenRowsOfConnAreToldWhereNoOtherConnectionIsFree(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pool, _ := w.behindProxy()
	took := testenv.Stopwatch(t)

	err := fencedb.Tx(t.Context(), pool, grantFor("table:12", 41, time.Minute), func(tx pgx.Tx) error {
		_, err := tx.Conn().Query(t.Context(), `SELECT generate_series(1, 2)`)
		return err
	})

	require.ErrorContains(t, err, "left rows or batch results open")
	require.NotErrorIs(t, err, fencedb.ErrCommitUnknown)
	require.Less(t, took(), 30*time.Second)
	w.awaitIdle(pool)
}

// In the simple protocol pgx makes one string of a batch. A balancer that looks at the first
// statement of a string alone must see that a transaction begins, or it sends the reads in it to a
// standby.
func TestWhereABatchIsOneStringBeginGoesAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pool, proxy := w.behindProxyIn(pgx.QueryExecModeSimpleProtocol)
	var mu sync.Mutex
	var sent []string // the first word of each string, with a + if there is more in it than one statement
	proxy.OnRound(func(round faulty.Round) faulty.Fate {
		mu.Lock()
		defer mu.Unlock()
		for _, sql := range round.SQL {
			word := strings.ToLower(strings.Fields(sql)[0])
			if strings.Contains(sql, ";") {
				word += "+"
			}
			sent = append(sent, word)
		}
		return faulty.Pass
	})
	ctx := t.Context()
	two := &pgx.Batch{}
	two.Queue(`SELECT 1`)
	two.Queue(`SELECT 2`)
	one := func(tx pgx.Tx) error { return query(tx.Query(ctx, `SELECT 1`)) }
	serializable := fencedb.With(pool, fencedb.TxOptions(pgx.TxOptions{IsoLevel: pgx.Serializable}))
	for i, c := range []struct {
		name, sent string
		do         func(g fencedb.Grant) error
	}{
		{"Tx", "begin select+ commit", func(g fencedb.Grant) error { return fencedb.Tx(ctx, pool, g, one) }},
		{"Tx, no statement", "begin select commit", func(g fencedb.Grant) error {
			return fencedb.Tx(ctx, pool, g, func(pgx.Tx) error { return nil })
		}},
		{"Tx, several resources", "begin select+ commit", func(g fencedb.Grant) error {
			return fencedb.Tx(ctx, pool, fencedb.All(g, grant(g.Resource()+"0", 41)), one)
		}},
		{"Tx, sealed on the way", "begin select+ rollback begin select+ begin select+ commit", func(g fencedb.Grant) error {
			return fencedb.Tx(ctx, serializable, g, one)
		}},
		{"SendBatch", "begin select+", func(g fencedb.Grant) error { return fencedb.SendBatch(ctx, pool, g, two) }},
		{"Query", "begin select+", func(g fencedb.Grant) error { return query(fencedb.Query(ctx, pool, g, `SELECT 1`)) }},
		{"Seal", "begin select+", func(g fencedb.Grant) error { return fencedb.Seal(ctx, pool, g) }},
		{"Exec", "select+", func(g fencedb.Grant) error {
			_, err := fencedb.Exec(ctx, pool, g, `SELECT 1`)
			return err
		}},
	} {
		sent = nil
		require.NoError(t, c.do(grant(fmt.Sprint("table:", i), 41)), c.name)
		require.Equal(t, c.sent, strings.Join(sent, " "), c.name)
	}
}

// counting is a DB of the application's own.
type counting struct {
	fencedb.DB
	batches *atomic.Int32
}

func (c counting) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	c.batches.Add(1)
	return c.DB.SendBatch(ctx, b)
}

// Nobody could tell of such a one whether its connection was lost, or give that back.
func TestADatabaseThatDoesNotShowItsConnectionIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	db := counting{w.pool, new(atomic.Int32)}
	for name, write := range map[string]func() error{
		"Tx": func() error {
			return fencedb.Tx(t.Context(), db, grant("table:12", 41), func(tx pgx.Tx) error { return book(t.Context(), tx, 12, "ann") })
		},
		"Exec": func() error {
			_, err := fencedb.Exec(t.Context(), db, grant("table:12", 41), bookAnn)
			return err
		},
		"Query": func() error {
			return query(fencedb.Query(t.Context(), fencedb.With(db), grant("table:12", 41), bookAnn))
		},
		"Seal": func() error { return fencedb.Seal(t.Context(), db, grant("table:12", 41)) },
	} {
		require.ErrorContains(t, write(), "counting does not show its connection", name)
	}
	require.Zero(t, db.batches.Load())
	require.Zero(t, w.pool.Stat().AcquiredConns())
	require.Empty(t, w.guests())
}

func TestADatabaseThatIsNilIsRefused(t *testing.T) {
	t.Parallel()
	g := grant("table:12", 41)
	for name, db := range map[string]fencedb.DB{"nil": nil, "a nil pool": (*pgxpool.Pool)(nil), "nil with options": fencedb.With(nil)} {
		_, execErr := fencedb.Exec(t.Context(), db, g, insertAnn, 1)
		_, queryErr := fencedb.Query(t.Context(), db, g, insertAnn, 1)
		for _, err := range []error{
			fencedb.Tx(t.Context(), db, g, func(pgx.Tx) error { return nil }), execErr, queryErr,
			fencedb.QueryRow(t.Context(), db, g, insertAnn, 1).Scan(),
			fencedb.SendBatch(t.Context(), db, g, &pgx.Batch{}), fencedb.Seal(t.Context(), db, g),
			fencedb.TxSQL(t.Context(), nil, g, func(*sql.Tx) error { return nil }),
		} {
			require.ErrorContains(t, err, "the database is nil", name)
		}
	}
}
