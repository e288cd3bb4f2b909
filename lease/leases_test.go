package lease_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

func names(ls lease.Leases) (names []string) {
	for _, l := range ls {
		names = append(names, l.Resource())
	}
	return names
}

func TestAcquireAll(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: 9 * time.Second})
		n := w.requests()
		w.faults.Next("acquire", "a", 1, faulty.LoseReply)
		ls, err := i.AcquireAll(t.Context(), []string{"c", "a", "b", "a"})
		require.NoError(t, err)
		require.Equal(t, []string{"a", "b", "c"}, names(ls), "in order, once each")
		require.Zero(t, n.Load())
		for _, l := range ls {
			require.Equal(t, ls[0].LeaseID(), l.LeaseID())
			standing, err := l.Verify(t.Context())
			require.NoError(t, err)
			require.Equal(t, lease.Current, standing)
		}
		time.Sleep(time.Minute) // renewed
		require.NoError(t, ls.Release(t.Context()))
		for _, l := range ls {
			try(t, i, l.Resource())
		}
	})
}

func TestAcquireAllIsAllOrNone(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: 9 * time.Second})
		holder := try(t, i, "b")
		_, err := i.AcquireAll(t.Context(), []string{"a", "b", "c"}, lease.NoWait())
		var held *lease.HeldError
		require.ErrorAs(t, err, &held)
		require.Equal(t, "b", held.Resource)
		require.Zero(t, w.client.Exists(t.Context(), w.key("a", "owner"), w.key("a", "fence"), w.key("c", "owner"), w.key("c", "fence")).Val())
		require.NoError(t, holder.Release(t.Context()))

		require.NoError(t, w.client.Set(t.Context(), w.key("c", "owner"), "x", 0).Err())
		_, err = i.AcquireAll(t.Context(), []string{"a", "b", "c"}, lease.NoWait())
		require.ErrorIs(t, err, lease.ErrCorrupt)
		require.Zero(t, w.client.Exists(t.Context(), w.key("a", "owner"), w.key("a", "fence")).Val())
	})
}

func TestAcquireAllWaits(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: 9 * time.Second})
		b := try(t, i, "b")
		got := make(chan lease.Leases)
		go func() {
			ls, err := i.AcquireAll(t.Context(), []string{"a", "b", "c"})
			if err != nil {
				t.Error(err)
			}
			got <- ls
		}()
		time.Sleep(20 * time.Second)
		_, err := i.Acquire(t.Context(), "a", lease.NoWait())
		require.ErrorIs(t, err, lease.ErrHeld, "it holds what comes before")
		require.NoError(t, b.Release(t.Context()))
		require.NoError(t, (<-got).Release(t.Context()))

		// In vain: nothing is left behind.
		b = try(t, i, "b")
		_, err = i.AcquireAll(t.Context(), []string{"a", "b", "c"}, lease.WaitAtMost(30*time.Second))
		require.ErrorIs(t, err, lease.ErrHeld)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		for _, resource := range []string{"a", "c"} {
			require.Empty(t, w.snapshot(t, resource).owner)
		}
		require.Zero(t, w.snapshot(t, "b").waiters)
		require.NoError(t, b.Release(t.Context()))
	})
}

// Two that name the same resources in opposite orders would otherwise get one each, and wait for
// one another.
func TestAcquireAllTakesOneOrder(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: 9 * time.Second})
		a, b := try(t, i, "a"), try(t, i, "b")
		got := make(chan lease.Leases)
		for _, order := range [][]string{{"a", "b"}, {"b", "a"}} {
			go func() {
				ls, err := i.AcquireAll(t.Context(), order, lease.WaitAtMost(time.Hour))
				if err != nil {
					t.Error(err)
				}
				got <- ls
			}()
			synctest.Wait()
		}
		require.NoError(t, b.Release(t.Context()))
		synctest.Wait() // whoever waits for b first has it now
		require.NoError(t, a.Release(t.Context()))
		require.NoError(t, (<-got).Release(t.Context()))
		require.NoError(t, (<-got).Release(t.Context()))
	})
}

