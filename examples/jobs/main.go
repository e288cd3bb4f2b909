// Command jobs lets workers own long-running jobs, kills one of them in the middle and stops another, and shows that every
// job is done once and that the one who comes back late has no say.
//
//	go run ./examples/jobs     # exits with 0 if it went as promised
//
// It finds or starts a Postgres and a Redis. A Redis that it found keeps the last tokens for a day; nothing else is left behind.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/fencedb/fencedb/examples/jobs/jobs"
	"github.com/fencedb/fencedb/internal/testenv"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	var err error
	if os.Getenv(workerVar) != "" {
		err = serve(ctx, os.Stdin, os.Stdout)
	} else {
		err = demo(ctx, os.Stdout)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "jobs:", err)
		os.Exit(1)
	}
}

func demo(ctx context.Context, out io.Writer) (err error) {
	env, err := testenv.Start(ctx, testenv.Options{AllowMiniredis: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, env.Close()) }()
	return tell(ctx, out, env.PostgresURL, env.RedisURL, "demo_"+strconv.FormatUint(rand.Uint64()>>16, 36))
}

// story is what happens between a few workers and their jobs.
type story struct {
	context.Context
	out                              io.Writer
	postgresURL, redisURL, namespace string
	queue                            *jobs.Queue
	db                               *pgxpool.Pool
}

const storyTime = 30 * time.Second

func tell(ctx context.Context, out io.Writer, postgresURL, redisURL, namespace string) error {
	ctx, cancel := context.WithTimeout(ctx, storyTime)
	defer cancel()
	queue, db, disconnect, err := connect(ctx, postgresURL, redisURL, namespace)
	if err != nil {
		return err
	}
	defer disconnect()
	plain := stdlib.OpenDBFromPool(db)
	if err := errors.Join(jobs.Migrate(ctx, plain), plain.Close()); err != nil {
		return err
	}
	s := &story{ctx, out, postgresURL, redisURL, namespace, queue, db}
	for _, part := range []func() error{s.killed, s.stopped, s.summary} {
		if err := part(); err != nil {
			return err
		}
	}
	return nil
}

func (s *story) say(format string, args ...any) { fmt.Fprintf(s.out, format+"\n", args...) }

// begin enqueues a job and lets a new worker begin it.
func (s *story) begin(report, name string) (*workerProcess, event, error) {
	if _, err := s.queue.Enqueue(s, report); err != nil {
		return nil, event{}, err
	}
	w, err := startWorker(s, name, s.postgresURL, s.redisURL, s.namespace)
	if err != nil {
		return nil, event{}, err
	}
	e, err := s.run(w)
	if err != nil {
		w.Kill()
		return nil, event{}, err
	}
	return w, e, nil
}

// run lets the worker find a job, and returns when it is RUNNING.
func (s *story) run(w *workerProcess) (event, error) {
	if err := w.Order(orderWork); err != nil {
		return event{}, err
	}
	e, err := w.tells(s, "Running")
	if err == nil {
		s.say("%-4s %s: RUNNING, attempt %d, token %d", w.name, e.Job, e.Attempt, e.Token)
	}
	return e, err
}

// takeOver lets another worker run the same job to its end.
func (s *story) takeOver(name string, from event) error {
	w, err := startWorker(s, name, s.postgresURL, s.redisURL, s.namespace)
	if err != nil {
		return err
	}
	defer w.Kill()
	e, err := s.run(w)
	if err != nil {
		return err
	}
	if e.Job != from.Job || e.Attempt != from.Attempt+1 || e.Token <= from.Token {
		return fmt.Errorf("%s took over %+v as %+v", name, from, e)
	}
	if err := w.Order(orderGo); err != nil {
		return err
	}
	_, err = w.tells(s, "Done")
	if err == nil {
		s.say("%-4s %s: DONE", w.name, e.Job)
	}
	return err
}

// killed is a worker that dies in the middle of its job.
func (s *story) killed() error {
	ann, e, err := s.begin("sales", "ann")
	if err != nil {
		return err
	}
	ann.Kill()
	s.say("ann  killed")
	return s.takeOver("bob", e)
}

// stopped is a worker that stands still in the middle of its job, and goes on when another has done it.
func (s *story) stopped() error {
	cleo, e, err := s.begin("stock", "cleo")
	if err != nil {
		return err
	}
	defer cleo.Kill()
	if err := cleo.Stop(); err != nil {
		return err
	}
	s.say("cleo stopped, for longer than her lease lasts")
	if err := s.takeOver("dan", e); err != nil {
		return err
	}
	if err := errors.Join(cleo.Order(orderGo), cleo.Continue()); err != nil {
		return err
	}
	s.say("cleo wakes, and completes the job")
	refused, err := cleo.tells(s, "Refused")
	if err == nil {
		s.say("cleo %s: refused, carried %d, stored %d", e.Job, refused.Token, refused.Stored)
	}
	return err
}

func (s *story) summary() error {
	rows, err := s.db.Query(s, `SELECT report, state, attempts, coalesce(result, '') FROM report_jobs ORDER BY created_at`)
	if err != nil {
		return err
	}
	defer rows.Close()
	s.say("")
	for rows.Next() {
		var report, state, result string
		var attempts int
		if err := rows.Scan(&report, &state, &attempts, &result); err != nil {
			return err
		}
		s.say("%s: %s after %d attempts: %s", report, state, attempts, result)
	}
	return rows.Err()
}
