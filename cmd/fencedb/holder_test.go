package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
)

// holderVar makes the test binary a program that holds seat:1 and writes once for each line that it reads.
const holderVar = "FENCEDB_TEST_HOLDER_NAMESPACE"

func hold() {
	ctx := context.Background()
	must := func(err error) {
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	options, err := redis.ParseURL(os.Getenv("FENCEDB_REDIS_URL"))
	must(err)
	pool, err := pgxpool.New(ctx, os.Getenv("FENCEDB_POSTGRES_URL"))
	must(err)
	i, err := lease.New(redis.NewClient(options), lease.Config{TTL: time.Minute, Namespace: os.Getenv(holderVar)})
	must(err)
	l, err := i.TryAcquire(ctx, "seat:1")
	must(err)
	fmt.Println("held")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		_, err := fencedb.Exec(ctx, pool, l, `INSERT INTO seats VALUES (1, 'Ann')`)
		fmt.Println("stale:", errors.Is(err, fencedb.ErrStale), "failed:", err != nil)
	}
}

func TestAHolderThatWasStoppedDuringTheRevocationIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	self, err := os.Executable()
	require.NoError(t, err)
	holder := exec.CommandContext(t.Context(), self)
	holder.Env = append(os.Environ(), holderVar+"="+w.namespace, "FENCEDB_REDIS_URL="+redisURL(w.redis), "FENCEDB_POSTGRES_URL="+w.pool.Config().ConnString())
	in, err := holder.StdinPipe()
	require.NoError(t, err)
	out, err := holder.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, holder.Start())
	t.Cleanup(func() { _ = holder.Process.Kill(); _ = holder.Wait() })
	says := bufio.NewScanner(out)
	next := func() string { require.True(t, says.Scan()); return says.Text() }
	require.Equal(t, "held", next())
	_, _ = io.WriteString(in, "write\n")
	require.Equal(t, "stale: false failed: false", next())

	require.NoError(t, holder.Process.Signal(syscall.SIGSTOP))
	w.revoked("seat:1")
	_, _ = io.WriteString(in, "write\n")
	require.NoError(t, holder.Process.Signal(syscall.SIGCONT))

	require.Equal(t, "stale: true failed: true", next())
	require.Equal(t, "1", w.one(`SELECT count(*) FROM seats`))
	require.Equal(t, "seat:1 true", w.one(`SELECT concat_ws(' ', resource, details ->> 'sealed') FROM fencedb.audit WHERE event = 'revoke'`))
}
