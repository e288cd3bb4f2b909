package main

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

type world struct {
	*testing.T
	db        *pgxpool.Pool
	namespace string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return &world{t, testenv.Postgres(t), testenv.Namespace(t)}
}

func (w *world) queue(ttl time.Duration) *Queue {
	w.Helper()
	leases, err := lease.New(testenv.Redis(w), lease.Config{TTL: ttl, MaxHold: ttl, Namespace: w.namespace})
	require.NoError(w, err)
	q, err := OpenQueue(w.Context(), w.db, leases)
	require.NoError(w, err)
	return q
}

// row is what is stored of the only job.
type row struct {
	state    string
	attempts int
	progress int
	result   *string
}

func (w *world) row() (r row) {
	w.Helper()
	err := w.db.QueryRow(w.Context(), `SELECT state, attempts, progress, result FROM report_jobs`).Scan(&r.state, &r.attempts, &r.progress, &r.result)
	require.NoError(w, err)
	return r
}

func (w *world) enqueue(q *Queue, report string) uuid.UUID {
	w.Helper()
	id, err := q.Enqueue(w.Context(), report)
	require.NoError(w, err)
	return id
}

func result(s string) Work {
	return func(context.Context, *Run) (string, error) { return s, nil }
}

func TestAJobRunsFromQueuedToDoneUnderOneLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	q := w.queue(time.Minute)
	id := w.enqueue(q, "sales")
	require.Equal(t, row{state: "QUEUED"}, w.row())

	ran, err := q.RunOne(t.Context(), func(ctx context.Context, run *Run) (string, error) {
		require.Equal(t, id, run.ID)
		require.Equal(t, "sales", run.Report)
		require.Equal(t, 1, run.Attempt)
		require.NoError(t, run.Progress(ctx, 40))
		require.Equal(t, row{"RUNNING", 1, 40, nil}, w.row())
		return "42", nil
	})
	require.NoError(t, err)
	require.True(t, ran)
	done := w.row()
	require.Equal(t, "42", *done.result)
	require.Equal(t, row{"DONE", 1, 100, done.result}, done)

	ran, err = q.RunOne(t.Context(), result("again"))
	require.NoError(t, err)
	require.False(t, ran, "nothing is left")
}

// A write may come after the end of the lease, and must not keep the next owner waiting for days.
func TestAWriteKeepsTheNextOwnerWaitingForSecondsAtMost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	q := w.queue(time.Minute)
	w.enqueue(q, "sales")
	_, err := w.db.Exec(t.Context(), `CREATE FUNCTION bounded() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			ASSERT current_setting('statement_timeout')::interval BETWEEN '1 ms' AND '5 s', current_setting('statement_timeout');
			RETURN new;
		END $$;
		CREATE TRIGGER bounded BEFORE UPDATE ON report_jobs FOR EACH ROW EXECUTE FUNCTION bounded()`)
	require.NoError(t, err)

	_, err = q.RunOne(t.Context(), func(ctx context.Context, run *Run) (string, error) {
		return "42", run.Progress(ctx, 40)
	})

	require.NoError(t, err)
	require.Equal(t, "DONE", w.row().state)
}

func TestNobodyElseRunsWhatIsRunning(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	q := w.queue(time.Minute)
	w.enqueue(q, "sales")
	_, err := q.RunOne(t.Context(), func(context.Context, *Run) (string, error) {
		ran, err := w.queue(time.Minute).RunOne(t.Context(), result("stolen"))
		require.False(t, ran)
		return "42", err
	})
	require.NoError(t, err)
}

func TestAFailedJobIsFreeAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	q := w.queue(time.Minute)
	w.enqueue(q, "sales")
	broken := errors.New("no paper")
	ran, err := q.RunOne(t.Context(), func(context.Context, *Run) (string, error) { return "", broken })
	require.True(t, ran)
	require.ErrorIs(t, err, broken)
	ran, err = q.RunOne(t.Context(), result("42"))
	require.NoError(t, err)
	require.True(t, ran)
	require.Equal(t, 2, w.row().attempts)
}

func TestAJobThatKeepsFailingDoesNotKeepTheOthersOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	q := w.queue(time.Minute)
	broken := w.enqueue(q, "broken")
	w.enqueue(q, "sales")
	noPaper := errors.New("no paper")
	work := func(_ context.Context, run *Run) (string, error) {
		if run.ID == broken {
			return "", noPaper
		}
		return "42", nil
	}

	_, err := q.RunOne(t.Context(), work)
	require.ErrorIs(t, err, noPaper, "the first comes first")
	ran, err := q.RunOne(t.Context(), work)
	require.NoError(t, err)
	require.True(t, ran)
}

func TestAJobThatCannotBeginKeepsNoOtherOut(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		block func(w *world, id uuid.UUID)
		want  error
	}{
		"a transaction holds its fence": {func(w *world, id uuid.UUID) {
			tx, err := w.db.Begin(w.Context())
			require.NoError(w, err)
			w.Cleanup(func() { _ = tx.Rollback(context.Background()) })
			hangs := fencedb.NewGrant(resource(id), time.Now().UnixMicro(), uuid.New(), fencedb.NoEnd)
			_, err = fencedb.Enter(w.Context(), tx, hangs)
			require.NoError(w, err)
		}, fencedb.ErrBusy},
		"its key is corrupt": {func(w *world, id uuid.UUID) {
			key := lease.Key{Namespace: w.namespace, Resource: resource(id), Field: "owner"}
			require.NoError(w, testenv.Redis(w).LPush(w.Context(), key.String(), "a list").Err())
		}, lease.ErrCorrupt},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			q := w.queue(time.Minute)
			first, second := w.enqueue(q, "first"), w.enqueue(q, "second")
			tc.block(w, first)

			// The TTL bounds the wait for the fence.
			ran, err := w.queue(5*time.Second).RunOne(t.Context(), func(_ context.Context, run *Run) (string, error) {
				require.Equal(t, second, run.ID)
				return "42", nil
			})
			require.NoError(t, err)
			require.True(t, ran)

			ran, err = w.queue(5*time.Second).RunOne(t.Context(), result("42"))
			require.ErrorIs(t, err, tc.want)
			require.False(t, ran)
		})
	}
}

