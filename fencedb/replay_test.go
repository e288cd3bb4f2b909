package fencedb_test

import (
	"context"
	"errors"
	"log"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
)

// replicated is a primary and a standby of it, for the example.
var replicated = sync.OnceValues(func() (primary, replica *pgxpool.Pool) {
	t := exampleTB{}
	server := testenv.OwnPostgres(t, "synchronous_commit=off")
	primary = server.Pool()
	_, err := primary.Exec(t.Context(), `CREATE TABLE bookings (table_id int NOT NULL, guest text)`)
	require.NoError(t, err)
	standby := standbyOf(t, server, primary)
	standby.Restart()
	replica, err = pgxpool.New(t.Context(), standby.URL())
	require.NoError(t, err)
	return primary, replica
})

// exampleTB is for servers of an example. They end with the test binary.
type exampleTB struct{ testing.TB }

var exampleCleanups []func() // kept, so that nothing that ends a server is garbage collected

func (exampleTB) Helper()                           {}
func (exampleTB) Context() context.Context          { return context.Background() }
func (exampleTB) Cleanup(f func())                  { exampleCleanups = append(exampleCleanups, f) }
func (exampleTB) Errorf(format string, args ...any) { log.Fatalf(format, args...) }
func (exampleTB) Fatal(args ...any)                 { log.Fatal(args...) }
func (exampleTB) Fatalf(format string, args ...any) { log.Fatalf(format, args...) }
func (exampleTB) FailNow()                          { log.Fatal("the servers of the example did not start") }

// following starts a standby that streams from a new server, and whose replay is paused.
func following(t *testing.T) (w *world, replica *pgxpool.Pool) {
	server := testenv.OwnPostgres(t, "synchronous_commit=off")
	w = &world{T: t, pool: server.Pool()}
	w.exec(`CREATE TABLE bookings (id int PRIMARY KEY, table_id int NOT NULL, guest text NOT NULL)`)
	w.exec(`SELECT fencedb.protect('bookings', resource => 'table:{table_id}')`)
	standby := w.standby(server)
	standby.Restart()
	replica, err := pgxpool.New(t.Context(), standby.URL())
	require.NoError(t, err)
	t.Cleanup(replica.Close)
	_, err = replica.Exec(t.Context(), `SELECT pg_wal_replay_pause()`)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		var state string
		err := replica.QueryRow(t.Context(), `SELECT pg_get_wal_replay_pause_state()`).Scan(&state)
		return err == nil && state == "paused"
	}, time.Minute, 10*time.Millisecond)
	return w, replica
}

// asked is a DB that reports each question, whose answer it may replace.
type asked struct {
	fencedb.DB
	before func() error
}

func (a asked) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if err := a.before(); err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	return a.DB.SendBatch(ctx, b)
}

// S8: what a standby shows may be old until the seal of the holder has arrived there.
func TestWhatAStandbyShowsIsSafeToDecideOnBehindTheSeal(t *testing.T) {
	t.Parallel()
	w, replica := following(t)
	taken := func() (n int) {
		require.NoError(t, replica.QueryRow(t.Context(), `SELECT count(*) FROM bookings WHERE table_id IN (1, 2)`).Scan(&n))
		return n
	}
	first, second := grantFor("table:1", 41, time.Minute), fencedb.All(grantFor("table:2", 42, time.Minute), grantFor("table:1", 42, time.Minute))
	require.NoError(t, fencedb.Tx(t.Context(), w.pool, first, func(tx pgx.Tx) error { return book(t.Context(), tx, 1, "ann") }))
	require.NoError(t, fencedb.Seal(t.Context(), w.pool, second))
	require.Zero(t, taken(), "replay is paused")

	questions, done := make(chan struct{}, 1000), make(chan error, 1)
	go func() {
		done <- fencedb.AwaitReplay(t.Context(), asked{replica, func() error { questions <- struct{}{}; return nil }}, second)
	}()
	for range 3 {
		select {
		case <-questions:
		case err := <-done:
			require.Fail(t, "it has returned before the seal was replayed", "%v", err)
		}
	}
	_, err := replica.Exec(t.Context(), `SELECT pg_wal_replay_resume()`)
	require.NoError(t, err)

	require.NoError(t, <-done)
	require.Equal(t, 1, taken())
	require.NoError(t, fencedb.AwaitReplay(t.Context(), replica, second), "once more")
	require.NoError(t, fencedb.Tx(t.Context(), w.pool, second, func(tx pgx.Tx) error { return book(t.Context(), tx, 2, "ben") }))
}

