package stories

import (
	"bytes"
	"context"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/demo/worker"
	"github.com/fencedb/fencedb/internal/testenv"
)

func TestMain(m *testing.M) {
	worker.Become(map[string]worker.Life{"jobs": WorkOnJobs})
	testenv.Main(m)
}

// The process that starts workers can be killed, and cannot tell them then.
func TestAWorkerEndsWithTheProcessThatStartedIt(t *testing.T) {
	t.Parallel()
	s, disconnect, err := setJobs(t.Context(), io.Discard, jobsConfig{"test", testenv.PostgresURL(t), redisURL(t), testenv.Namespace(t)})
	require.NoError(t, err)
	defer disconnect()
	ann, _, err := s.begin("sales", "ann")
	require.NoError(t, err, "ann is in the middle of a job")
	defer ann.Kill()

	ann.EndOrders()

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	e, err := ann.tells(ctx, "Failed")
	require.NoError(t, err, e)
}

func TestEveryJobIsDoneOnceThoughWorkersDieAndStop(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	err := Jobs(t.Context(), &out, testenv.PostgresURL(t), redisURL(t), testenv.Namespace(t))
	require.NoError(t, err, out.String())
	require.Regexp(t, `cleo stock: refused, carried \d+, stored \d+`, out.String())
	require.Contains(t, out.String(), "sales: DONE after 2 attempts: sales, rendered by bob")
	require.Contains(t, out.String(), "stock: DONE after 2 attempts: stock, rendered by dan")
}

func redisURL(t *testing.T) string { return "redis://" + testenv.Redis(t).Options().Addr + "/0" }
