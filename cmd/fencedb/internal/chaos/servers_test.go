package chaos

import (
	"context"
	_ "embed" // the clock
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
)

// serverFault is a fault of a server that a test may disturb. do returns when it is over. keys are
// what the run can have in Redis. It may wait until every object was written once more, so that
// there is something to lose.
func serverFault(name string, do func(ctx context.Context, keys []string, written func()) error) kind {
	return kind{name, func(ctx context.Context, c *crew, _ Fault) error {
		return do(ctx, c.keys(), func() { c.healed(ctx, now(), "work before "+name) })
	}}
}

// Faults of servers that this test may kill, beside those of clients and networks.
func TestFaultsOfServersBreakNoPromise(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	postgres := testenv.OwnPostgres(t, "fsync=on", "synchronous_commit=on", "full_page_writes=on")
	servers := []kind{
		serverFault("redis killed, old snapshot", func(ctx context.Context, _ []string, written func()) error {
			if err := server.Client().Save(ctx).Err(); err != nil {
				return err
			}
			written() // which the snapshot does not know of
			server.Kill()
			server.Restart()
			return nil
		}),
		serverFault("redis stopped", func(ctx context.Context, _ []string, _ func()) error {
			server.Pause()
			wait(ctx, 2*ttl)
			server.Resume()
			return nil
		}),
		serverFault("flushall", func(ctx context.Context, _ []string, _ func()) (err error) {
			for range 20 {
				if err = server.Client().FlushAll(ctx).Err(); err != nil {
					return err
				}
				wait(ctx, ttl/10)
			}
			return nil
		}),
		serverFault("postgres backend killed", func(ctx context.Context, _ []string, _ func()) error {
			conn, err := pgx.Connect(ctx, postgres.URL())
			if err != nil {
				return err
			}
			defer conn.Close(ctx)
			var pid int
			err = conn.QueryRow(ctx, `SELECT pid FROM pg_stat_activity WHERE application_name ~ '^chaos_' AND application_name !~ 'suite' LIMIT 1`).Scan(&pid)
			if err != nil {
				return err
			}
			return syscall.Kill(pid, syscall.SIGKILL) // Postgres ends all sessions, and recovers
		}),
		serverFault("postgres killed", func(context.Context, []string, func()) error {
			postgres.Kill()
			postgres.Restart()
			return nil
		}),
	}
	var only []string
	for _, s := range servers {
		only = append(only, s.name)
	}
	v := try(t, Config{
		PostgresURL: postgres.URL(), RedisURL: server.Addr(), servers: servers,
		Only: append(only, "pause", "kill"), Rounds: 2 * (len(servers) + 2), Workers: 3,
	})
	require.Empty(t, v.Violations)
	for _, h := range v.Faults {
		require.Empty(t, h.Skipped, h.Kind)
	}
}

// one runs the suite with one fault of servers, beside pauses.
func one(t *testing.T, redis string, lenient bool, fault kind) {
	t.Helper()
	v := try(t, Config{
		PostgresURL: testenv.PostgresURL(t), RedisURL: redis, servers: []kind{fault},
		Only: []string{fault.name, "pause"}, Rounds: 4, Workers: 3, lenient: lenient,
	})
	require.Empty(t, v.Violations)
}

// The old primary is only stopped, so that for a while there are two.
func TestAPromotedReplicaThatWasCutOff(t *testing.T) {
	t.Parallel()
	sentinel := testenv.Sentinel(t)
	options := sentinel.Options()
	first := true
	one(t, "sentinel "+options.MasterName+" "+strings.Join(options.SentinelAddrs, " "), false, serverFault("promotion", func(_ context.Context, _ []string, written func()) error {
		if !first {
			return nil // a cut-off replica follows nobody any more
		}
		first = false
		old, replicas := sentinel.Primary(), sentinel.Replicas()
		sentinel.CutOff()
		written() // which the replicas do not know of
		old.Pause()
		for _, replica := range replicas {
			replica.Resume()
		}
		sentinel.AwaitPromotion(old)
		old.Resume()
		return nil
	}))
}

func TestReshardingUnderLoad(t *testing.T) {
	t.Parallel()
	cluster := testenv.Cluster(t)
	one(t, "cluster "+strings.Join(cluster.Options().Addrs, " "), false, serverFault("resharding", func(_ context.Context, keys []string, written func()) error {
		moved := map[int]bool{}
		for _, key := range keys {
			if slot := cluster.Slot(key); !moved[slot] {
				moved[slot] = true
				cluster.MoveSlot(slot)
			}
		}
		written()
		return nil
	}))
}

