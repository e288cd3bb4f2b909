package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/examples/jobs/jobs"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
)

// What a worker is told, in variables and not in arguments: a URL may hold a password, and ps shows arguments to everybody.
const (
	workerVar    = "JOBS_WORKER" // its name; makes this program a worker
	postgresVar  = "JOBS_POSTGRES_URL"
	redisVar     = "JOBS_REDIS_URL"
	namespaceVar = "JOBS_NAMESPACE"
)

// ttl is how long a job stays with an owner that died. It is short because the demo waits for it to pass.
const ttl = 800 * time.Millisecond

// event is what a worker tells, one JSON object a line.
type event struct {
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

// worker runs one job at a time, when told to.
type worker struct {
	name  string
	queue *jobs.Queue
	goOn  chan struct{}

	mu  sync.Mutex
	out *json.Encoder // guarded by mu
}

// connect makes the queue of a worker, or of the demo itself. disconnect ends what it works with.
func connect(ctx context.Context, postgresURL, redisURL, namespace string) (
	queue *jobs.Queue, db *pgxpool.Pool, disconnect func(), err error) {
	options, err := redis.ParseURL(redisURL)
	if err != nil {
		return nil, nil, nil, err
	}
	if db, err = pgxpool.New(ctx, postgresURL); err != nil {
		return nil, nil, nil, err
	}
	client := redis.NewClient(options)
	disconnect = func() {
		db.Close()
		_ = client.Close()
	}
	leases, err := lease.New(client, lease.Config{TTL: ttl, Namespace: namespace})
	if err != nil {
		disconnect()
		return nil, nil, nil, err
	}
	return jobs.New(db, leases), db, disconnect, nil
}

// serve is a worker's life: until its orders end.
func serve(ctx context.Context, orders io.Reader, out io.Writer) error {
	queue, _, disconnect, err := connect(ctx, os.Getenv(postgresVar), os.Getenv(redisVar), os.Getenv(namespaceVar))
	if err != nil {
		return err
	}
	defer disconnect()
	w := &worker{name: os.Getenv(workerVar), queue: queue, goOn: make(chan struct{}, 1), out: json.NewEncoder(out)}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	w.tell(event{Kind: "Ready"})
	var order string
	for lines := json.NewDecoder(orders); lines.Decode(&order) == nil; {
		switch order {
		case orderWork:
			running.Go(func() { w.tell(w.work(ctx)) })
		case orderGo:
			w.goOn <- struct{}{}
		}
	}
	return nil
}

func (w *worker) tell(e event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.out.Encode(e) // if nobody listens any more, the orders end too
}

// work looks for a job until there is one.
func (w *worker) work(ctx context.Context) event {
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		ran, err := w.queue.RunOne(ctx, w.render(ctx))
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
func (w *worker) render(life context.Context) jobs.Work {
	return func(_ context.Context, run *jobs.Run) (string, error) {
		w.tell(event{Kind: "Running", Job: run.Report, Attempt: run.Attempt, Token: run.Token})
		select {
		case <-w.goOn:
			return run.Report + ", rendered by " + w.name, nil
		case <-life.Done():
			return "", context.Cause(life)
		}
	}
}

func outcome(err error) event {
	var stale *fencedb.StaleError
	switch {
	case err == nil:
		return event{Kind: "Done"}
	case errors.As(err, &stale):
		return event{Kind: "Refused", Token: stale.Token, Stored: stale.Stored}
	}
	return event{Kind: "Failed", Error: err.Error()}
}
