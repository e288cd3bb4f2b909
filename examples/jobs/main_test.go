package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/examples/jobs/jobs"
	"github.com/fencedb/fencedb/internal/testenv"
)

func TestMain(m *testing.M) {
	if os.Getenv(workerVar) != "" {
		main()
		return
	}
	testenv.Main(m)
}

// Whoever starts workers can be killed, and cannot tell them then.
func TestAWorkerEndsWithWhoeverStartedIt(t *testing.T) {
	t.Parallel()
	url, redisURL, namespace := testenv.PostgresURL(t), "redis://"+testenv.Redis(t).Options().Addr+"/0", testenv.Namespace(t)
	queue, db, disconnect, err := connect(t.Context(), url, redisURL, namespace)
	require.NoError(t, err)
	defer disconnect()
	plain := stdlib.OpenDBFromPool(db)
	require.NoError(t, errors.Join(jobs.Migrate(t.Context(), plain), plain.Close()))
	s := &story{t.Context(), io.Discard, url, redisURL, namespace, queue, db}
	w, _, err := s.begin("sales", "ann")
	require.NoError(t, err, "ann is in the middle of a job")
	defer w.Kill()

	w.EndOrders()

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	e, err := w.tells(ctx, "Failed")
	require.NoError(t, err, e)
}

func TestEveryJobIsDoneOnceThoughWorkersDieAndStop(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	err := tell(t.Context(), &out, testenv.PostgresURL(t), "redis://"+testenv.Redis(t).Options().Addr+"/0", testenv.Namespace(t))
	require.NoError(t, err, out.String())
	require.Regexp(t, `cleo stock: refused, carried \d+, stored \d+`, out.String())
	require.Contains(t, out.String(), "sales: DONE after 2 attempts: sales, rendered by bob")
	require.Contains(t, out.String(), "stock: DONE after 2 attempts: stock, rendered by dan")
}
