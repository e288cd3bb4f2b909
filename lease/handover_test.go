package lease_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

// mute is a connection that stays open and says nothing any more once the flag is up, if it has
// subscribed.
type mute struct {
	net.Conn
	flag       *atomic.Bool
	late       bool // made when the flag was up; speaks
	subscribed atomic.Bool
}

func (m *mute) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("subscribe")) {
		m.subscribed.Store(true)
	}
	return m.Conn.Write(b)
}

func (m *mute) Read(b []byte) (int, error) {
	for {
		n, err := m.Conn.Read(b)
		if err != nil || m.late || !m.subscribed.Load() || !m.flag.Load() {
			return n, err
		}
	}
}

// Waiting for the next request of its own would cost the waiter up to five seconds each time.
func TestASubscriptionThatFallsSilentIsReplaced(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		var silent atomic.Bool
		options := w.client.(*redis.Client).Options()
		dial := options.Dialer
		options.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			return &mute{Conn: conn, flag: &silent, late: silent.Load()}, err
		}
		holder := try(t, w.issuer(t, lease.Config{TTL: time.Minute}), "a")
		grants := make(chan grant)
		wait(t.Context(), w.issuer(t, lease.Config{TTL: time.Minute}), 0, grants)
		synctest.Wait()
		silent.Store(true)
		time.Sleep(11 * time.Second)
		require.Len(t, w.channels(t, "a"), 1)
		released := time.Now()
		require.NoError(t, holder.Release(t.Context()))
		g := <-grants
		require.NoError(t, g.err)
		require.Equal(t, released, g.at)
		require.NoError(t, g.lease.Release(t.Context()))
	})
}

// The one who releases grants: the waiter sends nothing, and holds from then on.
func TestAReleaseGrantsToTheFirstWaiter(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		cfg := lease.Config{TTL: 30 * time.Second}
		first := try(t, w.issuer(t, cfg), "a")
		time.Sleep(ms)
		require.NoError(t, first.Extend(t.Context()))
		require.NoError(t, first.Release(t.Context())) // from now on the scripts are known
		holder := try(t, w.issuer(t, cfg), "a")
		grants := make(chan grant)
		traced := cfg
		traced.Tracers = []lease.Tracer{newJournal()}
		wait(t.Context(), w.issuer(t, traced), 0, grants)
		synctest.Wait()
		time.Sleep(3 * time.Second)
		n := w.requests()
		released := time.Now()
		require.NoError(t, holder.Release(t.Context()))
		g := <-grants
		require.NoError(t, g.err)
		require.Equal(t, released, g.at)
		require.EqualValues(t, 1, n.Load(), "the release, and nothing else")
		require.Equal(t, time.Second, w.client.PTTL(t.Context(), w.key("a", "owner")).Val(), "for a second, from the release")
		require.Equal(t, released.Add(30*time.Second-301*ms), g.lease.ValidUntil(), "made full as soon as someone needs to know")
		require.Equal(t, 30*time.Second, w.client.PTTL(t.Context(), w.key("a", "owner")).Val())
		require.EqualValues(t, 2, n.Load())
		require.Greater(t, g.lease.Token(), holder.Token())
		require.Nil(t, g.lease.Context().Value(inPair(lease.OpAcquire)), "the lease goes on beside the pair of its acquisition, not within")
		requireCurrent(t, g.lease)
		require.Zero(t, w.snapshot(t, "a").waiters)

		time.Sleep(10 * time.Second)
		require.True(t, g.lease.ValidUntil().After(released.Add(30*time.Second)), "renewed by itself")
		require.NoError(t, g.lease.Release(t.Context()))
	})
}

// A waiter whose process has died listens no more. Nobody waits for it.
func TestNothingIsHandedToAWaiterThatDoesNotListen(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: time.Minute})
		holder := try(t, i, "a")
		w.enqueue(t, "a", "dead", time.Now(), 5*time.Second)
		require.NoError(t, holder.Release(t.Context()))
		require.Zero(t, w.client.Exists(t.Context(), w.key("a", "owner")).Val())
		require.NoError(t, try(t, i, "a").Release(t.Context()))
		require.EqualValues(t, 1, w.snapshot(t, "a").waiters, "its connection may be about to be made anew")
	})
}

// Work that is done before anyone needs to know how long the lease lasts costs no request for it.
func TestAHandOverForShortWorkIsNotRenewed(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		require.NoError(t, try(t, w.issuer(t, lease.Config{TTL: time.Hour}), "a").Release(t.Context())) // from now on the scripts are known
		for _, cfg := range []lease.Config{{TTL: 30 * time.Second}, {TTL: time.Hour, RenewEvery: lease.Never}} {
			holder := try(t, w.issuer(t, cfg), "a")
			grants := make(chan grant)
			wait(t.Context(), w.issuer(t, cfg), 0, grants)
			synctest.Wait()
			n := w.requests()
			require.NoError(t, holder.Release(t.Context()))
			g := <-grants
			require.NoError(t, g.err)
			time.Sleep(49 * ms)
			require.NoError(t, g.lease.Release(t.Context()))
			require.EqualValues(t, 2, n.Load(), "two releases")
		}
	})
}