func TestEvictedFences(t *testing.T) {
	t.Parallel()
	// Large fillers and small samples, so that keys in use are evicted as well.
	server := testenv.OwnRedis(t, "--maxmemory", "6mb", "--maxmemory-policy", "allkeys-lru", "--maxmemory-samples", "1",
		"--notify-keyspace-events", "Ee")
	client := server.Client()
	evictions := client.Subscribe(t.Context(), "__keyevent@0__:evicted")
	defer evictions.Close()
	_, err := evictions.Receive(t.Context())
	require.NoError(t, err)
	evicted := evictions.Channel()
	one(t, server.Addr(), false, serverFault("eviction", func(ctx context.Context, keys []string, _ func()) error {
		wanted := map[string]bool{}
		for _, key := range keys {
			if strings.HasSuffix(key, "}:fence") {
				wanted[key] = true
			}
		}
		filler := strings.Repeat("x", 256<<10)
		for n := 0; len(wanted) > 0 && ctx.Err() == nil; n++ {
			if err := client.Set(ctx, "filler:"+strconv.Itoa(n), filler, 0).Err(); err != nil {
				return err
			}
			for heard := true; heard; {
				select {
				case gone := <-evicted:
					delete(wanted, gone.Payload)
				default:
					heard = false
				}
			}
		}
		return ctx.Err()
	}))
}

// Redis loses its data and wakes up an hour ago. Its clock is no help then: it grants tokens that
// Postgres has long passed, and has to be lifted above them.
func TestTheClockSetBackWithTheDataLost(t *testing.T) {
	t.Parallel()
	server, setBack := redisWithClock(t)
	one(t, server.Addr(), true, serverFault("clock set back", func(ctx context.Context, _ []string, _ func()) error {
		setBack(time.Hour)
		return server.Client().FlushAll(ctx).Err()
	}))
}

// Leases end later than their holders believe, or earlier, and tokens go on to grow.
func TestTheClockSetBackAndForth(t *testing.T) {
	t.Parallel()
	server, setBack := redisWithClock(t)
	by := 4 * ttl
	one(t, server.Addr(), false, serverFault("clock set", func(ctx context.Context, _ []string, _ func()) error {
		for range 4 {
			setBack(by)
			by = -by
			wait(ctx, ttl/2)
		}
		return ctx.Err()
	}))
}

//go:embed clock.c.txt
var clockCode []byte // not named .c, or go build would want cgo

// redisWithClock is a Redis with a clock of its own, which setBack puts back by so much more, at
// once; the data stays. It needs a C compiler, and Linux.
func redisWithClock(t *testing.T) (server *testenv.RedisServer, setBack func(time.Duration)) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("a server gets a clock of its own through LD_PRELOAD, which only Linux has")
	}
	dir := t.TempDir()
	clock, code, library := filepath.Join(dir, "clock"), filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so")
	behind := time.Duration(0)
	require.NoError(t, os.WriteFile(clock, make([]byte, 8), 0o600))
	require.NoError(t, os.WriteFile(code, clockCode, 0o600))
	out, err := exec.CommandContext(t.Context(), "cc", "-shared", "-fPIC", "-o", library, code).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return testenv.OwnRedisWith(t, []string{"CLOCK_BEHIND=" + clock, "LD_PRELOAD=" + library}), func(by time.Duration) {
		t.Helper()
		behind += by
		// The server has the file mapped: it is written to, not replaced.
		f, err := os.OpenFile(clock, os.O_WRONLY, 0)
		require.NoError(t, err)
		defer f.Close()
		_, err = f.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(behind.Microseconds())), 0)
		require.NoError(t, err)
	}
}

func TestRedisWithAClockOfItsOwn(t *testing.T) {
	t.Parallel()
	server, setBack := redisWithClock(t)
	client := server.Client()
	behind := func() time.Duration { return time.Since(client.Time(t.Context()).Val()).Round(time.Minute) }
	require.Zero(t, behind())
	require.NoError(t, client.Set(t.Context(), "k", "kept", time.Second).Err())

	setBack(time.Hour)
	require.Equal(t, time.Hour, behind())
	require.Greater(t, client.PTTL(t.Context(), "k").Val(), time.Hour, "expiry is a time of that clock")
	setBack(-2 * time.Hour)
	require.Equal(t, -time.Hour, behind())
	require.Zero(t, client.Exists(t.Context(), "k").Val())

	server.Restart()
	require.Equal(t, -time.Hour, behind())
}