func TestAJobIsGivenUpWhereAnOperatorSeesIt(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		die   bool // the owners tell nothing
		error string
	}{
		"it fails":       {false, "no paper"},
		"its owners die": {true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			q := w.queue(time.Minute)
			id := w.enqueue(q, "sales")
			attempts := 0
			work := func(context.Context, *Run) (string, error) {
				if attempts++; tc.die {
					panic("out of memory")
				}
				return "", errors.New("no paper")
			}
			run := func() (ran bool, err error) {
				defer func() { _ = recover() }()
				return q.RunOne(t.Context(), work)
			}
			var err error
			for range MaxAttempts {
				_, err = run()
			}
			if tc.die {
				_, err = run()
			}
			require.ErrorIs(t, err, ErrGivenUp)
			require.Equal(t, MaxAttempts, attempts)

			ran, err := run()
			require.NoError(t, err)
			require.False(t, ran, "it is not tried again")
			failed, err := q.Failed(t.Context())
			require.NoError(t, err)
			require.Equal(t, []Failed{{id, "sales", tc.error}}, failed)

			require.NoError(t, q.Retry(t.Context(), id))
			ran, err = q.RunOne(t.Context(), result("42"))
			require.NoError(t, err)
			require.True(t, ran)
			require.ErrorIs(t, q.Retry(t.Context(), id), ErrNotFailed, "one that is done stays as it is")
			require.Equal(t, "42", *w.row().result)
		})
	}
}

func TestAnInterruptedAttemptDoesNotCount(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	q := w.queue(time.Minute)
	w.enqueue(q, "sales")
	for range MaxAttempts + 1 {
		ctx, interrupt := context.WithCancel(t.Context())
		_, err := q.RunOne(ctx, func(ctx context.Context, _ *Run) (string, error) {
			interrupt()
			<-ctx.Done()
			return "", context.Cause(ctx)
		})
		require.ErrorIs(t, err, context.Canceled)
	}
	require.Equal(t, row{state: "QUEUED"}, w.row())
}

func TestARedisThatWentBackwardsHoldsNoJobUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	q := w.queue(time.Minute)
	id := w.enqueue(q, "sales")
	ahead := fencedb.NewGrant(resource(id), time.Now().Add(time.Hour).UnixMicro(), uuid.New(), fencedb.NoEnd)
	_, err := fencedb.Exec(t.Context(), w.db, ahead, `UPDATE report_jobs SET progress = 10 WHERE id = $1`, id)
	require.NoError(t, err)

	ran, err := q.RunOne(t.Context(), result("42"))
	require.NoError(t, err)
	require.True(t, ran)
}

// One whose lease is over for good, as that of a process that was stopped.
func TestALateOwner(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		takenOver bool
		want      error
		result    string
	}{
		"nobody has come":   {false, nil, "late"},
		"another has begun": {true, fencedb.ErrStale, "in time"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.enqueue(w.queue(time.Minute), "sales")
			_, err := w.queue(5*time.Second).RunOne(t.Context(), func(ctx context.Context, run *Run) (string, error) {
				<-ctx.Done()
				require.ErrorIs(t, context.Cause(ctx), lease.ErrExpired)
				if test.takenOver {
					require.Eventually(t, func() bool {
						ran, err := w.queue(time.Minute).RunOne(t.Context(), result("in time"))
						require.NoError(t, err)
						return ran
					}, time.Minute, 10*time.Millisecond)
					require.ErrorIs(t, run.Progress(t.Context(), 50), fencedb.ErrStale)
				}
				return "late", nil
			})
			require.ErrorIs(t, err, test.want)
			require.Equal(t, test.result, *w.row().result)
		})
	}
}

func TestManyWorkersDoEveryJobOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	q := w.queue(time.Minute)
	const n = 20
	for range n {
		w.enqueue(q, "sales")
	}
	var mu sync.Mutex
	runs := make(map[uuid.UUID]int)
	var workers sync.WaitGroup
	for range 4 {
		mine := w.queue(time.Minute)
		workers.Go(func() {
			for ran := true; ran; {
				var err error
				ran, err = mine.RunOne(t.Context(), func(_ context.Context, run *Run) (string, error) {
					mu.Lock()
					defer mu.Unlock()
					runs[run.ID]++
					return "42", nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	workers.Wait()
	require.Len(t, runs, n)
	for id, times := range runs {
		require.Equal(t, 1, times, id)
	}
}

func TestNobodyWritesWithoutAToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.enqueue(w.queue(time.Minute), "sales")
	for statement, code := range map[string]string{
		`UPDATE report_jobs SET state = 'DONE', result = 'forged'`: "FN002",
		`DELETE FROM report_jobs`:                                  "FN002",
	} {
		_, err := w.db.Exec(t.Context(), statement)
		var refused *pgconn.PgError
		require.ErrorAs(t, err, &refused, statement)
		require.Equal(t, code, refused.Code, statement)
	}
}
