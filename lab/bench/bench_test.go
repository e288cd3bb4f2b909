package main

import (
	"fmt"
	"log"
	"os"
	"slices"
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
	r.judge([]turn{{Called: 1, Granted: 2, Released: 5}, {Called: 0, Granted: 4, Released: 6}, {Called: 3}}, 3, 0, 10)
	require.Equal(t, 2, r.grants)
	require.Equal(t, []time.Duration{-1}, r.gaps, "who was granted at 2 gave back at 5")
	require.Equal(t, 1, r.overtaken, "who called at 0 was served after who called at 1")
	require.Equal(t, []time.Duration{7, 1, 4}, r.waits, "the one that still waits counts")
}

// Three take turns of 2 ms, but for one of 20 ms: in order, each waits for two others and that one.
// Then one of them is passed over.
func TestTheLongestWaitIsComparedWithFIFO(t *testing.T) {
	const ms = int64(time.Millisecond)
	turns := []turn{{0, 1, 2}, {0, 3, 4}, {0, 5, 6}, {2, 7, 26}, {4, 27, 28}, {6, 29, 30}, {26, 31, 32}}
	longest := func(turns ...turn) float64 {
		var r result
		for n := range turns {
			turns[n] = turn{turns[n].Called * ms, turns[n].Granted * ms, turns[n].Released * ms}
		}
		r.judge(turns, 3, 0, 40*ms)
		return r.ofFIFO()
	}
	require.InDelta(t, 1, longest(slices.Clone(turns)...), 1e-9, "a stall is no lack of order")
	turns[4].Called, turns[6].Called = 26, 4
	require.InDelta(t, 27.0/23, longest(turns...), 1e-9)
	require.Contains(t, verdict(1.5), "1.50 of the FIFO ideal, bar 1.40, missed")
	require.NotContains(t, verdict(1.4), "missed")
}
