package stories

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/fencedb/fencedb/examples/jobs/jobs"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/demo/worker"
	"github.com/fencedb/fencedb/lease"
)

// JobsConfig is what the story of the jobs and its workers need.
type JobsConfig struct {
	Name        string // of a worker; the story sets it
	PostgresURL string // an empty database
	RedisURL    string
	Namespace   string // of the leases
}

// jobTTL is how long a job stays with an owner that died. It is short because the story waits for
// it to pass.
const jobTTL = 800 * time.Millisecond

// connect makes the queue of a worker, or of the story itself, and a function that disconnects.
func (c JobsConfig) connect(ctx context.Context) (*jobs.Queue, *pgxpool.Pool, func(), error) {
	client, err := worker.Redis(c.RedisURL, c.Name)
	if err != nil {
		return nil, nil, nil, err
	}
	leases, err := lease.New(client, lease.Config{TTL: jobTTL, Namespace: c.Namespace})
	if err != nil {
		return nil, nil, nil, err
	}
	db, err := worker.Postgres(ctx, c.PostgresURL, c.Name)
	if err != nil {
		return nil, nil, nil, err
	}
	return jobs.New(db, leases), db, func() { db.Close(); _ = client.Close() }, nil
}

// Jobs lets workers own long jobs, kills one of them in the middle and stops another, and shows
// that every job is done once and that an owner that comes back late is refused.
func Jobs(ctx context.Context, out io.Writer, c JobsConfig) error {
	const storyTime = 30 * time.Second
	ctx, cancel := context.WithTimeout(ctx, storyTime)
	defer cancel()
	s := openJobs(ctx, out, c)
	defer s.close()

	ann := s.begin("ann", "sales")
	s.do(func() error { ann.Kill(); return nil })
	s.say("ann  killed")
	s.takeOver("bob", ann)

	cleo := s.begin("cleo", "stock")
	s.do(cleo.Stop)
	s.say("cleo stopped, for longer than her lease lasts")
	s.takeOver("dan", cleo)
	s.do(func() error { return errors.Join(cleo.Order(goOn), cleo.Continue()) })
	s.say("cleo wakes, and completes the job")
	refused := s.next(cleo, "Refused")
	s.say("cleo %s: refused, carried %d, stored %d", cleo.Job, refused.Token, refused.Stored)

	s.do(func() error {
		s.say("")
		var report, state, result string
		var attempts int
		rows, _ := s.db.Query(ctx, `
			SELECT report, state, attempts, coalesce(result, '') FROM report_jobs ORDER BY created_at`)
		_, err := pgx.ForEachRow(rows, []any{&report, &state, &attempts, &result}, func() error {
			s.say("%s: %s after %d attempts: %s", report, state, attempts, result)
			return nil
		})
		return err
	})
	return s.err
}

// jobsStory is the story being told. After the first error its methods do nothing, as those of
// scene.
type jobsStory struct {
	ctx    context.Context
	out    io.Writer
	config JobsConfig
	queue  *jobs.Queue
	db     *pgxpool.Pool
	owners []*owner
	close  func()
	err    error
}

func openJobs(ctx context.Context, out io.Writer, c JobsConfig) *jobsStory {
	c.Name = "story"
	s := &jobsStory{ctx: ctx, out: out, config: c, close: func() {}}
	s.do(func() error {
		queue, db, disconnect, err := c.connect(ctx)
		if err != nil {
			return err
		}
		s.queue, s.db = queue, db
		s.close = func() {
			for _, o := range s.owners {
				o.Kill()
			}
			disconnect()
		}
		plain := stdlib.OpenDBFromPool(db)
		return errors.Join(jobs.Migrate(ctx, plain), plain.Close())
	})
	return s
}

func (s *jobsStory) do(f func() error) {
	if s.err == nil {
		s.err = f()
	}
}

func (s *jobsStory) say(format string, args ...any) {
	if s.err == nil {
		fmt.Fprintf(s.out, format+"\n", args...)
	}
}

