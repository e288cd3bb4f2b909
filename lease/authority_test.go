package lease_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/lease"
)

func TestRevoke(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: 9 * time.Second})
		l := try(t, i, "a")
		grants := make(chan grant)
		wait(t.Context(), w.issuer(t, lease.Config{TTL: 9 * time.Second}), 0, grants)
		synctest.Wait()

		start := time.Now()
		r, err := i.Revoke(t.Context(), "a")
		require.NoError(t, err)
		require.Equal(t, "a", r.Resource())
		require.NotEqual(t, uuid.Nil, r.LeaseID())
		require.Greater(t, r.Token(), l.Token())
		id, token, held := r.Holder()
		require.True(t, held)
		require.Equal(t, l.LeaseID(), id)
		require.Equal(t, l.Token(), token)

		next := <-grants
		require.Equal(t, start, next.at, "whoever waits is woken")
		require.Greater(t, next.lease.Token(), r.Token())

		<-l.Context().Done()
		require.ErrorIs(t, context.Cause(l.Context()), lease.ErrRevoked)
		require.LessOrEqual(t, time.Since(start), 3*time.Second, "within one renewal")
		require.ErrorIs(t, l.Release(t.Context()), lease.ErrRevoked)
		require.NoError(t, next.lease.Release(t.Context()))
	})
}

// Who revokes again, because it is not sure of the first time, does not hide that one from the
// holder.
func TestTheHolderLearnsOfARevocationThatWasRepeated(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: 9 * time.Second})
		l := try(t, i, "a")

		first, err := i.Revoke(t.Context(), "a")
		require.NoError(t, err)
		second, err := i.Revoke(t.Context(), "a")
		require.NoError(t, err)

		require.Greater(t, second.Token(), first.Token())
		<-l.Context().Done()
		require.ErrorIs(t, context.Cause(l.Context()), lease.ErrRevoked)
	})
}

// Each learns it, also where others were revoked since; and Redis keeps no more than a hundred.
func TestEveryHolderLearnsThatItWasRevoked(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: time.Minute, RenewEvery: lease.Never})
		s := w.semaphore(t, 5, lease.Config{TTL: time.Minute, RenewEvery: lease.Never})
		var all lease.Leases
		for range 5 {
			l, permit := try(t, i, "a"), tryPermit(t, s, "a")
			all = append(all, l, permit)
			_, err := i.Revoke(t.Context(), "a")
			require.NoError(t, err)
			held, err := s.Revoke(t.Context(), "a", permit.LeaseID())
			require.NoError(t, err)
			require.True(t, held)
		}
		time.Sleep(ms) // there has to be something to gain
		for _, l := range all {
			require.ErrorIs(t, l.Extend(t.Context()), lease.ErrRevoked)
		}
		for range 100 {
			_, err := i.Revoke(t.Context(), "a")
			require.NoError(t, err)
		}
		require.EqualValues(t, 100, w.client.ZCard(t.Context(), w.key("a", "ended")).Val())
	})
}

func TestARevokedHolderLearnsItAtRelease(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: 9 * time.Second})
		err := i.Do(t.Context(), "a", func(context.Context, *lease.Lease) error {
			_, err := i.Revoke(t.Context(), "a")
			return err
		})
		var done *lease.WorkDoneError
		require.ErrorAs(t, err, &done)
		require.ErrorIs(t, done.Cause, lease.ErrRevoked)
	})
}

func TestRevokeMovesTheFenceOnWhenNobodyHolds(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: 9 * time.Second})
		l := try(t, i, "a")
		require.NoError(t, l.Release(t.Context()))
		r, err := i.Revoke(t.Context(), "a")
		require.NoError(t, err)
		require.Greater(t, r.Token(), l.Token())
		_, _, held := r.Holder()
		require.False(t, held)
		require.Greater(t, try(t, i, "a").Token(), r.Token())
	})
}

func TestARevocationWhoseReplyIsLostHappensOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: 9 * time.Second})
		l := try(t, i, "a")
		w.faults.Next("revoke", "a", 2, faulty.LoseReply)
		r, err := i.TakeOver(t.Context(), "a", l.Token())
		require.NoError(t, err)
		require.Equal(t, itoa(r.Token()), w.snapshot(t, "a").fence)
		id, _, _ := r.Holder()
		require.Equal(t, l.LeaseID(), id)
	})
}

