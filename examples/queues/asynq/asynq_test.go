package asynq_test

import (
	"errors"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/require"

	invoices "github.com/fencedb/fencedb/examples/queues/asynq"
	"github.com/fencedb/fencedb/fencedbtest"
	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// Two tasks of a customer whose lease another has, and one of them twice.
func TestATaskWaitsForItsCustomerAndIsBookedOnce(t *testing.T) {
	t.Parallel()
	pool, server := testenv.Postgres(t), testenv.OwnRedis(t) // of its own: asynq knows no namespaces
	for _, sql := range []string{
		`CREATE TABLE accounts (customer text PRIMARY KEY, cents bigint NOT NULL)`,
		`SELECT fencedb.protect('accounts', resource => 'customer:{customer}')`,
	} {
		_, err := pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	leases := fencedbtest.IssuerOn(t, server.Client(), lease.Config{})
	other, err := leases.Acquire(t.Context(), "customer:ann")
	require.NoError(t, err)

	settings := invoices.Settings
	settings.Concurrency, settings.LogLevel, settings.TaskCheckInterval = 4, asynq.FatalLevel, 50*time.Millisecond
	settings.DelayedTaskCheckInterval = 50 * time.Millisecond
	held := make(chan struct{}, 100)
	settings.RetryDelayFunc = func(n int, err error, task *asynq.Task) time.Duration {
		if errors.Is(err, lease.ErrHeld) {
			held <- struct{}{}
		}
		return invoices.Settings.RetryDelayFunc(n, err, task)
	}
	redisURL := asynq.RedisClientOpt{Addr: server.Addr()}
	queue := asynq.NewClient(redisURL)
	defer queue.Close()
	for _, payload := range []string{`{"customer": "ann", "cents": 42}`, `{"customer": "ann", "cents": 100}`} {
		_, err := queue.EnqueueContext(t.Context(), asynq.NewTask("invoice", []byte(payload)), asynq.MaxRetry(1))
		require.NoError(t, err)
	}
	worker := asynq.NewServer(redisURL, settings)
	require.NoError(t, worker.Start(invoices.Handler(guard.New(leases.Issuer, pool))))
	defer worker.Shutdown()
	for range 4 { // more than the retries that they have
		<-held
	}

	require.NoError(t, other.Release(t.Context()))

	require.Eventually(t, func() bool {
		var cents int64
		err := pool.QueryRow(t.Context(), `SELECT cents FROM accounts`).Scan(&cents)
		return err == nil && cents == 142
	}, time.Minute, 20*time.Millisecond)
}

func TestATaskWithoutAnIDIsRefused(t *testing.T) {
	t.Parallel()
	task := asynq.NewTask("invoice", []byte(`{"customer": "ann", "cents": 42}`))

	require.ErrorContains(t, invoices.Handler(nil)(t.Context(), task), "not that of a server")
}