// Longer work is renewed beside it, whatever it asks.
func TestAHandOverIsMadeFull(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		for _, cfg := range []lease.Config{
			{TTL: 30 * time.Second}, {TTL: time.Hour, RenewEvery: lease.Never}, {TTL: 300 * ms}} {
			holder := try(t, w.issuer(t, cfg), "a")
			grants := make(chan grant)
			wait(t.Context(), w.issuer(t, cfg), 0, grants)
			synctest.Wait()
			time.Sleep(100 * ms)
			w.faults.Next(2, faulty.LoseReply) // of the release, which is sent again; and of the renewal
			require.NoError(t, holder.Release(t.Context()))
			g := <-grants
			require.NoError(t, g.err)
			time.Sleep(200 * ms)
			require.NoError(t, g.lease.Err())
			require.Greater(t, w.client.PTTL(t.Context(), w.key("a", "owner")).Val(), cfg.TTL/2)
			require.Empty(t, g.lease.Expiring(), "no reason to warn")
			require.NoError(t, g.lease.Release(t.Context()))
		}
	})
}

// Redis hangs behind the hand-over: what was not made full ends within the second, on this side
// before it ends on the other.
func TestAShortLeaseThatWasHandedOverIsMadeFull(t *testing.T) {
	for _, ttl := range []time.Duration{20 * ms, 50 * ms, 100 * ms} {
		t.Run(ttl.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				holder := try(t, w.issuer(t, lease.Config{TTL: ttl}), "a")
				grants := make(chan grant)
				wait(t.Context(), w.issuer(t, lease.Config{TTL: ttl}), 0, grants)
				synctest.Wait()
				require.NoError(t, holder.Release(t.Context()))
				g := <-grants
				require.NoError(t, g.err)
				time.Sleep(time.Second)
				require.NoError(t, g.lease.Err())
				require.NoError(t, g.lease.Release(t.Context()))
			})
		})
	}
}

// Redis refuses writes for a moment, as when a replica reconnects. The first renewal is tried again
// before the second is over for which the lease was handed over.
func TestAHandOverOutlastsARefusal(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		cfg := lease.Config{TTL: 30 * time.Second}
		holder := try(t, w.issuer(t, cfg), "a")
		grants := make(chan grant)
		wait(t.Context(), w.issuer(t, cfg), 0, grants)
		synctest.Wait()
		require.NoError(t, holder.Release(t.Context()))
		g := <-grants
		require.NoError(t, g.err)
		w.memory.SetError("NOREPLICAS Not enough good replicas to write.")
		_ = g.lease.ValidUntil()
		time.Sleep(500 * ms)
		w.memory.SetError("")
		time.Sleep(time.Second)
		require.NoError(t, g.lease.Err())
		require.NoError(t, g.lease.Release(t.Context()))
	})
}

func TestAHandOverThatIsNotMadeFullEnds(t *testing.T) {
	for name, test := range map[string]struct {
		fault faulty.Fault
		end   func(t *testing.T, w *world)
		cause error
	}{
		"redis hangs":  {faulty.Hang, func(*testing.T, *world) {}, lease.ErrUnreachable},
		"redis breaks": {faulty.LoseRequest, func(*testing.T, *world) {}, lease.ErrUnreachable},
		"it is gone": {faulty.None, func(t *testing.T, w *world) {
			require.NoError(t, w.client.Del(t.Context(), w.key("a", "owner")).Err())
		}, lease.ErrLost},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				cfg := lease.Config{TTL: 30 * time.Second, Margin: 300 * ms}
				holder := try(t, w.issuer(t, cfg), "a")
				grants := make(chan grant)
				wait(t.Context(), w.issuer(t, cfg), 0, grants)
				synctest.Wait()
				released := time.Now()
				require.NoError(t, holder.Release(t.Context()))
				g := <-grants
				require.NoError(t, g.err)
				w.faults.Always(test.fault)
				test.end(t, w)
				if test.fault != faulty.None {
					require.Equal(t, released.Add(990*ms), g.lease.ValidUntil())
					require.LessOrEqual(t, time.Since(released), 250*ms)
				}
				<-g.lease.Context().Done()
				require.LessOrEqual(t, time.Since(released), 990*ms)
				require.ErrorIs(t, context.Cause(g.lease.Context()), test.cause)
				w.faults.Always(faulty.None)
			})
		})
	}
}