// Its answer was lost, and before it is asked for again, somebody else revokes and a third process
// acquires.
func TestARevocationThatIsRepeatedAfterAnotherEndsNobody(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: 9 * time.Second})
		_, err := i.Revoke(t.Context(), "a") // from now on the script is known
		require.NoError(t, err)
		try(t, i, "a")
		w.faults.Next("revoke", "a", 1, faulty.LoseReply)
		first := make(chan *lease.Revocation)
		go func() {
			r, _ := i.Revoke(context.Background(), "a")
			first <- r
		}()
		synctest.Wait() // it pauses before the second attempt
		second, err := i.Revoke(t.Context(), "a")
		require.NoError(t, err)
		l := try(t, i, "a")
		require.Less(t, (<-first).Token(), second.Token(), "the same answer")
		requireCurrent(t, l)
		require.NoError(t, l.Release(t.Context()))
	})
}

func TestTwoSupervisorsOneTakesOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.issuer(t, lease.Config{TTL: time.Minute})
	dead := try(t, i, "a")
	var won, stale atomic.Int64
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			switch _, err := i.TakeOver(t.Context(), "a", dead.Token()); {
			case err == nil:
				won.Add(1)
			default:
				require.ErrorIs(t, err, lease.ErrStale)
				stale.Add(1)
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 1, won.Load())
	require.EqualValues(t, 19, stale.Load())
}

func TestTakeOverFromALeaseThatRanOut(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: time.Second, RenewEvery: lease.Never})
		dead := try(t, i, "a")
		<-dead.Context().Done()
		time.Sleep(time.Second)
		_, err := i.TakeOver(t.Context(), "a", dead.Token())
		require.NoError(t, err)

		// The same with a fence that was lost: the token given counts.
		dead = try(t, i, "b")
		require.NoError(t, w.client.FlushAll(t.Context()).Err())
		future := dead.Token() + int64(time.Hour/time.Microsecond)
		r, err := i.TakeOver(t.Context(), "b", future)
		require.NoError(t, err)
		require.Greater(t, r.Token(), future)

		// And with a fence that was lost under a newer holder.
		newer := try(t, i, "c")
		require.NoError(t, w.client.Del(t.Context(), w.key("c", "fence")).Err())
		before := w.snapshot(t, "c")
		_, err = i.TakeOver(t.Context(), "c", newer.Token()-1)
		require.ErrorIs(t, err, lease.ErrStale)
		require.Equal(t, before, w.snapshot(t, "c"))
	})
}

func TestRaise(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.issuer(t, lease.Config{TTL: time.Minute})
	l := try(t, i, "a")
	last, err := i.Raise(t.Context(), "a", l.Token()-1)
	require.NoError(t, err)
	require.Equal(t, l.Token(), last, "never down")

	floor := l.Token() + int64(time.Hour/time.Microsecond)
	last, err = i.Raise(t.Context(), "a", floor)
	require.NoError(t, err)
	require.Equal(t, floor, last)
	standing, err := l.Verify(t.Context())
	require.NoError(t, err)
	require.Equal(t, lease.FenceStale, standing)
	require.NoError(t, l.Release(t.Context()))
	require.Equal(t, floor+1, try(t, i, "a").Token())
}

// A second revocation ends nobody, moves the fence on, and leaves the first one's holder what it
// has to find.
func TestARevocationOfNobodyNamesNobody(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: time.Minute, RenewEvery: lease.Never})
		l := try(t, i, "a")
		first, err := i.Revoke(t.Context(), "a")
		require.NoError(t, err)
		id, token, held := first.Holder()
		require.Equal(t, []any{l.LeaseID(), l.Token(), true}, []any{id, token, held})
		for range 2 {
			w.faults.Next("revoke", "a", 1, faulty.LoseReply) // asking again gives the same answer
			again, err := i.Revoke(t.Context(), "a")
			require.NoError(t, err)
			_, _, held = again.Holder()
			require.False(t, held)
			require.Greater(t, again.Token(), first.Token())
		}
		time.Sleep(ms)
		require.ErrorIs(t, l.Extend(t.Context()), lease.ErrRevoked)
	})
}

