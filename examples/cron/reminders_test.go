package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
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
	db        *pgxpool.Pool
	namespace string
}

// newWorld has n reminders that are due and one that is not.
func newWorld(t *testing.T, n int) *world {
	t.Helper()
	w := &world{t, testenv.Postgres(t), testenv.Namespace(t)}
	require.NoError(t, errors.Join(migrate(t.Context(), w.db), migrate(t.Context(), w.db)))
	_, err := w.db.Exec(t.Context(), `INSERT INTO reminders (guest, due_at) SELECT 'guest ' || n, now() FROM generate_series(1, $1) n`, n)
	require.NoError(t, err)
	_, err = w.db.Exec(t.Context(), `INSERT INTO reminders (guest, due_at) VALUES ('later', now() + interval '1 day')`)
	require.NoError(t, err)
	return w
}

func (w *world) scheduler(name string) *scheduler {
	w.Helper()
	leases, err := lease.New(testenv.Redis(w), lease.Config{TTL: 10 * time.Second, Namespace: w.namespace, Holder: name})
	require.NoError(w, err)
	return &scheduler{Name: name, Desk: guard.New(leases, w.db), Every: 10 * time.Millisecond, Deliver: toOutbox}
}

// run runs s until the function that it returns is called. It tells who leads and how terms end.
func (w *world) run(s *scheduler) (follows <-chan string, terms <-chan error, stop func()) {
	leaders, ended, over := make(chan string, 1000), make(chan error, 1000), make(chan error, 1)
	ctx, cancel := context.WithCancel(w.Context())
	go func() {
		over <- s.Run(ctx,
			lease.OnFollow(func(leader string) { leaders <- leader }),
			lease.OnTerm(func(err error) { ended <- err }))
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		require.ErrorIs(w, <-over, context.Canceled)
	})
	w.Cleanup(stop)
	return leaders, ended, stop
}

func (w *world) awaitSent(n int) {
	w.Helper()
	require.Eventually(w, func() bool {
		var sent int
		require.NoError(w, w.db.QueryRow(w.Context(), `SELECT count(*) FROM outbox`).Scan(&sent))
		return sent >= n
	}, time.Minute, 10*time.Millisecond)
}

// requireEachOnce checks that n reminders were delivered, none of them twice.
func (w *world) requireEachOnce(n int) {
	w.Helper()
	var rows, guests, marked int
	err := w.db.QueryRow(w.Context(), `SELECT count(*), count(DISTINCT guest), (SELECT count(sent_at) FROM reminders) FROM outbox`).Scan(&rows, &guests, &marked)
	require.NoError(w, err)
	require.Equal(w, []int{n, n, n}, []int{rows, guests, marked})
}

func TestManySchedulersSendEachOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 40)
	for n := range 4 {
		w.run(w.scheduler(fmt.Sprint("scheduler ", n)))
	}
	w.awaitSent(40)
	w.requireEachOnce(40)
}

func TestOneLeadsAndTheOthersWait(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	a, delivering, deliver := w.scheduler("a"), make(chan struct{}), make(chan struct{})
	a.Deliver = func(ctx context.Context, tx pgx.Tx, guest string) error {
		close(delivering)
		<-deliver
		return toOutbox(ctx, tx, guest)
	}
	_, _, stop := w.run(a)
	<-delivering
	follows, _, _ := w.run(w.scheduler("b"))
	require.Equal(t, "a", <-follows)
	close(deliver)
	w.awaitSent(1)

	stop()
	_, err := w.db.Exec(t.Context(), `INSERT INTO reminders (guest, due_at) VALUES ('next', now())`)
	require.NoError(t, err)
	w.awaitSent(2)
	var by string
	require.NoError(t, w.db.QueryRow(t.Context(), `SELECT sent_by FROM reminders WHERE guest = 'next'`).Scan(&by))
	require.Equal(t, "b", by)
	w.requireEachOnce(2)
}

func TestATermThatFailsIsGoneOnWith(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 5)
	full := errors.New("the outbox is full")
	a, left := w.scheduler("a"), 2
	a.Deliver = func(ctx context.Context, tx pgx.Tx, guest string) error {
		if left == 0 {
			return full
		}
		left--
		return toOutbox(ctx, tx, guest)
	}
	_, terms, stop := w.run(a)
	require.ErrorIs(t, <-terms, full)
	stop()
	w.requireEachOnce(2)

	w.run(w.scheduler("b"))
	w.awaitSent(5)
	w.requireEachOnce(5)
}

func TestATermBeginsWhenRedisHasGoneBackwards(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	future := fencedb.NewGrant(role, time.Now().Add(time.Hour).UnixMicro(), uuid.New(), fencedb.NoEnd)
	require.NoError(t, fencedb.Seal(t.Context(), w.db, future))
	_, terms, _ := w.run(w.scheduler("a"))
	w.awaitSent(2)
	w.requireEachOnce(2)
	require.Empty(t, terms, "no term was lost")
}

// The first is stopped before a reminder, for longer than its lease lasts. It wakes, and does not
// look at its clock.
func TestAnOverlapIsHarmless(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 5)
	postgres := fencedbtest.NewPostgres(t, w.db.Config().ConnString())
	db, err := pgxpool.New(t.Context(), postgres.URL())
	require.NoError(t, err)
	t.Cleanup(db.Close)
	leases := fencedbtest.NewIssuer(t, lease.Config{})
	stopped, next := w.scheduler("stopped"), w.scheduler("next")
	stopped.Desk, next.Desk = guard.New(leases.Issuer, db), guard.New(leases.Issuer, w.db)
	postgres.Pause("UPDATE reminders", func() {
		fencedbtest.Expire(t, leases, role)
		w.run(next)
		w.awaitSent(5)
	})

	_, terms, _ := w.run(stopped)

	fencedbtest.Refused(t, <-terms)
	w.requireEachOnce(5)
}