// By then it holds itself what stood in the way at first.
func TestAcquireAllNamesWhatIsHeldAtTheEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a := try(t, w.issuer(t, lease.Config{TTL: time.Minute, Holder: "X"}), "a")
		try(t, w.issuer(t, lease.Config{TTL: time.Minute, Holder: "Y"}), "b")
		time.AfterFunc(time.Second, func() { _ = a.Release(context.Background()) })
		_, err := w.issuer(t, lease.Config{TTL: time.Minute}).AcquireAll(t.Context(), []string{"a", "b"}, lease.WaitAtMost(5*time.Second))
		var held *lease.HeldError
		require.ErrorAs(t, err, &held)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, "b", held.Resource)
		require.Equal(t, "Y", held.Holder)
	})
}

func TestAcquireAllLosesOneWhileWaiting(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: 9 * time.Second})
		b := try(t, i, "b")
		failed := make(chan error)
		go func() {
			_, err := i.AcquireAll(t.Context(), []string{"a", "b"})
			failed <- err
		}()
		synctest.Wait()
		require.NoError(t, w.client.Del(t.Context(), w.key("a", "owner")).Err())
		time.Sleep(5 * time.Second)
		require.NoError(t, b.Release(t.Context()))
		require.ErrorIs(t, <-failed, lease.ErrLost)
		require.Empty(t, w.snapshot(t, "b").owner)
	})
}

func TestAcquireAllSeals(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		sealed := 0
		i := w.issuer(t, lease.Config{TTL: 9 * time.Second, Seal: func(_ context.Context, grants ...lease.Grant) error {
			sealed++
			require.Len(t, grants, 3)
			return errWork
		}})
		_, err := i.AcquireAll(t.Context(), []string{"a", "b", "c"})
		require.ErrorIs(t, err, errWork)
		require.Equal(t, 1, sealed, "all together")
		for _, resource := range []string{"a", "b", "c"} {
			require.Empty(t, w.snapshot(t, resource).owner)
		}
	})
}

func TestDoAll(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: 9 * time.Second})
		resources := []string{"a", "b"}
		require.NoError(t, i.DoAll(t.Context(), resources, func(ctx context.Context, ls lease.Leases) error {
			require.Equal(t, resources, names(ls))
			return ctx.Err()
		}))
		err := i.DoAll(t.Context(), resources, func(ctx context.Context, _ lease.Leases) error {
			w.client.Del(t.Context(), w.key("b", "owner"))
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), lease.ErrLost, "one is enough")
			return errWork
		})
		require.ErrorIs(t, err, errWork)
		require.ErrorIs(t, err, lease.ErrLost)
		try(t, i, "a")
		err = i.DoAll(t.Context(), nil, func(context.Context, lease.Leases) error { return errWork })
		require.ErrorIs(t, err, lease.ErrInvalid)
	})
}

func TestAcquireAllRefuses(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: 9 * time.Second})
		for _, resources := range [][]string{nil, {}, {"a", ""}, {"a", "\x00"}, many(1001)} {
			_, err := i.AcquireAll(t.Context(), resources, lease.NoWait())
			require.ErrorIs(t, err, lease.ErrInvalid)
			_, err = i.AcquireAll(t.Context(), resources)
			require.ErrorIs(t, err, lease.ErrInvalid)
		}
		w.faults.Always(faulty.LoseRequest)
		_, err := i.AcquireAll(t.Context(), []string{"a", "b"})
		require.ErrorIs(t, err, lease.ErrUnreachable)
		w.faults.Always(faulty.None)
	})
}

func many(n int) []string {
	resources := make([]string, n)
	for i := range resources {
		resources[i] = fmt.Sprint("r", i)
	}
	return resources
}

func TestAThousandAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.issuer(t, lease.Config{TTL: time.Minute})
	ls, err := i.AcquireAll(t.Context(), many(1000))
	require.NoError(t, err)
	require.Len(t, ls, 1000)
	_, err = i.AcquireAll(t.Context(), []string{"r999", "another"}, lease.NoWait())
	require.ErrorIs(t, err, lease.ErrHeld)
	require.NoError(t, ls.Release(t.Context()))
	ls, err = i.AcquireAll(t.Context(), many(1000), lease.NoWait())
	require.NoError(t, err)
	require.NoError(t, ls.Release(t.Context()))
}

