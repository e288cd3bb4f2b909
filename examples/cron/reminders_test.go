package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/fencedbtest"
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

func (w *world) scheduler(name string, cfg lease.Config) *scheduler {
	w.Helper()
	cfg.Namespace = w.namespace
	leases, err := lease.New(testenv.Redis(w), cfg)
	require.NoError(w, err)
	return &scheduler{Name: name, DB: w.db, Leases: leases, Deliver: toOutbox}
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
	var sent atomic.Int64
	var all sync.WaitGroup
	for n := range 4 {
		s := w.scheduler(fmt.Sprint("scheduler ", n), lease.Config{TTL: time.Minute})
		all.Go(func() {
			for range 3 {
				n, err := s.Tick(t.Context())
				if err != nil {
					t.Error(err)
				}
				sent.Add(int64(n))
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 40, sent.Load())
	w.requireEachOnce(40)
}

func TestOneAtATime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	s := w.scheduler("a", lease.Config{TTL: time.Minute})
	s.Deliver = func(ctx context.Context, tx pgx.Tx, guest string) error {
		n, err := w.scheduler("b", lease.Config{TTL: time.Minute}).Tick(ctx)
		require.NoError(t, err)
		require.Zero(t, n)
		return toOutbox(ctx, tx, guest)
	}
	n, err := s.Tick(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, n)
	w.requireEachOnce(1)
}

func TestARunThatFailsIsGoneOnWith(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 5)
	full := errors.New("the outbox is full")
	s := w.scheduler("a", lease.Config{TTL: time.Minute})
	left := 2
	s.Deliver = func(ctx context.Context, tx pgx.Tx, guest string) error {
		if left == 0 {
			return full
		}
		left--
		return toOutbox(ctx, tx, guest)
	}
	n, err := s.Tick(t.Context())
	require.ErrorIs(t, err, full)
	require.Equal(t, 2, n)
	w.requireEachOnce(2)

	n, err = w.scheduler("b", lease.Config{TTL: time.Minute}).Tick(t.Context())
	require.NoError(t, err)
	require.Equal(t, 3, n)
	w.requireEachOnce(5)
}

func TestTheNextTickGoesOnWhenRedisHasGoneBackwards(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	future := fencedb.NewGrant(resource, time.Now().Add(time.Hour).UnixMicro(), uuid.New(), time.Time{})
	require.NoError(t, fencedb.Seal(t.Context(), w.db, future))
	s := w.scheduler("a", lease.Config{TTL: time.Minute})

	_, err := s.Tick(t.Context())
	require.ErrorIs(t, err, fencedb.ErrStale)

	n, err := s.Tick(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, n)
	w.requireEachOnce(2)
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
	stopped := &scheduler{Name: "stopped", DB: db, Leases: leases.Issuer, Deliver: toOutbox}
	next := &scheduler{Name: "next", DB: w.db, Leases: leases.Issuer, Deliver: toOutbox}
	postgres.Pause("UPDATE reminders", func() {
		fencedbtest.Expire(t, leases, resource)
		n, err := next.Tick(t.Context())
		require.NoError(t, err)
		require.Equal(t, 5, n)
	})

	_, err = stopped.Tick(t.Context())

	fencedbtest.Refused(t, err)
	w.requireEachOnce(5)
}