func TestAwaitReplayTellsWhyItDoesNotWait(t *testing.T) {
	t.Parallel()
	w, replica := following(t)
	w.exec(`CREATE ROLE reader LOGIN`)
	w.exec(`CREATE DATABASE empty`)
	sealed := grantFor("table:5", 42, time.Minute)
	require.NoError(t, fencedb.Seal(t.Context(), w.pool, sealed))
	_, err := replica.Exec(t.Context(), `SELECT pg_wal_replay_resume()`)
	require.NoError(t, err)
	require.NoError(t, fencedb.AwaitReplay(t.Context(), replica, sealed))

	of := func(change func(*pgx.ConnConfig)) *pgx.Conn {
		config := replica.Config().ConnConfig.Copy()
		change(config)
		conn, err := pgx.ConnectConfig(t.Context(), config)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		return conn
	}
	cause := errors.New("the guest has left")
	left := func(db fencedb.DB) (context.Context, fencedb.DB) { // after a few questions
		ctx, cancel := context.WithCancelCause(t.Context())
		var n atomic.Int32
		return ctx, asked{db, func() error {
			if n.Add(1) == 3 {
				cancel(cause)
			}
			return nil
		}}
	}
	for name, c := range map[string]struct {
		standby fencedb.DB
		grant   fencedb.Grant
		leaves  bool
		is      error
		says    string
	}{
		"a newer token has entered":           {replica, grantFor("table:5", 41, time.Minute), false, fencedb.ErrStale, "carried 41, stored 42"},
		"it has under another lease":          {replica, grantFor("table:5", 42, time.Minute), false, fencedb.ErrStale, "carried 42, stored 42"},
		"one of several is stale":             {replica, fencedb.All(sealed, grantFor("table:5", 42, time.Minute)), false, fencedb.ErrInvalidGrant, "two different grants"},
		"the grant has ended":                 {replica, grantFor("table:5", 42, -time.Second), false, fencedb.ErrLeaseOver, "table:5"},
		"the grant ends and was never sealed": {replica, grantFor("table:6", 42, 100*time.Millisecond), false, fencedb.ErrLeaseOver, "table:6"},
		"its context ends":                    {replica, grantFor("table:6", 42, time.Minute), true, cause, `has not replayed the seal of ["table:6"]`},
		"one of several has not been sealed":  {replica, fencedb.All(sealed, grantFor("table:6", 42, time.Minute)), true, cause, `the seal of ["table:5" "table:6"]`},
		"the grant does not say when it ends": {replica, fencedb.NewGrant("table:5", 42, sealed.LeaseID(), time.Time{}), false, fencedb.ErrInvalidGrant, "ValidUntil"},
		"there is no database":                {nil, sealed, false, nil, "the database is nil"},
		"it is a primary":                     {w.pool, sealed, false, nil, "is a primary, not a standby"},
		"the schema is not there":             {of(func(c *pgx.ConnConfig) { c.Database = "empty" }), sealed, false, nil, "run migrations.Up on its primary"},
		"the role may not enter":              {of(func(c *pgx.ConnConfig) { c.User = "reader" }), sealed, false, nil, "SELECT fencedb.allow('role')"},
		"the connection is lost":              {asked{replica, func() error { return errors.New("cut") }}, sealed, false, nil, `could not be asked for the seal of ["table:5"]: cut`},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, standby := t.Context(), c.standby
			if c.leaves {
				ctx, standby = left(standby)
			}
			err := fencedb.AwaitReplay(ctx, standby, c.grant)
			assert.ErrorContains(t, err, c.says)
			if c.is != nil {
				assert.ErrorIs(t, err, c.is)
			}
		})
	}

	conflict := true // what replay removes, a question may still see
	asking := asked{replica, func() error {
		if conflict {
			conflict = false
			return &pgconn.PgError{Code: "40001", Message: "canceling statement due to conflict with recovery"}
		}
		return nil
	}}
	require.NoError(t, fencedb.AwaitReplay(t.Context(), asking, sealed))
	simple := of(func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol })
	require.NoError(t, fencedb.AwaitReplay(t.Context(), simple, sealed))
}

// silent is a DB whose first answers come no more.
type silent struct {
	fencedb.DB
	questions *int
}

func (s silent) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if *s.questions++; *s.questions == 3 {
		return pgx.FailedBatchResults(b, errors.New("refused"))
	}
	<-ctx.Done()
	return pgx.FailedBatchResults(b, ctx.Err())
}

// A standby that hangs says nothing about the lease.
func TestAStandbyThatHangsEndsNoLeaseThatIsRenewed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		renewed   bool
		questions int
		says      string
	}{
		"a lease that is renewed": {true, 3, "could not be asked"},
		"a lease that ends":       {false, 1, fencedb.ErrLeaseOver.Error()},
	} {
		synctest.Test(t, func(t *testing.T) {
			grant := grantFor("table:5", 42, time.Second)
			if c.renewed {
				grant = renewed{grant, time.Second}
			}
			questions := 0
			err := fencedb.AwaitReplay(t.Context(), silent{questions: &questions}, grant)
			require.ErrorContains(t, err, c.says, name)
			require.Equal(t, c.renewed, !errors.Is(err, fencedb.ErrLeaseOver), name)
			require.Equal(t, c.questions, questions, name)
		})
	}
}
