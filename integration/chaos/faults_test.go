package chaos

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
)

func TestKilledAndRestartedOnAnOldSnapshot(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	w := newWorld(t, clientsOf(t, server.Addr()))
	w.survive(func() {
		require.NoError(t, server.Client().Save(t.Context()).Err())
		w.awaitCommits(nap) // which the snapshot does not know of
		server.Kill()
		server.Restart()
	})
}

// The server answers nothing for longer than leases last, and then everything that was sent meanwhile.
func TestStoppedForLongerThanLeasesLast(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	w := newWorld(t, clientsOf(t, server.Addr()))
	w.survive(func() {
		server.Pause()
		<-time.After(2 * ttl)
		server.Resume()
	})
}

// The old primary is only stopped, so that for a while there are two.
func TestAPromotedReplicaThatWasCutOff(t *testing.T) {
	t.Parallel()
	sentinel := testenv.Sentinel(t)
	w := newWorld(t, func() redis.UniversalClient { return sentinel.Client() })
	w.survive(func() {
		old, replicas := sentinel.Primary(), sentinel.Replicas()
		sentinel.CutOff()
		w.awaitCommits(nap) // which the replicas do not know of
		old.Pause()
		for _, replica := range replicas {
			replica.Resume()
		}
		sentinel.AwaitPromotion(old)
		old.Resume()
	})
}

func TestEvictedFences(t *testing.T) {
	t.Parallel()
	// Large fillers and small samples, so that keys in use are evicted as well.
	server := testenv.OwnRedis(t, "--maxmemory", "6mb", "--maxmemory-policy", "allkeys-lru", "--maxmemory-samples", "1",
		"--notify-keyspace-events", "Ee")
	w := newWorld(t, clientsOf(t, server.Addr()))
	evictions := server.Client().Subscribe(t.Context(), "__keyevent@0__:evicted")
	defer evictions.Close()
	_, err := evictions.Receive(t.Context())
	require.NoError(t, err)
	w.survive(func() { fillUntilFencesAreGone(t, server.Client(), evictions.Channel()) })
}

func fillUntilFencesAreGone(t *testing.T, client *redis.Client, evicted <-chan *redis.Message) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	wanted := make(map[string]bool)
	for _, resource := range resources {
		wanted["lease:v1:{chaos/"+resource+"}:fence"] = true
	}
	filler := strings.Repeat("x", 256<<10)
	for n := 0; len(wanted) > 0; n++ {
		require.NoError(t, client.Set(ctx, "filler:"+strconv.Itoa(n), filler, 0).Err())
		for heard := true; heard; {
			select {
			case gone := <-evicted:
				delete(wanted, gone.Payload)
			default:
				heard = false
			}
		}
	}
}

func TestFlushedAllTheTime(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	w := newWorld(t, clientsOf(t, server.Addr()))
	w.survive(func() {
		again := time.NewTicker(50 * time.Millisecond)
		defer again.Stop()
		for range 40 {
			<-again.C
			require.NoError(t, server.Client().FlushAll(t.Context()).Err())
		}
	})
}

// Redis loses its data and wakes up an hour ago. Its clock is no help then: it grants tokens that Postgres has long passed, and
// has to be lifted above them.
func TestTheClockSetBackWithTheDataLost(t *testing.T) {
	t.Parallel()
	for name, sealed := range map[string]bool{"sealed": true, "not sealed": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newClockwork(t)
			w := newWorld(t, clientsOf(t, server.Addr()))
			w.forgetful = !sealed
			if sealed {
				w.config.Seal = fencedb.Sealer(w.pool)
			}
			w.survive(func() { server.setBack(time.Hour) })
			for _, resource := range resources {
				token := w.count(`SELECT last_fencing_token FROM fencedb.fences WHERE resource = $1`, resource)
				require.Greater(t, token, time.Now().Add(-time.Minute).UnixMicro(), "far ahead of Redis's clock")
			}
		})
	}
}

// clockwork is a miniredis whose clock runs, and can be set back.
type clockwork struct {
	*miniredis.Miniredis
	back chan time.Duration
}

func newClockwork(t *testing.T) *clockwork {
	c := &clockwork{miniredis.RunT(t), make(chan time.Duration)}
	c.SetTime(time.Now())
	c.ClockTTL(true)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		var behind time.Duration
		for {
			select {
			case <-tick.C:
				c.SetTime(time.Now().Add(-behind))
			case by := <-c.back:
				behind += by
				c.SetTime(time.Now().Add(-behind))
				c.FlushAll()
			case <-stop:
				return
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		<-stopped
	})
	return c
}

// setBack sets the clock back, and then takes the data away.
func (c *clockwork) setBack(by time.Duration) { c.back <- by }

func TestReshardingUnderLoad(t *testing.T) {
	t.Parallel()
	cluster := testenv.Cluster(t)
	w := newWorld(t, func() redis.UniversalClient { return cluster.Client() })
	w.survive(func() {
		for range 2 {
			for _, resource := range resources {
				cluster.MoveSlot(cluster.Slot("{chaos/" + resource + "}"))
			}
			w.awaitCommits(1)
		}
	})
}
