package lease_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

func TestRenewalsAreSentTogether(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.issuer(t, lease.Config{TTL: time.Minute, RenewEvery: 500 * ms})
	ls, err := i.AcquireAll(t.Context(), many(1000))
	require.NoError(t, err)
	n := w.requests()
	until := ls[0].ValidUntil()
	require.Eventually(t, func() bool {
		for _, l := range ls {
			if !l.ValidUntil().After(until.Add(500 * ms)) {
				return false
			}
		}
		return true
	}, patience, 10*ms, "all of them renewed, twice")
	require.LessOrEqual(t, n.Load(), int64(400), "pipelines of many, not two thousand")
	require.NoError(t, i.Close(t.Context()))
}

// One request covers what is due within a sixteenth of the interval, in whatever order it came.
func TestRenewalsStayTogether(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: 9 * time.Second}) // renewed every 3 s
		ls, err := i.AcquireAll(t.Context(), many(100))
		require.NoError(t, err)
		time.Sleep(9 * time.Second)
		n := w.requests()
		time.Sleep(30 * time.Second)
		require.LessOrEqual(t, n.Load(), int64(10*25), "of about sixteen for an interval, ten times")
		require.NoError(t, ls.Release(t.Context()))
	})
}

func TestABatchHasManyOutcomes(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: 9 * time.Second})
		ls, err := i.AcquireAll(t.Context(), []string{"corrupt", "kept", "lost", "revoked", "taken"})
		require.NoError(t, err)
		corrupt, kept, lost, revoked, taken := ls[0], ls[1], ls[2], ls[3], ls[4]
		ctx := t.Context()
		require.NoError(t, w.client.Set(ctx, w.key("corrupt", "owner"), "x", 0).Err())
		require.NoError(t, w.client.Del(ctx, w.key("lost", "owner")).Err())
		_, err = i.Revoke(ctx, "revoked")
		require.NoError(t, err)
		require.NoError(t, w.client.Del(ctx, w.key("taken", "owner")).Err())
		try(t, i, "taken")

		time.Sleep(3 * time.Second)
		require.NoError(t, corrupt.Err(), "not for the moment")
		require.NoError(t, kept.Err())
		require.ErrorIs(t, lost.Err(), lease.ErrLost)
		require.ErrorIs(t, revoked.Err(), lease.ErrRevoked)
		require.ErrorIs(t, taken.Err(), lease.ErrLost)

		w.faults.Next("extend", "kept", 1, faulty.LoseReply)
		time.Sleep(9 * time.Second)
		require.ErrorIs(t, corrupt.Err(), lease.ErrExpired)
		require.NoError(t, kept.Err())
		require.NoError(t, kept.Release(ctx))
	})
}

func TestABatchSurvivesAScriptFlush(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	w := worldOn(t, server.Client())
	i := w.issuer(t, lease.Config{TTL: time.Minute, RenewEvery: 200 * ms})
	ls, err := i.AcquireAll(t.Context(), many(100))
	require.NoError(t, err)
	before := ls[99].ValidUntil()
	require.NoError(t, w.client.ScriptFlush(t.Context()).Err())
	require.Eventually(t, func() bool { return ls[99].ValidUntil().After(before) }, patience, ms)
	for _, l := range ls {
		require.NoError(t, l.Err())
	}
	require.NoError(t, ls.Release(t.Context()))
}

// The time of a renewal may be over before it is sent, because the process was stopped at that
// moment. One nanosecond stands for that.
func TestARenewalThatWasNotSentInTimeIsTriedAgain(t *testing.T) {
	t.Parallel()
	w, j := newWorld(t), newJournal()
	l := try(t, w.issuer(t, lease.Config{TTL: 3 * time.Second, RenewEvery: 300 * ms, RenewTimeout: 1, Tracers: []lease.Tracer{j}}), "a")
	<-l.Context().Done()
	require.ErrorIs(t, context.Cause(l.Context()), lease.ErrUnreachable)
	renewals := j.of(lease.OpExtend)
	require.Greater(t, len(renewals), 1)
	require.Equal(t, "unreachable", renewals[0].Outcome())
}

func TestABatchOnACluster(t *testing.T) {
	t.Parallel()
	w := &world{client: testenv.Cluster(t).Client(), namespace: "cluster"}
	i := w.issuer(t, lease.Config{TTL: 9 * time.Second})
	ls, err := i.AcquireAll(t.Context(), many(50))
	require.NoError(t, err)
	before := ls[49].ValidUntil()
	require.Eventually(t, func() bool { return ls[49].ValidUntil().After(before.Add(time.Second)) }, patience, 10*ms)
	for _, l := range ls {
		require.NoError(t, l.Err())
	}
	require.NoError(t, ls.Release(t.Context()))
}

func TestEarlyWarning(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: 10 * time.Second, Margin: time.Second,
			WarnBefore: 4 * time.Second, RenewEvery: lease.Never})
		start := time.Now()
		l := try(t, i, "a")
		require.Equal(t, start.Add(9*time.Second), <-l.Expiring())
		require.Equal(t, start.Add(5*time.Second), time.Now())
		require.NoError(t, l.Err())

		// A renewal makes it void, and another follows. One that nobody fetched is replaced.
		require.NoError(t, l.Extend(t.Context()))
		time.Sleep(6 * time.Second)
		require.NoError(t, l.Extend(t.Context()))
		last := l.ValidUntil()
		time.Sleep(6 * time.Second)
		require.Equal(t, last, <-l.Expiring())
		requireEnd(t, l, last, lease.ErrExpired)

		select {
		case <-l.Expiring():
			t.Fatal("no warning of what is over")
		default:
		}
	})
}

func TestNoWarningWhileRenewalsSucceed(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		l := try(t, w.issuer(t, lease.Config{TTL: 9 * time.Second}), "a")
		select {
		case <-l.Expiring():
			t.Fatal("warned")
		case <-time.After(time.Minute):
		}
		w.faults.Always(faulty.LoseRequest)
		until := <-l.Expiring()
		require.True(t, time.Now().Before(until))
		require.NoError(t, context.Cause(l.Context()))
		requireEnd(t, l, until, lease.ErrUnreachable)
		w.faults.Always(faulty.None)
	})
}

// A hook, a dialer or a credentials provider that stands still keeps its own request back, and not
// the next renewals.
func TestARenewalThatTheClientKeepsBackIsSentAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		options := *w.client.(*redis.Client).Options()
		options.ContextTimeoutEnabled = true
		client := redis.NewClient(&options)
		defer client.Close()
		i, err := lease.New(client, lease.Config{TTL: 3 * time.Second})
		require.NoError(t, err)
		ls, err := i.AcquireAll(t.Context(), many(20))
		require.NoError(t, err)
		client.AddHook(&stuck{hang: func() { time.Sleep(10 * time.Second) }})
		time.Sleep(10 * time.Second)
		for _, l := range ls {
			require.NoError(t, l.Err())
		}
		require.NoError(t, ls.Release(t.Context()))
	})
}