// It is stopped, or cut off while its connection seems to stand, or its process has died since it
// was told. It costs a second, not its TTL; and half a second where it is called only.
func TestAWaiterThatHearsAndDoesNotComeCostsASecond(t *testing.T) {
	for name, pass := range map[string]func(t *testing.T, i *lease.Issuer, holder *lease.Lease){
		"release": func(t *testing.T, _ *lease.Issuer, holder *lease.Lease) {
			require.NoError(t, holder.Release(t.Context()))
		},
		"revoke": func(t *testing.T, i *lease.Issuer, _ *lease.Lease) {
			_, err := i.Revoke(t.Context(), "a")
			require.NoError(t, err)
		},
	} {
		for _, dead := range []int{0, 5} {
			t.Run(fmt.Sprint(name, " ", dead), func(t *testing.T) {
				inBubble(t, func(t *testing.T, w *world) {
					i := w.issuer(t, lease.Config{TTL: time.Hour})
					holder := try(t, i, "a")
					w.listen(t, "a", "stopped")
					for n := range dead {
						w.enqueue(t, "a", fmt.Sprint("dead", n), time.Now(), 5*time.Second)
					}
					w.enqueue(t, "a", "stopped", time.Now(), 5*time.Second)
					for n := range dead {
						w.enqueue(t, "a", fmt.Sprint("later", n), time.Now(), 5*time.Second)
					}
					time.Sleep(ms)
					grants := make(chan grant)
					wait(t.Context(), w.issuer(t, lease.Config{TTL: time.Hour}), 0, grants)
					synctest.Wait()
					start := time.Now()
					pass(t, i, holder)
					g := <-grants
					require.NoError(t, g.err)
					require.LessOrEqual(t, g.at.Sub(start), time.Second+60*ms)
					requireCurrent(t, g.lease)
					require.NoError(t, g.lease.Release(t.Context()))
				})
			})
		}
	}
}

// The last token is ahead of the clock, by a raise; Redis loses its data; another holds; then news
// from before arrives. Its token is above all that was issued since. It is an answer to an earlier
// request, and so not believed.
func TestOldNewsIsNotBelievedWhateverItsToken(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		cfg := lease.Config{TTL: time.Minute}
		ahead, err := w.issuer(t, cfg).Raise(t.Context(), "a", time.Now().Add(time.Hour).UnixMicro())
		require.NoError(t, err)
		try(t, w.issuer(t, cfg), "a")
		grants := make(chan grant)
		wait(t.Context(), w.issuer(t, cfg), 0, grants)
		synctest.Wait()
		channel := w.channels(t, "a")[0]
		waiter, err := w.client.HGetAll(t.Context(), w.key("a", "alive")).Result()
		require.NoError(t, err)
		require.Len(t, waiter, 1)

		require.NoError(t, w.client.FlushAll(t.Context()).Err())
		other := try(t, w.issuer(t, cfg), "a")
		require.Less(t, other.Token(), ahead)
		time.Sleep(6 * time.Second) // the waiter has asked again
		for call := range waiter {
			require.NoError(t, w.client.Publish(t.Context(), channel, fmt.Sprintf("granted %s 1 %d 60000", call, ahead+2)).Err())
		}
		synctest.Wait()
		select {
		case g := <-grants:
			t.Fatalf("trusted %+v", g)
		default:
		}
		requireCurrent(t, other)
		require.NoError(t, other.Release(t.Context()))
		g := <-grants
		require.NoError(t, g.err)
		require.NoError(t, g.lease.Release(t.Context()))
	})
}

// The time from the call of a release to the return of the next acquisition, with so many waiting
// in four processes. A round trip is given to compare with.
func BenchmarkHandOver(b *testing.B) {
	for _, waiters := range []int{5, 50, 500} {
		b.Run(fmt.Sprint(waiters), func(b *testing.B) {
			client, namespace := testenv.Redis(b), testenv.Namespace(b)
			grants := make(chan *lease.Lease)
			ctx, stop := context.WithCancel(b.Context())
			defer stop()
			var issuers [4]*lease.Issuer // each a process as far as Redis can tell
			for n := range issuers {
				var err error
				issuers[n], err = lease.New(client, lease.Config{TTL: 30 * time.Second, Namespace: namespace})
				require.NoError(b, err)
			}
			for n := range waiters {
				i := issuers[n%len(issuers)]
				go func() {
					for {
						l, err := i.Acquire(ctx, "a")
						if err != nil {
							return
						}
						grants <- l
						<-l.Context().Done()
					}
				}()
			}
			holder := <-grants
			var took []time.Duration
			for b.Loop() {
				<-time.After(time.Millisecond) // the work
				start := time.Now()
				require.NoError(b, holder.Release(b.Context()))
				holder = <-grants
				took = append(took, time.Since(start))
			}
			start := time.Now()
			for range 100 {
				client.Ping(b.Context())
			}
			roundTrip := time.Since(start) / 100
			stop()
			require.NoError(b, holder.Release(context.Background()))
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "median-µs")
			b.ReportMetric(float64(took[len(took)-1].Microseconds()), "longest-µs")
			b.ReportMetric(float64(roundTrip.Microseconds()), "round-trip-µs")
		})
	}
}
