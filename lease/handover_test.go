package lease_test

import (
	"bytes"
	"context"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/lease"
)

// mute is a connection that stays open and says nothing any more once the flag is up, if it has subscribed.
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
		require.NoError(t, try(t, w.issuer(t, cfg), "a").Release(t.Context())) // from now on the script is known
		holder := try(t, w.issuer(t, cfg), "a")
		grants := make(chan grant)
		traced := cfg
		traced.Tracers = []lease.Tracer{newJournal()}
		wait(t.Context(), w.issuer(t, traced), 0, grants)
		synctest.Wait()
		asked := time.Now()
		time.Sleep(3 * time.Second)
		n := w.requests()
		released := time.Now()
		require.NoError(t, holder.Release(t.Context()))
		g := <-grants
		require.NoError(t, g.err)
		require.Equal(t, released, g.at)
		require.EqualValues(t, 1, n.Load(), "the release, and nothing else")
		require.Equal(t, asked.Add(30*time.Second-301*ms), g.lease.ValidUntil(), "trusted from the asking")
		require.Equal(t, 30*time.Second, w.client.PTTL(t.Context(), w.key("a", "owner")).Val(), "held from the release")
		require.Greater(t, g.lease.Token(), holder.Token())
		require.Nil(t, g.lease.Context().Value(inPair(lease.OpAcquire)), "the lease goes on beside the pair of its acquisition, not within")
		requireCurrent(t, g.lease)
		require.Zero(t, w.snapshot(t, "a").waiters)

		time.Sleep(10 * time.Second)
		require.True(t, g.lease.ValidUntil().After(released.Add(30*time.Second)), "renewed by itself")
		require.NoError(t, g.lease.Release(t.Context()))
	})
}

// A waiter whose process has died listens no more. It is woken, in vain, and has half a second: its lease would last a minute.
func TestNothingIsHandedToAWaiterThatDoesNotListen(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: time.Minute})
		holder := try(t, i, "a")
		w.enqueue(t, "a", uuid.NewString()+"@dead", time.Now(), 5*time.Second)
		require.NoError(t, holder.Release(t.Context()))
		require.Zero(t, w.client.Exists(t.Context(), w.key("a", "owner")).Val())
		time.Sleep(500 * ms)
		require.NoError(t, try(t, i, "a").Release(t.Context()))
	})
}
