package stories

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/fencedb/fencedb/examples/jobs/jobs"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/demo/worker"
	"github.com/fencedb/fencedb/lease"
)

// jobsStory is what happens between a few workers and their jobs.
type jobsStory struct {
	context.Context
	out    io.Writer
	config jobsConfig
	queue  *jobs.Queue
	db     *pgxpool.Pool
}

// Jobs lets workers own long-running jobs, kills one of them in the middle and stops another, and shows that every job is done once
// and that the one who comes back late has no say.
func Jobs(ctx context.Context, out io.Writer, postgresURL, redisURL, namespace string) error {
	const storyTime = 30 * time.Second
	ctx, cancel := context.WithTimeout(ctx, storyTime)
	defer cancel()
	s, disconnect, err := setJobs(ctx, out, jobsConfig{"jobs", postgresURL, redisURL, namespace})
	if err != nil {
		return err
	}
	defer disconnect()
	for _, part := range []func() error{s.killed, s.stopped, s.summary} {
		if err := part(); err != nil {
			return err
		}
	}
	return nil
}

func setJobs(ctx context.Context, out io.Writer, c jobsConfig) (*jobsStory, func(), error) {
	queue, db, disconnect, err := c.connect(ctx)
	if err != nil {
		return nil, nil, err
	}
	plain := stdlib.OpenDBFromPool(db)
	if err := errors.Join(jobs.Migrate(ctx, plain), plain.Close()); err != nil {
		disconnect()
		return nil, nil, err
	}
	return &jobsStory{ctx, out, c, queue, db}, disconnect, nil
}

func (s *jobsStory) say(format string, args ...any) { fmt.Fprintf(s.out, format+"\n", args...) }

// begin enqueues a job and lets a new worker begin it.
func (s *jobsStory) begin(report, name string) (*namedOwner, jobEvent, error) {
	if _, err := s.queue.Enqueue(s, report); err != nil {
		return nil, jobEvent{}, err
	}
	w, err := s.hire(name)
	if err != nil {
		return nil, jobEvent{}, err
	}
	e, err := s.run(w)
	if err != nil {
		w.Kill()
		return nil, jobEvent{}, err
	}
	return w, e, nil
}

// namedOwner is a worker seen from outside.
type namedOwner struct {
	*worker.Process[jobEvent]
	name string
}

func (s *jobsStory) hire(name string) (*namedOwner, error) {
	c := s.config
	c.Name = name
	p, err := worker.Start[jobEvent](s, "jobs", c)
	return &namedOwner{p, name}, err
}

// tells waits for the next event of the worker, which has to be of that kind.
func (o *namedOwner) tells(ctx context.Context, kind string) (jobEvent, error) {
	e, err := o.Next(ctx)
	switch {
	case err != nil:
		return jobEvent{}, fmt.Errorf("%s, who has to tell %s: %w", o.name, kind, err)
	case e.Kind != kind:
		return e, fmt.Errorf("%s tells %+v, instead of %s", o.name, e, kind)
	}
	return e, nil
}

// run lets the worker find a job, and returns when it is RUNNING.
func (s *jobsStory) run(w *namedOwner) (jobEvent, error) {
	if err := w.Order(orderWork); err != nil {
		return jobEvent{}, err
	}
	e, err := w.tells(s, "Running")
	if err == nil {
		s.say("%-4s %s: RUNNING, attempt %d, token %d", w.name, e.Job, e.Attempt, e.Token)
	}
	return e, err
}

// takeOver lets another worker run the same job to its end.
func (s *jobsStory) takeOver(name string, from jobEvent) error {
	w, err := s.hire(name)
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
func (s *jobsStory) killed() error {
	ann, e, err := s.begin("sales", "ann")
	if err != nil {
		return err
	}
	ann.Kill()
	s.say("ann  killed")
	return s.takeOver("bob", e)
}

// stopped is a worker that stands still in the middle of its job, and goes on when another has done it.
func (s *jobsStory) stopped() error {
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

func (s *jobsStory) summary() error {
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

// jobTTL is how long a job stays with an owner that died. It is short because the demo waits for it to pass.
const jobTTL = 800 * time.Millisecond

// jobEvent is what a worker tells, one JSON object a line.
type jobEvent struct {
	Kind    string // Ready, Running, Done, Refused, Failed
	Job     string `json:",omitempty"`
	Attempt int    `json:",omitempty"`
	Token   int64  `json:",omitempty"` // that the run carries
	Stored  int64  `json:",omitempty"` // Refused: that the row has seen
	Error   string `json:",omitempty"`
}

// Orders, one a line.
const (
	orderWork = "work" // wait for a job and run it
	orderGo   = "go"   // let the job under way go on to its end
)

// jobsConfig is what a worker needs to know.
type jobsConfig struct{ Name, PostgresURL, RedisURL, Namespace string }

// owner runs one job at a time, when told to.
type owner struct {
	*worker.Self
	name  string
	queue *jobs.Queue
	goOn  chan struct{}
}

// connect makes the queue of a worker, or of the story itself. disconnect ends what it works with.
func (c jobsConfig) connect(ctx context.Context) (queue *jobs.Queue, db *pgxpool.Pool, disconnect func(), err error) {
	client, err := worker.Redis(c.RedisURL, c.Name)
	if err != nil {
		return nil, nil, nil, err
	}
	leases, err := lease.New(client, lease.Config{TTL: jobTTL, Namespace: c.Namespace})
	if err == nil {
		db, err = worker.Postgres(ctx, c.PostgresURL, c.Name)
	}
	if err != nil {
		_ = client.Close()
		return nil, nil, nil, err
	}
	return jobs.New(db, leases), db, func() { db.Close(); _ = client.Close() }, nil
}

// WorkOnJobs is the life of a worker of kind "jobs": until its orders end.
func WorkOnJobs(ctx context.Context, self *worker.Self) error {
	var c jobsConfig
	if err := self.Config(&c); err != nil {
		return err
	}
	queue, _, disconnect, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer disconnect()
	o := &owner{self, c.Name, queue, make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	o.Tell(jobEvent{Kind: "Ready"})
	var order string
	for self.Order(&order) == nil {
		switch order {
		case orderWork:
			running.Go(func() { o.Tell(o.work(ctx)) })
		case orderGo:
			o.goOn <- struct{}{}
		}
	}
	return nil
}

// work looks for a job until there is one.
func (o *owner) work(ctx context.Context) jobEvent {
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		ran, err := o.queue.RunOne(ctx, o.render(ctx))
		if ran || err != nil {
			return outcome(err)
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return outcome(context.Cause(ctx))
		}
	}
}

// render writes the report. Like much code that was there before, it does not look at its context, which ends with the lease: only at
// the life of its process.
func (o *owner) render(life context.Context) jobs.Work {
	return func(_ context.Context, run *jobs.Run) (string, error) {
		o.Tell(jobEvent{Kind: "Running", Job: run.Report, Attempt: run.Attempt, Token: run.Token})
		select {
		case <-o.goOn:
			return run.Report + ", rendered by " + o.name, nil
		case <-life.Done():
			return "", context.Cause(life)
		}
	}
}

func outcome(err error) jobEvent {
	var stale *fencedb.StaleError
	switch {
	case err == nil:
		return jobEvent{Kind: "Done"}
	case errors.As(err, &stale):
		return jobEvent{Kind: "Refused", Token: stale.Token, Stored: stale.Stored}
	}
	return jobEvent{Kind: "Failed", Error: err.Error()}
}
