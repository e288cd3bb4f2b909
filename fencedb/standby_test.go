package fencedb_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
)

// S6 where COMMIT waits for a standby. What only this server has is lost when the standby is
// promoted, so nobody may be told that it has committed, however visible it is here.

// waysToCommit are the ways to write one booking, and to seal.
var waysToCommit = map[string]func(ctx context.Context, pool *pgxpool.Pool, g fencedb.Grant, insert string) error{
	"Exec": func(ctx context.Context, pool *pgxpool.Pool, g fencedb.Grant, insert string) error {
		_, err := fencedb.Exec(ctx, pool, g, insert)
		return err
	},
	"QueryRow": func(ctx context.Context, pool *pgxpool.Pool, g fencedb.Grant, insert string) error {
		return fencedb.QueryRow(ctx, pool, g, insert+` RETURNING id`).Scan(new(int))
	},
	"Query": func(ctx context.Context, pool *pgxpool.Pool, g fencedb.Grant, insert string) error {
		rows, err := fencedb.Query(ctx, pool, g, insert+` RETURNING id`)
		if err != nil {
			return err
		}
		_, err = pgx.CollectRows(rows, pgx.RowTo[int])
		return err
	},
	"SendBatch": func(ctx context.Context, pool *pgxpool.Pool, g fencedb.Grant, insert string) error {
		b := &pgx.Batch{}
		b.Queue(insert)
		return fencedb.SendBatch(ctx, pool, g, b)
	},
	"Seal": func(ctx context.Context, pool *pgxpool.Pool, g fencedb.Grant, _ string) error {
		return fencedb.Seal(ctx, pool, g)
	},
	"Tx": func(ctx context.Context, pool *pgxpool.Pool, g fencedb.Grant, insert string) error {
		return fencedb.Tx(ctx, pool, g, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, insert)
			return err
		})
	},
	"TxSQL": func(ctx context.Context, pool *pgxpool.Pool, g fencedb.Grant, insert string) error {
		db := stdlib.OpenDBFromPool(pool)
		defer db.Close()
		return fencedb.TxSQL(ctx, db, g, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, insert)
			return err
		})
	},
	"Entry.Outcome": func(ctx context.Context, pool *pgxpool.Pool, g fencedb.Grant, insert string) error {
		var entry *fencedb.Entry
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) (err error) {
			if entry, err = fencedb.Enter(ctx, tx, g); err == nil {
				_, err = tx.Exec(ctx, insert)
			}
			return err
		})
		return entry.Outcome(ctx, pool, err)
	},
	"Entry.OutcomeSQL": func(ctx context.Context, pool *pgxpool.Pool, g fencedb.Grant, insert string) error {
		db := stdlib.OpenDBFromPool(pool)
		defer db.Close()
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		entry, err := fencedb.EnterSQL(ctx, tx, g)
		if err == nil {
			_, err = tx.ExecContext(ctx, insert)
		}
		if err == nil {
			err = tx.Commit()
		}
		return entry.OutcomeSQL(ctx, db, err)
	},
}

// atLevel returns a pool whose commits wait as synchronous_commit says, with a name of its own.
func atLevel(t *testing.T, server *testenv.PostgresServer, level, name string) *pgxpool.Pool {
	config, err := pgxpool.ParseConfig(server.URL())
	require.NoError(t, err)
	config.MaxConns = int32(2 * len(waysToCommit))
	config.ConnConfig.RuntimeParams["synchronous_commit"] = level
	config.ConnConfig.RuntimeParams["application_name"] = name
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func TestACommitThatNoStandbyHasIsUnknown(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t, "synchronous_commit=off", "synchronous_standby_names=nobody")
	w := &world{T: t, pool: server.Pool()}
	w.exec(`CREATE TABLE bookings (id int PRIMARY KEY, table_id int NOT NULL, guest text NOT NULL)`)
	w.exec(`SELECT fencedb.protect('bookings', resource => 'table:{table_id}')`)

	const long, short = time.Minute, 4 * time.Second // of leases; the server is asked for five more
	var calls sync.WaitGroup
	for _, c := range []struct {
		level, end   string
		lease        time.Duration
		known        bool
		interference string // with all that wait for the standby, questions too
	}{
		{"off", "nothing waits", long, true, ""},
		{"local", "nothing waits", long, true, ""},
		{"remote_write", "its context ends", long, false, ""},
		{"on", "its context ends", long, false, ""},
		{"remote_apply", "its context ends", long, false, ""},
		{"on", "its lease ends", short, false, ""},
		{"on", "somebody cancels", short, false, "pg_cancel_backend"},
		{"on", "somebody kills the session", short, false, "pg_terminate_backend"},
	} {
		name := c.level + ": " + c.end
		pool := atLevel(t, server, c.level, name)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var group sync.WaitGroup
		for way, commit := range waysToCommit {
			if c.end == "its lease ends" && strings.HasPrefix(way, "Entry.") { // their COMMIT is bounded by ctx alone
				continue
			}
			group.Go(func() {
				attempt := func(lease time.Duration) error {
					id := ids.Add(1)
					insert := fmt.Sprintf(`INSERT INTO bookings VALUES (%d, %[1]d, 'ann')`, id)
					return commit(ctx, pool, grantFor(fmt.Sprint("table:", id), 41, lease), insert)
				}
				late := func(err error) bool { // a busy machine did not come to COMMIT
					return errors.Is(err, fencedb.ErrLeaseOver) && !errors.Is(err, fencedb.ErrCommitUnknown) ||
						err != nil && strings.Contains(err.Error(), "the token was not sealed")
				}
				err := attempt(c.lease)
				for lease := 2 * c.lease; lease < long && late(err); lease *= 2 {
					err = attempt(lease)
				}

				switch {
				case c.known:
					assert.NoError(t, err, "%s, %s", way, name)
				case way == "Seal":
					assert.ErrorContains(t, err, "unknown whether the token was sealed", "%s, %s", way, name)
				default:
					assert.ErrorIs(t, err, fencedb.ErrCommitUnknown, "%s, %s", way, name)
				}
			})
		}
		calls.Go(group.Wait)
		switch {
		case c.interference != "":
			calls.Go(func() { w.interfere(&group, c.interference, name) })
		case c.lease == long && !c.known:
			calls.Go(func() { w.awaitStandby(name); cancel() })
		}
	}
	calls.Wait()
}

