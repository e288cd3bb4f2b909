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
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s := openJobs(ctx, io.Discard, config(t))
	defer func() { s.close() }()
	ann := s.begin("ann", "sales")
	require.NoError(t, s.err, "ann is in the middle of a job")

	ann.EndOrders()

	s.next(ann, "Failed")
	require.NoError(t, s.err)
}

func TestEveryJobIsDoneOnceThoughWorkersDieAndStop(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, Jobs(t.Context(), &out, config(t)), out.String())
	require.Regexp(t, `cleo stock: refused, carried \d+, stored \d+`, out.String())
	require.Contains(t, out.String(), "sales: DONE after 2 attempts: sales, rendered by bob")
	require.Contains(t, out.String(), "stock: DONE after 2 attempts: stock, rendered by dan")
}

func config(t *testing.T) JobsConfig {
	t.Helper()
	redis := "redis://" + testenv.Redis(t).Options().Addr + "/0"
	return JobsConfig{PostgresURL: testenv.PostgresURL(t), RedisURL: redis, Namespace: testenv.Namespace(t)}
}
