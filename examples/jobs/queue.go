package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/migrations"
)

//go:embed *.sql
var files embed.FS

// Queue is one worker's view of long-running jobs in Postgres, each owned by the holder of the
// lease on it. It is safe for concurrent use.
//
//	QUEUED ──▶ RUNNING ──▶ DONE          RUNNING and DONE are written under one lease, with one token.
//	   ▲        │  │  ▲
//	   └────────┤  └──┘  the owner died or was stopped: another one takes over, with a higher token
//	    failed  └──▶ FAILED              given up after MaxAttempts, until an operator calls Retry
//
// The lease decides who works; its renewals are the heartbeat. The fence of the job decides whose
// writes count: it keeps the highest token that has entered and refuses every lower one, so an
// owner that comes back late cannot complete the job a second time.
type Queue struct {
	db   *pgxpool.Pool
	desk *guard.Desk
}

// OpenQueue brings the database up, the fences first, then the jobs, where something is missing.
// Both stay the caller's.
func OpenQueue(ctx context.Context, db *pgxpool.Pool, leases *lease.Issuer) (*Queue, error) {
	plain := stdlib.OpenDBFromPool(db)
	return &Queue{db, guard.New(leases, db)}, errors.Join(migrations.Apply(ctx, plain, files, "jobs_migrations"), plain.Close())
}

func resource(id uuid.UUID) string { return "job:" + id.String() }

// MaxAttempts is how often a job is begun before it is given up. An owner that dies, perhaps of the
// job itself, counts as well; one that is interrupted does not.
const MaxAttempts = 5

// ErrGivenUp: the job has failed as often as it may. It stays, FAILED, and its row says why.
var ErrGivenUp = errors.New("given up")

// Enqueue adds a job. Its row is born under a lease, like everything that is written to it later.
// After [fencedb.ErrCommitUnknown] the job with that id may be there or not.
func (q *Queue) Enqueue(ctx context.Context, report string) (uuid.UUID, error) {
	id := uuid.New()
	_, err := q.desk.Exec(ctx, resource(id), `INSERT INTO report_jobs (id, report) VALUES ($1, $2)`, id, report)
	if errors.Is(err, fencedb.ErrCommitted) {
		err = nil // it is added; only the answer was lost
	}
	return id, err
}

// Run is one owner's turn at a job.
type Run struct {
	ID      uuid.UUID
	Report  string
	Attempt int // 1 for the first owner
	Token   int64

	queue *Queue
	held  fencedb.Grant
}

// writeTime is how long one of our writes can keep the next owner waiting.
const writeTime = 5 * time.Second

// grant has an end of its own and not that of the lease: a late result is as good as one in time
// while no other owner has begun, and the fence knows whether one has.
func (r *Run) grant() fencedb.Grant {
	return fencedb.NewGrant(r.held.Resource(), r.held.Token(), r.held.LeaseID(), time.Now().Add(writeTime))
}

// Work does a job and returns its result, under a context that ends with the lease. A job can be
// worked on more than once, and by two owners at a time if one of them was stopped: only one result
// is kept, but what work does elsewhere has to bear being done again.
type Work func(ctx context.Context, run *Run) (result string, err error)

// RunOne finds a job that nobody works on, runs it, and reports whether there was one.
//
// Nil means that the job is done. [fencedb.ErrStale] means that another owner has taken the job
// over in the meantime, and that nothing of this run's result was written.
// [fencedb.ErrCommitUnknown] leaves open whether the job is done; the next call that looks for a
// job finds out. If work fails, the job is free at once, but comes after those that wait by then;
// after [MaxAttempts] it is given up, with [ErrGivenUp].
//
// A job that cannot begin, because a transaction holds its fence or its key in Redis is corrupt,
// keeps no other job out. RunOne returns its error if no other job ran.
func (q *Queue) RunOne(ctx context.Context, work Work) (ran bool, err error) {
	// Whether anybody works on what is not done, only its lease knows. Jobs that run must not hide
	// those that wait.
	rows, _ := q.db.Query(ctx, `SELECT id FROM (
			(SELECT id, queued_at FROM report_jobs WHERE state = 'QUEUED' ORDER BY queued_at LIMIT 100) UNION ALL
			(SELECT id, queued_at FROM report_jobs WHERE state = 'RUNNING' ORDER BY queued_at LIMIT 100)) open
		ORDER BY queued_at`)
	open, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return false, err
	}
	var blocked []error
	for _, id := range open {
		ran, err := q.run(ctx, id, work)
		switch {
		case ran:
			return true, err
		case errors.Is(err, lease.ErrHeld): // another owner works on it
		case errors.Is(err, fencedb.ErrBusy), errors.Is(err, lease.ErrCorrupt): // only this job cannot begin
			blocked = append(blocked, err)
		case err != nil:
			return false, err
		}
	}
	return false, errors.Join(blocked...)
}

