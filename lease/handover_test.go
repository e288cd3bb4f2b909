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

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/protocol"
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

// A process that cannot listen at first listens as soon as it can.
func TestASubscriptionWhoseConnectionFailsIsMadeAgain(t *testing.T) {
	for failures := range int32(4) {
		t.Run(fmt.Sprint(failures, " failures"), func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				var fail atomic.Int32
				options := w.client.(*redis.Client).Options()
				options.OnConnect = func(context.Context, *redis.Conn) error {
					if fail.Add(-1) >= 0 {
						return faulty.ErrBroken
					}
					return nil
				}
				i := w.issuer(t, lease.Config{TTL: time.Minute})
				holder := try(t, i, "a") // over the connection that the requests have
				fail.Store(failures)
				grants := make(chan grant)
				wait(t.Context(), i, 0, grants)
				time.Sleep(time.Second)
				require.Negative(t, fail.Load(), "it has connected")
				released := time.Now()
				require.NoError(t, holder.Release(t.Context()))
				g := <-grants
				require.NoError(t, g.err)
				require.Equal(t, released, g.at)
				require.NoError(t, g.lease.Release(t.Context()))
			})
		})
	}
}

// The release calls, the waiter asks, and has a full lease from then on. To read until when it may
// be trusted sends nothing, so it cannot hang either.
func TestAReleaseCallsTheFirstWaiter(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		cfg := lease.Config{TTL: 30 * time.Second}
		require.NoError(t, try(t, w.issuer(t, cfg), "a").Release(t.Context())) // from now on the scripts are known
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
		require.EqualValues(t, 2, n.Load(), "the release, and the waiter's request")
		w.faults.Always(faulty.Hang)
		require.Equal(t, released.Add(30*time.Second-301*ms), g.lease.ValidUntil())
		require.Equal(t, released, time.Now(), "to read it takes no time")
		w.faults.Always(faulty.None)
		require.Equal(t, 30*time.Second, w.client.PTTL(t.Context(), w.key("a", "owner")).Val())
		require.Greater(t, g.lease.Token(), holder.Token())
		require.Nil(t, g.lease.Context().Value(inPair(lease.OpAcquire)), "the lease goes on beside the pair of its acquisition, not within")
		requireCurrent(t, g.lease)
		require.Zero(t, w.snapshot(t, "a").waiters)

		time.Sleep(11 * time.Second)
		require.True(t, g.lease.ValidUntil().After(released.Add(30*time.Second)), "renewed by itself")
		require.NoError(t, g.lease.Release(t.Context()))
	})
}

// far is a connection to a server that is a round trip away.
type far struct {
	net.Conn
	roundTrip time.Duration
}

func (f far) Read(b []byte) (int, error) {
	n, err := f.Conn.Read(b)
	time.Sleep(f.roundTrip)
	return n, err
}

// Each step of a hand-over takes a round trip: a connection that is made, a script that is learnt,
// a call. The lease lives all the same.
func TestAHandOverFarAway(t *testing.T) {
	for _, roundTrip := range []time.Duration{300 * ms, 600 * ms} {
		t.Run(roundTrip.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				options := w.client.(*redis.Client).Options()
				dial := options.Dialer
				options.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
					conn, err := dial(ctx, network, addr)
					return far{conn, roundTrip}, err
				}
				cfg := lease.Config{TTL: 10 * time.Second}
				holder := try(t, w.issuer(t, cfg), "a")
				grants := make(chan grant)
				wait(t.Context(), w.issuer(t, cfg), 0, grants)
				time.Sleep(10 * time.Second)
				called := time.Now()
				require.NoError(t, holder.Release(t.Context()))
				g := <-grants
				require.NoError(t, g.err)
				require.LessOrEqual(t, g.at.Sub(called), 8*roundTrip)
				time.Sleep(30 * time.Second)
				require.NoError(t, g.lease.Err())
				requireCurrent(t, g.lease)
				require.NoError(t, g.lease.Release(t.Context()))
			})
		})
	}
}

