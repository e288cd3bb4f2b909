package main

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
)

func TestMain(m *testing.M) {
	if os.Getenv(workerVar) != "" {
		main()
		return
	}
	testenv.Main(m)
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
