package main

import (
	"fmt"
	"log"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/internal/worker"
)

// Who excludes nobody, or does not stop a holder that comes late, sells what is not there. The
// others do not.
func TestWhoSellsWhatIsNotThere(t *testing.T) {
	b := &bench{client: testenv.OwnRedis(t).Client(), postgres: testenv.PostgresURL(t)}
	s, err := openShop(t.Context(), b, 200*time.Millisecond, 100)
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

func TestTwoHoldersAtOnceAreSeen(t *testing.T) {
	var r result
	r.judge([]turn{{Called: 1, Granted: 2, Released: 5}, {Called: 0, Granted: 4, Released: 6}, {Called: 3}}, 0, 10)
	require.Equal(t, 2, r.grants)
	require.Equal(t, []time.Duration{-1}, r.gaps, "who was granted at 2 gave back at 5")
	require.Equal(t, 1, r.overtaken, "who called at 0 was served after who called at 1")
	require.Equal(t, []time.Duration{7, 1, 4}, r.waits, "the one that still waits counts")
}

func TestTheLongestWaitIsComparedWithFIFO(t *testing.T) {
	r := result{waits: []time.Duration{100 * time.Millisecond, 150 * time.Millisecond}, perSecond: 500}
	require.InDelta(t, 1.5, r.ofFIFO(50), 1e-9, "served in turn, 50 that take 2ms each wait for 100ms")
	require.Contains(t, verdict(r.ofFIFO(50)), "1.50 of the FIFO ideal, bar 1.40, missed")
	require.NotContains(t, verdict(1.4), "missed")
}