// A waiter whose process has died listens no more. Nobody waits for it.
func TestAWaiterThatDoesNotListenIsNotCalled(t *testing.T) {
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

// It is stopped, or cut off while its connection seems to stand. However many wait in it, it costs
// half a second, and dead ones beside it nothing.
func TestAProcessThatHearsAndDoesNotComeCostsHalfASecond(t *testing.T) {
	type holding struct {
		key   func(w *world, resource, name string) string
		begin func(t *testing.T, w *world) (free func(), acquire func() (*lease.Lease, error))
	}
	leases := func(free func(t *testing.T, i *lease.Issuer, l *lease.Lease)) holding {
		return holding{(*world).key, func(t *testing.T, w *world) (func(), func() (*lease.Lease, error)) {
			i := w.issuer(t, lease.Config{TTL: time.Hour})
			l := try(t, i, "a")
			return func() { free(t, i, l) }, func() (*lease.Lease, error) {
				return w.issuer(t, lease.Config{TTL: time.Hour}).Acquire(t.Context(), "a")
			}
		}}
	}
	permits := func(free func(t *testing.T, s *lease.Semaphore, l *lease.Lease)) holding {
		return holding{(*world).permitKey, func(t *testing.T, w *world) (func(), func() (*lease.Lease, error)) {
			s := w.semaphore(t, 1, lease.Config{TTL: time.Hour})
			l := tryPermit(t, s, "a")
			return func() { free(t, s, l) }, func() (*lease.Lease, error) {
				return w.semaphore(t, 1, lease.Config{TTL: time.Hour}).Acquire(t.Context(), "a")
			}
		}}
	}
	for name, h := range map[string]holding{
		"release": leases(func(t *testing.T, _ *lease.Issuer, l *lease.Lease) { require.NoError(t, l.Release(t.Context())) }),
		"revoke": leases(func(t *testing.T, i *lease.Issuer, _ *lease.Lease) {
			_, err := i.Revoke(t.Context(), "a")
			require.NoError(t, err)
		}),
		"permit, release": permits(func(t *testing.T, _ *lease.Semaphore, l *lease.Lease) { require.NoError(t, l.Release(t.Context())) }),
		"permit, revoke": permits(func(t *testing.T, s *lease.Semaphore, l *lease.Lease) {
			_, err := s.Revoke(t.Context(), "a", l.LeaseID())
			require.NoError(t, err)
		}),
	} {
		for _, waiters := range []int{1, 20, 200} {
			t.Run(fmt.Sprintf("%s, %d waiters", name, waiters), func(t *testing.T) {
				inBubble(t, func(t *testing.T, w *world) {
					free, acquire := h.begin(t, w)
					stopped := w.client.Subscribe(t.Context(), h.key(w, "a", "wake")+":stopped")
					_, err := stopped.Receive(t.Context())
					require.NoError(t, err)
					t.Cleanup(func() { _ = stopped.Close() })
					enqueue := func(n int, listener string) {
						call, now := fmt.Sprint(listener, n), time.Now()
						require.NoError(t, w.client.ZAdd(t.Context(), h.key(w, "a", "queue"), redis.Z{Score: float64(now.UnixMicro()), Member: call}).Err())
						require.NoError(t, w.client.HSet(t.Context(), h.key(w, "a", "alive"), call,
							fmt.Sprintf("%d:%d:0:0@%s", now.Add(5*time.Second).UnixMilli(), now.Add(-time.Second).UnixMilli(), listener)).Err())
					}
					for n := range waiters {
						enqueue(n, "dead")
						enqueue(n, "stopped")
					}
					time.Sleep(ms)
					grants := make(chan grant, 1)
					go func() {
						l, err := acquire()
						grants <- grant{0, l, err, time.Now()}
					}()
					synctest.Wait()
					start := time.Now()
					free()
					g := <-grants
					require.NoError(t, g.err)
					require.LessOrEqual(t, g.at.Sub(start), 600*ms)
					require.NoError(t, g.lease.Release(t.Context()))
				})
			})
		}
	}
}

// A waiter whose turn lapsed keeps its place. It has no right of way any more: one that is too far
// away to ask in time would let the resource stand idle at each of its turns.
func TestAWaiterWhoseTurnLapsedKeepsItsPlace(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		cfg := lease.Config{TTL: time.Minute}
		i := w.issuer(t, cfg)
		w.listen(t, "a", "slow")
		id := uuid.NewString()
		ask := func() []string {
			words, err := w.client.Eval(t.Context(), protocol.LeaseHolding.Acquire.Source,
				[]string{w.key("a", "owner"), w.key("a", "fence"), w.key("a", "queue"), w.key("a", "alive")},
				id, "slow", 60000, 60000, "wait", "PUBLISH", "slow").StringSlice()
			require.NoError(t, err)
			return words
		}
		holder := try(t, i, "a")
		require.Equal(t, "held", ask()[0])
		time.Sleep(2 * time.Second)
		require.NoError(t, holder.Release(t.Context()))
		_, err := i.Acquire(t.Context(), "a", lease.NoWait())
		require.ErrorIs(t, err, lease.ErrHeld, "it has right of way")
		time.Sleep(501 * ms)
		holder = try(t, i, "a")
		require.NoError(t, holder.Release(t.Context()))
		holder = try(t, i, "a")
		require.EqualValues(t, 1, w.snapshot(t, "a").waiters, "it keeps its place")
		for range 10 {
			require.Equal(t, "held", ask()[0])
			time.Sleep(time.Second)
			require.NoError(t, holder.Release(t.Context()), "it is called, and comes too late")
			holder = try(t, i, "a")
			require.EqualValues(t, 1, w.snapshot(t, "a").waiters, "it keeps its place")
		}
		require.NoError(t, holder.Release(t.Context()))
		require.Equal(t, "granted", ask()[0], "what is free is granted to it")

		require.NoError(t, w.client.Del(t.Context(), w.key("a", "owner")).Err())
		holder = try(t, i, "a")
		require.Equal(t, "held", ask()[0])
		time.Sleep(2 * time.Second)
		require.NoError(t, holder.Release(t.Context()))
		_, err = i.Acquire(t.Context(), "a", lease.NoWait())
		require.ErrorIs(t, err, lease.ErrHeld, "it came, and has right of way again")
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
