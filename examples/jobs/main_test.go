package main

import (
	"cmp"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/internal/worker"
	"github.com/fencedb/fencedb/lease"
)

func TestMain(m *testing.M) {
	worker.Become(map[string]worker.Life{"jobs": ownOneJob})
	testenv.Main(m)
}

// place is what an owner in a process of its own needs to know.
type place struct{ PostgresURL, RedisURL, Namespace string }

// event is what an owner tells: that it is ready, that it runs a job, how that ended.
type event struct {
	Attempt      int
	Token        int64
	Error        string
	StaleBecause int64 // the token that Postgres had instead
}

// ownOneJob runs one job. Like much code that is older than its lease, the work does not look at
// the context that ends with the lease. It takes until an order comes.
func ownOneJob(ctx context.Context, self *worker.Self) error {
	var at place
	if err := self.Config(&at); err != nil {
		return err
	}
	client, err := dial(at.RedisURL)
	if err != nil {
		return err
	}
	defer client.Close()
	db, err := pgxpool.New(ctx, at.PostgresURL)
	if err != nil {
		return err
	}
	defer db.Close()
	leases, err := lease.New(client, lease.Config{TTL: time.Minute, Namespace: at.Namespace})
	if err != nil {
		return err
	}
	self.Tell(event{})
	var e event
	again := time.NewTicker(50 * time.Millisecond)
	for ran := false; !ran && err == nil; <-again.C {
		ran, err = (&Queue{db, guard.New(leases, db)}).RunOne(ctx, func(_ context.Context, run *Run) (string, error) {
			e = event{Attempt: run.Attempt, Token: run.Token}
			self.Tell(e)
			var goOn string
			return "rendered", self.Order(&goOn)
		})
	}
	var stale *fencedb.StaleError
	if errors.As(err, &stale) {
		e.StaleBecause = stale.Stored
	}
	if err != nil {
		e.Error = err.Error()
	}
	self.Tell(e)
	return nil
}

func TestEveryJobIsDoneOnceThoughOwnersDieAndStop(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	client := testenv.Redis(t)
	at := place{w.db.Config().ConnString(), "redis://" + client.Options().Addr + "/0", w.namespace}
	next := func(p *worker.Process[event]) event {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		e, err := p.Next(ctx)
		require.NoError(t, err)
		return e
	}
	begin := func() (*worker.Process[event], event) {
		p, err := worker.Start[event](t.Context(), "jobs", at)
		require.NoError(t, err)
		t.Cleanup(p.Abort)
		return p, next(p)
	}
	takeOver := func(job uuid.UUID, from event) event { // whose lease runs out
		key := lease.Key{Namespace: w.namespace, Resource: resource(job), Field: "owner"}
		require.EqualValues(t, 1, client.Del(t.Context(), key.String()).Val())
		p, e := begin()
		require.Equal(t, 2, e.Attempt)
		require.Greater(t, e.Token, from.Token)
		require.NoError(t, p.Order("go on"))
		require.Equal(t, e, next(p), "done, without an error")
		return e
	}

	job := w.enqueue(w.queue(time.Minute), "sales")
	ann, run := begin()
	ann.Kill()
	takeOver(job, run)

	job = w.enqueue(w.queue(time.Minute), "stock")
	cleo, run := begin()
	require.NoError(t, cleo.Stop())
	successor := takeOver(job, run)
	require.NoError(t, cmp.Or(cleo.Order("go on"), cleo.Continue()))
	refused := next(cleo)
	require.Equal(t, []int64{run.Token, successor.Token}, []int64{refused.Token, refused.StaleBecause}, refused.Error)

	var done int
	require.NoError(t, w.db.QueryRow(t.Context(), `SELECT count(*) FROM report_jobs
		WHERE state = 'DONE' AND attempts = 2 AND result = 'rendered'`).Scan(&done))
	require.Equal(t, 2, done)
}

func TestTheProgramRetries(t *testing.T) {
	t.Setenv("FENCEDB_POSTGRES_URL", testenv.PostgresURL(t))
	t.Setenv("FENCEDB_REDIS_URL", "redis://"+testenv.OwnRedis(t).Addr())
	require.NoError(t, run(t.Context(), []string{"add", "sales"}))
	require.NoError(t, run(t.Context(), []string{"failed"}))
	require.ErrorIs(t, run(t.Context(), []string{"retry", uuid.NewString()}), ErrNotFailed)
	require.ErrorContains(t, run(t.Context(), []string{"retry", "sales"}), "job sales")
}

// The next worker need not wait until the lease of one that was interrupted has expired, though its
// release takes a while.
func TestAWorkerThatIsInterruptedGivesItsJobBack(t *testing.T) {
	server := testenv.OwnRedis(t)
	t.Setenv("FENCEDB_POSTGRES_URL", testenv.PostgresURL(t))
	t.Setenv("FENCEDB_REDIS_URL", "redis://"+server.Addr())
	require.NoError(t, run(t.Context(), []string{"add", "sales"}))
	client := server.Client()
	held := func() bool {
		keys, err := client.Keys(t.Context(), "lease:*:owner").Result()
		require.NoError(t, err)
		return len(keys) > 0
	}
	ctx, interrupt := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- run(ctx, []string{"ann"}) }()
	require.Eventually(t, held, time.Minute, 10*time.Millisecond)

	require.NoError(t, client.Do(t.Context(), "client", "pause", 300, "write").Err())
	interrupt()

	require.NoError(t, <-over)
	require.False(t, held())
}

func dial(url string) (*redis.Client, error) {
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	return redis.NewClient(options), nil
}