// Everyone wants two of five, in any order: nobody waits for ever, nobody meets.
func TestAcquireAllDoesNotDeadlock(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	requireNoDeadlock(t, func() *lease.Issuer { return w.issuer(t, lease.Config{TTL: time.Minute}) })
}

func TestAcquireAllOnACluster(t *testing.T) {
	t.Parallel()
	w := &world{client: testenv.Cluster(t).Client(), namespace: "cluster"}
	i := w.issuer(t, lease.Config{TTL: time.Minute})
	ls, err := i.AcquireAll(t.Context(), many(20))
	require.NoError(t, err)
	_, err = i.AcquireAll(t.Context(), []string{"another", "r7"}, lease.NoWait())
	require.ErrorIs(t, err, lease.ErrHeld)
	require.Eventually(t, func() bool { return w.snapshot(t, "another").owner == "" }, patience, ms, "undone")
	require.NoError(t, ls.Release(t.Context()))
	requireNoDeadlock(t, func() *lease.Issuer { return w.issuer(t, lease.Config{TTL: time.Minute}) })
}

func requireNoDeadlock(t *testing.T, issuer func() *lease.Issuer) {
	t.Helper()
	var held [5]sync.Mutex
	var all sync.WaitGroup
	for n := range 10 {
		i := issuer()
		all.Go(func() {
			for k := range 10 {
				a, b := (n+k)%5, (n+k+1+n%4)%5
				err := i.DoAll(t.Context(), []string{fmt.Sprint("x", a), fmt.Sprint("x", b)}, func(context.Context, lease.Leases) error {
					for _, x := range []int{a, b} {
						if !held[x].TryLock() {
							t.Errorf("two holders of %d", x)
						}
					}
					held[a].Unlock()
					held[b].Unlock()
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

func TestBoundWorkEndsWithWhatEndsFirst(t *testing.T) {
	for name, test := range map[string]struct {
		end  func(t *testing.T, caller context.CancelCauseFunc, ls lease.Leases)
		want error
	}{
		"the caller": {func(_ *testing.T, caller context.CancelCauseFunc, _ lease.Leases) { caller(errWork) }, errWork},
		"the first lease": {func(t *testing.T, _ context.CancelCauseFunc, ls lease.Leases) {
			require.NoError(t, ls[0].Release(t.Context()))
		}, lease.ErrReleased},
		"the last lease": {func(t *testing.T, _ context.CancelCauseFunc, ls lease.Leases) {
			require.NoError(t, ls[1].Release(t.Context()))
		}, lease.ErrReleased},
		"time": {func(*testing.T, context.CancelCauseFunc, lease.Leases) { time.Sleep(10 * time.Second) }, lease.ErrExpired},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				ctx, caller := context.WithCancelCause(context.WithValue(t.Context(), key{}, "ann"))
				defer caller(nil)
				ls, err := w.issuer(t, lease.Config{TTL: 10 * time.Second, RenewEvery: lease.Never}).AcquireAll(ctx, []string{"a", "b"})
				require.NoError(t, err)
				work, stop := ls.Bind(ctx)
				defer stop()
				require.NoError(t, work.Err())
				require.Equal(t, "ann", work.Value(key{}))
				test.end(t, caller, ls)
				synctest.Wait()
				require.ErrorIs(t, context.Cause(work), test.want)
				_ = ls.Release(t.Context())
			})
		})
	}
}

func TestUnbindingEndsNothingElse(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		l := try(t, w.issuer(t, lease.Config{TTL: 10 * time.Second}), "a")
		work, stop := l.Bind(ctx)
		stop()
		require.ErrorIs(t, context.Cause(work), context.Canceled)
		require.NoError(t, ctx.Err())
		require.NoError(t, l.Err())
		require.NoError(t, l.Release(t.Context()))

		work, stop = l.Bind(ctx)
		defer stop()
		require.ErrorIs(t, context.Cause(work), lease.ErrReleased, "over from the start")
	})
}
