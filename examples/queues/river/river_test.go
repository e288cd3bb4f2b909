package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/fencedbtest"
	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// world is a queue that works, and what it says.
type world struct {
	*testing.T
	pool   *pgxpool.Pool
	leases *fencedbtest.Issuer
	queue  *river.Client[pgx.Tx]
	events <-chan *river.Event
}

func newWorld(t *testing.T, render func(w *world, ctx context.Context, i Invoice) error) *world {
	t.Helper()
	w := &world{T: t, pool: testenv.Postgres(t)}
	require.NoError(t, Migrate(t.Context(), w.pool))
	w.leases = fencedbtest.IssuerOn(t, testenv.Redis(t), lease.Config{})
	var err error
	w.queue, err = newQueue(w.pool, &Worker{Desk: guard.New(w.leases.Issuer, w.pool),
		Render: func(ctx context.Context, i Invoice) error { return render(w, ctx, i) }})
	require.NoError(t, err)
	events, cancel := w.queue.Subscribe(river.EventKindJobCompleted, river.EventKindJobSnoozed, river.EventKindJobFailed)
	t.Cleanup(cancel)
	w.events = events
	return w
}

func (w *world) start() {
	w.Helper()
	require.NoError(w, w.queue.Start(w.Context()))
	w.Cleanup(func() { _ = w.queue.StopAndCancel(context.WithoutCancel(w.Context())) })
}

func (w *world) add(customer string, cents int64) {
	w.Helper()
	_, err := w.queue.Insert(w.Context(), Invoice{customer, cents}, nil)
	require.NoError(w, err)
}

// next is what becomes of a job.
func (w *world) next() river.EventKind {
	w.Helper()
	select {
	case e := <-w.events:
		require.NotEqual(w, river.EventKindJobFailed, e.Kind, "%+v", e.Job.Errors)
		return e.Kind
	case <-time.After(time.Minute):
		require.FailNow(w, "nothing becomes of the jobs")
		return ""
	}
}

func (w *world) owed(customer string) (cents int64) {
	w.Helper()
	require.NoError(w, w.pool.QueryRow(w.Context(), `SELECT cents FROM accounts WHERE customer = $1`, customer).Scan(&cents))
	return cents
}

// Eight jobs of one customer come up at once. One is done at a time, and each once.
func TestJobsOfOneCustomerTakeTurns(t *testing.T) {
	t.Parallel()
	othersSnoozed := make(chan struct{})
	var first, inside atomic.Int32
	w := newWorld(t, func(_ *world, ctx context.Context, _ Invoice) error {
		if inside.Add(1) > 1 {
			t.Error("two at once")
		}
		defer inside.Add(-1)
		if first.Add(1) > 1 {
			return nil
		}
		select { // the others come up while the first is at work
		case <-othersSnoozed:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	for cents := int64(1); cents < 1e8; cents *= 10 {
		w.add("ann", cents)
	}
	w.start()

	snoozed, completed := 0, 0
	for completed < 8 {
		switch w.next() {
		case river.EventKindJobSnoozed:
			if snoozed++; snoozed == 7 {
				close(othersSnoozed)
			}
		case river.EventKindJobCompleted:
			completed++
		}
	}

	require.GreaterOrEqual(t, snoozed, 7)
	require.EqualValues(t, 11111111, w.owed("ann"))
	var attempts int
	require.NoError(t, w.pool.QueryRow(t.Context(), `SELECT max(attempt) FROM river_job`).Scan(&attempts))
	require.Equal(t, 1, attempts, "a snooze uses up no attempt")
}

// Eight jobs of a second took 37, as each waited for what the lease in the way had left.
func TestAJobComesBackLongBeforeTheLeaseInTheWayWouldEnd(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		wait time.Duration
	}{
		{&lease.HeldError{RetryAfter: 5 * time.Second}, 250 * time.Millisecond},
		{&lease.HeldError{RetryAfter: 20 * time.Millisecond}, 20 * time.Millisecond},
		{lease.ErrLost, 250 * time.Millisecond},
		{fmt.Errorf("booking: %w", &fencedb.StaleError{Resource: "customer:ann"}), 250 * time.Millisecond},
	} {
		var snooze *river.JobSnoozeError
		require.ErrorAs(t, snoozed(c.err), &snooze)
		require.Equal(t, c.wait, snooze.Duration, c.err)
	}
	for _, err := range []error{nil, errors.New("no paper"), lease.ErrUnreachable, fencedb.ErrCommitUnknown} {
		require.Equal(t, err, snoozed(err), "River's own attempts are for these")
	}
}

func TestAJobThatWasOvertakenIsNotCompletedAndComesUpAgain(t *testing.T) {
	t.Parallel()
	var runs atomic.Int32
	w := newWorld(t, func(w *world, _ context.Context, _ Invoice) error {
		if runs.Add(1) == 1 {
			fencedbtest.Overtake(w, w.leases, w.pool, "customer:ann")
		}
		return nil
	})
	w.add("ann", 42)
	w.start()

	require.Equal(t, river.EventKindJobSnoozed, w.next())
	require.Equal(t, river.EventKindJobCompleted, w.next())

	require.EqualValues(t, 2, runs.Load())
	require.EqualValues(t, 42, w.owed("ann"), "once")
}

// Without Do, by the grant that a queue could have carried: one lease, so its transactions run side
// by side, and both commit.
func TestTheSameJobTwiceAtOnceUnderACarriedGrantCommitsTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	l, err := w.leases.Acquire(t.Context(), "customer:ann")
	require.NoError(t, err)
	carried := fencedb.NewGrant(l.Resource(), l.Token(), l.LeaseID(), l.ValidUntil())
	book := func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `
			INSERT INTO accounts AS a VALUES ('ann', 42) ON CONFLICT (customer) DO UPDATE SET cents = a.cents + 42`)
		return err
	}

	require.NoError(t, fencedb.Tx(t.Context(), w.pool, carried, book))
	require.NoError(t, fencedb.Tx(t.Context(), w.pool, carried, book))

	require.EqualValues(t, 84, w.owed("ann"))
}

func TestTheProgramAddsAndWorksUntilItIsInterrupted(t *testing.T) {
	url := testenv.PostgresURL(t)
	t.Setenv("FENCEDB_POSTGRES_URL", url)
	t.Setenv("FENCEDB_REDIS_URL", "redis://"+testenv.OwnRedis(t).Addr())
	require.NoError(t, run(t.Context(), []string{"add", "ann", "bob"}))
	pool, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	defer pool.Close()
	ctx, interrupt := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- run(ctx, nil) }()

	require.Eventually(t, func() bool {
		var customers int
		err := pool.QueryRow(t.Context(), `SELECT count(*) FROM accounts WHERE cents = 4200`).Scan(&customers)
		return err == nil && customers == 2
	}, time.Minute, 20*time.Millisecond)

	require.NoError(t, run(t.Context(), []string{"add", "cyd"}))
	state := func() (state string) {
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT state FROM river_job WHERE args->>'customer' = 'cyd'`).Scan(&state))
		return state
	}
	require.Eventually(t, func() bool { return state() != "available" }, time.Minute, 5*time.Millisecond)
	interrupt()

	require.NoError(t, <-over)
	require.Equal(t, "completed", state(), "what is under way may end")
}