func (q *Queue) run(ctx context.Context, id uuid.UUID, work Work) (ran bool, err error) {
	err = q.desk.Do(ctx, resource(id), func(bound context.Context, h *guard.Holder) error {
		run := &Run{ID: id, Token: h.Grant().Token(), queue: q, held: h.Grant()}
		var state string
		err := fencedb.QueryRow(ctx, q.db, run.grant(), `
			UPDATE report_jobs SET progress = 0, queued_at = clock_timestamp(), attempts = least(attempts + 1, $2),
				state = CASE WHEN attempts < $2 THEN 'RUNNING' ELSE 'FAILED' END
			WHERE id = $1 AND state IN ('QUEUED', 'RUNNING')
			RETURNING report, attempts, state`, id, MaxAttempts).Scan(&run.Report, &run.Attempt, &state)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil // done since it was listed
		}
		if err != nil {
			return err
		}
		ran = true
		if state == "FAILED" { // whose last owner has died
			return fmt.Errorf("job %s: %w after %d attempts", id, ErrGivenUp, run.Attempt)
		}
		result, err := work(bound, run)
		if err != nil {
			return fmt.Errorf("job %s: %w", id, run.fail(ctx, err))
		}
		return run.write(ctx, `UPDATE report_jobs SET state = 'DONE', progress = 100, result = $2 WHERE id = $1`, result)
	}, lease.NoWait())
	return ran, err
}

// fail makes the job free, or gives it up, and returns what to say.
func (r *Run) fail(ctx context.Context, cause error) error {
	if ctx.Err() != nil { // the worker was interrupted, which is not the job's fault
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		return errors.Join(cause, r.write(ctx, `UPDATE report_jobs SET state = 'QUEUED', attempts = $2 WHERE id = $1`, r.Attempt-1))
	}
	if r.Attempt < MaxAttempts {
		return errors.Join(cause, r.write(ctx, `UPDATE report_jobs SET state = 'QUEUED', error = $2 WHERE id = $1`, cause.Error()))
	}
	err := r.write(ctx, `UPDATE report_jobs SET state = 'FAILED', error = $2 WHERE id = $1`, cause.Error())
	return fmt.Errorf("%w after %d attempts: %w", ErrGivenUp, r.Attempt, errors.Join(cause, err))
}

// Failed is a job that was given up.
type Failed struct {
	ID     uuid.UUID
	Report string
	Error  string // of the last attempt that came to an end; "" if none has
}

// Failed lists the jobs that were given up, the latest first.
func (q *Queue) Failed(ctx context.Context) ([]Failed, error) {
	rows, _ := q.db.Query(ctx, `
		SELECT id, report, coalesce(error, '') FROM report_jobs WHERE state = 'FAILED' ORDER BY queued_at DESC LIMIT 100`)
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Failed])
}

// ErrNotFailed: there is no such job, or it was not given up.
var ErrNotFailed = errors.New("not among the jobs that were given up")

// Retry makes a job that was given up free, with all its attempts. Another job stays as it is, and
// the error is [ErrNotFailed].
func (q *Queue) Retry(ctx context.Context, id uuid.UUID) error {
	tag, err := q.desk.Exec(ctx, resource(id),
		`UPDATE report_jobs SET state = 'QUEUED', attempts = 0 WHERE id = $1 AND state = 'FAILED'`, id)
	if err == nil && tag.RowsAffected() == 0 {
		err = ErrNotFailed
	}
	return err
}

// Progress tells everybody how far the job is, in percent, and the owner whether it still is the
// owner: [fencedb.ErrStale] if not.
func (r *Run) Progress(ctx context.Context, percent int) error {
	return r.write(ctx, `UPDATE report_jobs SET progress = $2 WHERE id = $1`, percent)
}

func (r *Run) write(ctx context.Context, sql string, value any) error {
	_, err := fencedb.Exec(ctx, r.queue.db, r.grant(), sql, r.ID, value)
	if errors.Is(err, fencedb.ErrCommitted) { // it is written, although the answer was lost
		return nil
	}
	return err
}