// awaitStandby waits until the COMMIT of every way waits for a standby.
func (w *world) awaitStandby(name string) {
	assert.Eventually(w, func() bool {
		var n int
		err := w.pool.QueryRow(w.Context(), `SELECT count(*) FROM pg_stat_activity
			WHERE wait_event = 'SyncRep' AND application_name = $1`, name).Scan(&n)
		return err == nil && n == len(waysToCommit)
	}, time.Minute, 10*time.Millisecond)
}

// interfere calls a function with each session of that name that waits for a standby, until the
// group is done.
func (w *world) interfere(group *sync.WaitGroup, function, name string) {
	done := make(chan struct{})
	go func() { group.Wait(); close(done) }()
	for {
		select {
		case <-done:
			return
		default:
			_, err := w.pool.Exec(w.Context(), `SELECT count(`+function+`(pid)), pg_sleep(0.02)
				FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = $1`, name)
			assert.NoError(w, err)
		}
	}
}

// Where the standby comes back in time, the truth is told: what has committed is there after the
// standby has become the primary.
func TestACommitThatTheStandbyHasSurvivesThePrimary(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t, "synchronous_commit=off")
	w := &world{T: t, pool: server.Pool()}
	w.exec(`CREATE TABLE bookings (id int PRIMARY KEY, table_id int NOT NULL, guest text NOT NULL)`)
	w.exec(`SELECT fencedb.protect('bookings', resource => 'table:{table_id}')`)
	standby := w.standby(server)
	w.exec(`ALTER SYSTEM SET synchronous_standby_names = 'standby'`)
	w.exec(`SELECT pg_reload_conf()`)
	require.Eventually(t, func() bool {
		return collect[string](w, `SHOW synchronous_standby_names`)[0] == "standby"
	}, time.Minute, 10*time.Millisecond)
	pool := atLevel(t, server, "on", "app")
	var calls sync.WaitGroup
	for way, commit := range waysToCommit {
		id := ids.Add(1)
		insert := fmt.Sprintf(`INSERT INTO bookings VALUES (%d, %[1]d, 'ann')`, id)
		g := grantFor(fmt.Sprint("table:", id), 42, time.Minute)
		calls.Go(func() { assert.NoError(t, commit(t.Context(), pool, g, insert), way) })
	}
	w.awaitStandby("app")
	w.exec(`SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`)
	w.awaitStandby("app") // they ask

	standby.Restart()
	calls.Wait()
	server.Kill()

	conn, err := pgx.Connect(t.Context(), standby.URL())
	require.NoError(t, err)
	defer conn.Close(t.Context())
	_, err = conn.Exec(t.Context(), `SELECT pg_promote()`)
	require.NoError(t, err)
	var bookings, fences int
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM bookings),
		(SELECT count(*) FROM fencedb.fences WHERE last_fencing_token = 42)`).Scan(&bookings, &fences))
	require.Equal(t, []int{len(waysToCommit) - 1, len(waysToCommit)}, []int{bookings, fences}, "a seal has no booking")
}

// standby returns a standby that has received all so far, and follows server once it is started.
func (w *world) standby(server *testenv.PostgresServer) *testenv.PostgresServer {
	w.Helper()
	return standbyOf(w, server, w.pool)
}

func standbyOf(t testing.TB, server *testenv.PostgresServer, pool *pgxpool.Pool) *testenv.PostgresServer {
	t.Helper()
	u, err := url.Parse(server.URL())
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), fmt.Sprintf(`ALTER SYSTEM SET primary_conninfo = 'host=%s port=%s user=postgres application_name=standby'`,
		u.Hostname(), u.Port())) // of the copy; a primary passes over it
	require.NoError(t, err)
	standby := server.Standby()
	pool.Reset()
	return standby
}