func TestAuthorityRefusesNonsense(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: 9 * time.Second})
		l := try(t, i, "a")
		for _, token := range []int64{0, -1, 1 << 53} {
			_, err := i.TakeOver(t.Context(), "a", token)
			require.ErrorIs(t, err, lease.ErrInvalid)
			_, err = i.Raise(t.Context(), "a", token)
			require.ErrorIs(t, err, lease.ErrInvalid)
		}
		_, err := i.Revoke(t.Context(), "")
		require.ErrorIs(t, err, lease.ErrInvalid)
		_, err = i.Raise(t.Context(), "", 1)
		require.ErrorIs(t, err, lease.ErrInvalid)
		_, err = i.Inspect(t.Context(), "")
		require.ErrorIs(t, err, lease.ErrInvalid)
		require.NoError(t, l.Err())

		_, err = i.Raise(t.Context(), "b", 1<<53-1)
		require.NoError(t, err)
		_, err = i.Revoke(t.Context(), "b")
		require.ErrorIs(t, err, lease.ErrExhausted)
	})
}

func TestAuthorityAndCorruptKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.issuer(t, lease.Config{TTL: time.Minute, RenewEvery: lease.Never})
	for _, name := range []string{"owner", "fence", "queue", "alive", "ended"} {
		require.NoError(t, w.client.RPush(t.Context(), w.key(name, name), "x").Err())
		before := w.dump(t, name)
		_, err := i.Revoke(t.Context(), name)
		require.ErrorIs(t, err, lease.ErrCorrupt, name)
		_, err = i.Inspect(t.Context(), name)
		require.ErrorIs(t, err, lease.ErrCorrupt, name)
		if name == "fence" {
			_, err = i.Raise(t.Context(), name, 1)
			require.ErrorIs(t, err, lease.ErrCorrupt, name)
		}
		require.Equal(t, before, w.dump(t, name), name)
	}
	for _, value := range []string{"x", "x:1:" + uuid.NewString() + ":2", uuid.NewString() + ":1:" + uuid.NewString() + ":0"} {
		require.NoError(t, w.client.Del(t.Context(), w.key("revoked", "ended")).Err())
		require.NoError(t, w.client.ZAdd(t.Context(), w.key("revoked", "ended"), redis.Z{Score: 2, Member: value}).Err())
		_, err := i.Inspect(t.Context(), "revoked")
		require.ErrorIs(t, err, lease.ErrCorrupt, value)
	}
}

func TestInspect(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: 9 * time.Second, FenceRetention: time.Hour, Holder: "me"})
		found, err := i.Inspect(t.Context(), "a")
		require.NoError(t, err)
		require.Equal(t, lease.Inspection{Resource: "a", RememberedFor: -2 * ms}, found)

		l := try(t, i, "a")
		grants := make(chan grant)
		wait(t.Context(), w.issuer(t, lease.Config{TTL: 9 * time.Second}), 0, grants)
		time.Sleep(time.Second)
		found, err = i.Inspect(t.Context(), "a")
		require.NoError(t, err)
		require.Equal(t, lease.Inspection{
			Resource: "a", Holder: l.LeaseID(), Token: l.Token(), Label: "me", ExpiresIn: 8 * time.Second,
			LastToken: l.Token(), RememberedFor: time.Hour - time.Second, Waiters: 1,
		}, found)

		r, err := i.Revoke(t.Context(), "a")
		require.NoError(t, err)
		next := <-grants
		require.NoError(t, next.lease.Release(t.Context()))
		found, err = i.Inspect(t.Context(), "a")
		require.NoError(t, err)
		require.Equal(t, l.LeaseID(), found.Revoked)
		require.Equal(t, r.Token(), found.RevokedTo)
		require.Zero(t, found.Holder)
		require.Greater(t, found.LastToken, r.Token())
	})
}

func TestAuthorityWithoutRedis(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: 9 * time.Second})
		w.faults.Always(faulty.LoseRequest)
		_, err := i.Revoke(t.Context(), "a")
		require.ErrorIs(t, err, lease.ErrUnreachable)
		_, err = i.Raise(t.Context(), "a", 1)
		require.ErrorIs(t, err, lease.ErrUnreachable)
		_, err = i.Inspect(t.Context(), "a")
		require.ErrorIs(t, err, lease.ErrUnreachable)
		w.faults.Always(faulty.None)
	})
}
