package main

import (
	"fmt"
	"log"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/demo/worker"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

// Who excludes nobody, or does not stop a holder that comes late, sells what is not there. The others do not.
func TestWhoSellsWhatIsNotThere(t *testing.T) {
	s, err := openShop(t.Context(), &bench{client: testenv.OwnRedis(t).Client(), postgres: testenv.PostgresURL(t)}, 200*time.Millisecond, 100)
	require.NoError(t, err)
	defer s.pool.Close()
	for _, w := range ways {
		wrongs := w.name == "nothing" || w.name == "lease only"
		sold, wrong := 0, 0
		for tries := 0; tries < 20 && (sold == 0 || wrongs && wrong == 0); tries++ {
			e, err := s.open(t.Context(), w, 2*s.ttl)
			require.NoError(t, err, w.name)
			sold, wrong = sold+e.sold, wrong+e.wrong
		}
		require.Positive(t, sold, w.name)
		require.Equal(t, wrongs, wrong > 0, "%s: %d of %d were not there", w.name, wrong, sold)
	}
}

func TestMain(m *testing.M) {
	worker.Become(map[string]worker.Life{kind: serve})
	if os.Getenv("GORACE") == "" { // or every process lingers for a second at its end
		if err := os.Setenv("GORACE", "atexit_sleep_ms=0"); err != nil {
			log.Fatal(err)
		}
	}
	testenv.Main(m)
}

func jobOn(server *testenv.RedisServer, waiters int) job {
	return job{Lock: ours, Addr: server.Addr(), Resource: fmt.Sprint("a", waiters), Waiters: waiters, Work: time.Millisecond}
}

// With one waiter in each process, each release leaves the resource free for a process that is not in the queue and asks at once.
// With more, the next of the same process stands in the queue by then.
func TestGrantsFollowTheOrderOfArrival(t *testing.T) {
	server := testenv.OwnRedis(t)
	for _, waiters := range []int{processes, 20} {
		t.Run(fmt.Sprint(waiters), func(t *testing.T) {
			o, r, err := inOrder(t.Context(), server.Client(), jobOn(server, waiters), time.Second)
			for tries := 1; tries < 3 && o.overtaken > 0; tries++ { // who is held up before it listens is passed over
				o, r, err = inOrder(t.Context(), server.Client(), jobOn(server, waiters), time.Second)
			}
			require.NoError(t, err)
			require.Greater(t, o.waited, 20, "or the order was hardly tried")
			require.GreaterOrEqual(t, o.longest, processes-1, "all processes but the holder's stand in the queue")
			require.Zero(t, o.overtaken, "grants past a waiter that stood before")
			require.Zero(t, r.overlaps, "two holders at once")
		})
	}
}

// A hand-over costs one release and the coming of one waiter into the queue, however many wait.
func TestMoreWaitersDoNotCostMoreCommands(t *testing.T) {
	server := testenv.OwnRedis(t)
	cost := func(waiters int) float64 {
		r, err := measure(t.Context(), server.Client(), jobOn(server, waiters), time.Second)
		require.NoError(t, err)
		require.Greater(t, r.grants, 20)
		return r.commands
	}
	few, many := cost(5), cost(100)
	require.InEpsilon(t, few, many, 0.1)
}

// Four lines as MONITOR prints them: b stands before c, and c is served first.
func TestAnOvertakingIsSeen(t *testing.T) {
	o := newOrder("a")
	for _, line := range []string{
		`+1.0 [0 lua] "ZADD" "lease:v1:{a}:queue" "NX" "1" "b"`,
		`+1.1 [0 lua] "ZADD" "lease:v1:{a}:queue" "NX" "2" "c"`,
		`+1.2 [0 lua] "ZADD" "lease:v1:{a}:queue" "NX" "3" "b"`,
		`+1.3 [0 lua] "SET" "lease:v1:{a}:owner" "7:1:c" "PX" "10000"`,
	} {
		o.see(line)
	}
	require.Equal(t, []string{"b"}, o.queue)
	require.Equal(t, 1, o.overtaken)
}

func TestTwoHoldersAtOnceAreSeen(t *testing.T) {
	var r result
	r.judge([]turn{{Called: 1, Granted: 2, Released: 5}, {Called: 0, Granted: 4, Released: 6}, {Called: 3}}, 0, 10)
	require.Equal(t, 2, r.grants)
	require.Equal(t, 1, r.overlaps)
	require.Equal(t, 1, r.overtaken, "who called at 0 was served after who called at 1")
	require.Equal(t, []time.Duration{7, 1, 4}, r.waits, "the one that still waits counts")
}

// A small part of what make bench-memory shows.
func TestResourcesThatWereLeasedOnceLeaveNothing(t *testing.T) {
	client := testenv.OwnRedis(t).Client()
	issuer, err := lease.New(client, lease.Config{TTL: time.Second, RenewEvery: lease.Never, FenceRetention: time.Second})
	require.NoError(t, err)
	peak, err := leaseEachOnce(t.Context(), client, issuer, 2000)
	require.NoError(t, err)
	require.Positive(t, peak, "or it was not seen that anything was there")
	require.NoError(t, emptied(t.Context(), client, 20*time.Second))
}

func TestWhatStaysIsSeen(t *testing.T) {
	client := testenv.OwnRedis(t).Client()
	require.NoError(t, client.Set(t.Context(), "a", 1, 0).Err())
	require.Error(t, emptied(t.Context(), client, 0))
}