// owner is a worker seen from outside, and the run that it has begun.
type owner struct {
	*worker.Process[jobEvent]
	name string
	jobEvent
}

// begin enqueues a job and lets a new worker begin it.
func (s *jobsStory) begin(name, report string) *owner {
	s.do(func() error {
		_, err := s.queue.Enqueue(s.ctx, report)
		return err
	})
	return s.hire(name)
}

// hire starts a worker, and returns when the job that it finds is RUNNING.
func (s *jobsStory) hire(name string) *owner {
	o := &owner{name: name}
	s.do(func() (err error) {
		c := s.config
		c.Name = name
		if o.Process, err = worker.Start[jobEvent](s.ctx, "jobs", c); err == nil {
			s.owners = append(s.owners, o)
		}
		return err
	})
	o.jobEvent = s.next(o, "Running")
	s.say("%-4s %s: RUNNING, attempt %d, token %d", name, o.Job, o.Attempt, o.Token)
	return o
}

// takeOver lets another worker run the same job to its end.
func (s *jobsStory) takeOver(name string, from *owner) {
	o := s.hire(name)
	s.do(func() error {
		if o.Job != from.Job || o.Attempt != from.Attempt+1 || o.Token <= from.Token {
			return fmt.Errorf("%s took over %+v as %+v", name, from.jobEvent, o.jobEvent)
		}
		return o.Order(goOn)
	})
	s.next(o, "Done")
	s.say("%-4s %s: DONE", name, o.Job)
}

// next waits for the next event of a worker, which has to be of that kind.
func (s *jobsStory) next(o *owner, kind string) (e jobEvent) {
	s.do(func() (err error) {
		if e, err = o.Next(s.ctx); err == nil && e.Kind != kind {
			err = fmt.Errorf("%+v instead of %s", e, kind)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", o.name, err)
		}
		return nil
	})
	return e
}

// jobEvent is what a worker tells.
type jobEvent struct {
	Kind    string // Ready, Running, Done, Refused, Failed
	Job     string `json:",omitempty"`
	Attempt int    `json:",omitempty"`
	Token   int64  `json:",omitempty"` // that the run carries
	Stored  int64  `json:",omitempty"` // Refused: the token that the row has stored
	Error   string `json:",omitempty"`
}

// goOn is the only order: let the job under way go on to its end.
const goOn = "go"

// WorkOnJobs is the life of a worker of kind "jobs": one job, and then nothing until its orders end.
func WorkOnJobs(ctx context.Context, self *worker.Self) error {
	var c JobsConfig
	if err := self.Config(&c); err != nil {
		return err
	}
	queue, _, disconnect, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer disconnect()
	ctx, cancel := context.WithCancel(ctx)
	goingOn := make(chan struct{}, 1)
	// Like much code that is older than its lease, this does not look at the context that ends with
	// the lease, only at the life of its process.
	render := func(_ context.Context, run *jobs.Run) (string, error) {
		self.Tell(jobEvent{Kind: "Running", Job: run.Report, Attempt: run.Attempt, Token: run.Token})
		select {
		case <-goingOn:
			return run.Report + ", rendered by " + c.Name, nil
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
	self.Tell(jobEvent{Kind: "Ready"})
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { self.Tell(runOne(ctx, queue, render)) })
	for order := ""; self.Order(&order) == nil; {
		goingOn <- struct{}{}
	}
	return nil
}

// runOne looks for a job until there is one, and runs it.
func runOne(ctx context.Context, queue *jobs.Queue, work jobs.Work) jobEvent {
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		ran, err := queue.RunOne(ctx, work)
		var stale *fencedb.StaleError
		switch {
		case errors.As(err, &stale):
			return jobEvent{Kind: "Refused", Token: stale.Token, Stored: stale.Stored}
		case err != nil:
			return jobEvent{Kind: "Failed", Error: err.Error()}
		case ran:
			return jobEvent{Kind: "Done"}
		}
		<-again.C
	}
}
