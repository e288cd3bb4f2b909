package lease_test

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/lease"
)

// passedError is what a data store says whose fence is ahead.
type passedError struct {
	resource string
	last     int64
}

func (e *passedError) Error() string                { return fmt.Sprint(e.resource, " has seen ", e.last) }
func (e *passedError) LeaseLost() bool              { return true }
func (e *passedError) FencePassed() (string, int64) { return e.resource, e.last }

// fences are a data store that seals.
type fences map[string]int64

func (f fences) seal(_ context.Context, grants ...lease.Grant) error {
	for _, g := range grants {
		if g.Token() <= f[g.Resource()] {
			return &passedError{g.Resource(), f[g.Resource()]}
		}
	}
	for _, g := range grants {
		f[g.Resource()] = g.Token()
	}
	return nil
}

// One fail-over went to a server that had missed a grant, whose answer was lost. There others came
// and went. A later fail-over went back to the first server, which has the grant and knows nothing
// of the others, and answers the same request with the same token. That token is no longer above
// theirs. Whoever seals gets one that is.
func TestAGrantOfAServerThatCameBackIsSealedAnew(t *testing.T) {
	for name, resources := range map[string][]string{"Acquire": {"a"}, "AcquireAll": {"a", "b"}} {
		for _, sealing := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, sealing %v", name, sealing), func(t *testing.T) {
				inBubble(t, func(t *testing.T, w *world) {
					f := fences{}
					other := redis.NewClient(w.client.(*redis.Client).Options()) // without faults
					defer other.Close()
					others := (&world{client: other, namespace: w.namespace}).issuer(t,
						lease.Config{TTL: 9 * time.Second, Seal: f.seal})
					theirs := map[string]int64{}
					requests := 0
					w.faults.Set(func(r faulty.Request) faulty.Fault {
						if !r.Is("acquire", "a") {
							return faulty.None
						}
						switch requests++; requests {
						case 1:
							return faulty.LoseReply
						case 2:
							time.Sleep(time.Millisecond) // so that their tokens are above
							granted := map[string]string{}
							for _, key := range w.memory.Keys() {
								granted[key], _ = w.memory.Get(key)
							}
							w.memory.FlushDB()
							ls, err := others.AcquireAll(t.Context(), resources)
							require.NoError(t, err)
							require.NoError(t, ls.Release(t.Context()))
							maps.Copy(theirs, f)
							w.memory.FlushDB()
							for key, value := range granted {
								require.NoError(t, w.memory.Set(key, value))
								w.memory.SetTTL(key, 9*time.Second)
							}
						}
						return faulty.None
					})
					cfg := lease.Config{TTL: 9 * time.Second}
					if sealing {
						cfg.Seal = f.seal
					}
					ls, err := w.issuer(t, cfg).AcquireAll(t.Context(), resources)
					require.NoError(t, err)
					require.Len(t, theirs, len(resources))
					for _, l := range ls {
						require.Equal(t, sealing, l.Token() > theirs[l.Resource()], l.Resource())
					}
					require.NoError(t, ls.Release(t.Context()))
				})
			})
		}
	}
}

// Redis has gone back, and the fences are ahead. Whoever acquires gets leases that are above them,
// and learns nothing of it.
func TestAnAcquisitionHealsWhenItsTokenIsBehindTheFence(t *testing.T) {
	for name, acquire := range map[string]func(context.Context, *lease.Issuer) error{
		"Acquire NoWait": func(ctx context.Context, i *lease.Issuer) error {
			l, err := i.Acquire(ctx, "a", lease.NoWait())
			return release(ctx, l, err)
		},
		"Acquire": func(ctx context.Context, i *lease.Issuer) error {
			l, err := i.Acquire(ctx, "a")
			return release(ctx, l, err)
		},
		"AcquireAll": func(ctx context.Context, i *lease.Issuer) error {
			ls, err := i.AcquireAll(ctx, []string{"a", "b", "c"})
			if err != nil {
				return err
			}
			return ls.Release(ctx)
		},
		"Do": func(ctx context.Context, i *lease.Issuer) error {
			return i.Do(ctx, "a", func(context.Context, *lease.Lease) error { return nil })
		},
		"DoAll": func(ctx context.Context, i *lease.Issuer) error {
			return i.DoAll(ctx, []string{"a", "b", "c"}, func(context.Context, lease.Leases) error { return nil })
		},
		"Lead": func(ctx context.Context, i *lease.Issuer) error {
			ctx, cancel := context.WithCancelCause(ctx)
			err := i.Lead(ctx, "a", func(context.Context, *lease.Lease) error { cancel(errWork); return nil })
			if err == errWork {
				return nil
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				ahead := time.Now().Add(time.Hour).UnixMicro()
				f := fences{"a": ahead, "b": ahead, "c": ahead}
				require.NoError(t, acquire(t.Context(), w.issuer(t, lease.Config{TTL: 9 * time.Second, Seal: f.seal})))
				require.Greater(t, f["a"], ahead)
				require.Empty(t, w.client.Keys(t.Context(), "*owner").Val(), "nothing is left")
			})
		})
	}
}

// It begins anew, so somebody else may come first. Both get leases above the fence in the end.
func TestAnAcquisitionThatHealsLetsOthersGoFirst(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		ahead := time.Now().Add(time.Hour).UnixMicro()
		f, first := fences{"a": ahead}, make(chan bool)
		once := sync.OnceFunc(func() { close(first); time.Sleep(time.Second) })
		seal := func(ctx context.Context, grants ...lease.Grant) error { once(); return f.seal(ctx, grants...) }
		healed := make(chan error)
		go func() {
			l, err := w.issuer(t, lease.Config{TTL: 9 * time.Second, Seal: seal}).Acquire(t.Context(), "a")
			healed <- release(t.Context(), l, err)
		}()
		<-first
		l, err := w.issuer(t, lease.Config{TTL: 9 * time.Second, Seal: f.seal}).Acquire(t.Context(), "a")
		require.NoError(t, err)
		require.Greater(t, l.Token(), ahead)
		require.NoError(t, l.Release(t.Context()))
		require.NoError(t, <-healed)
		require.Empty(t, w.client.Keys(t.Context(), "*owner").Val())
	})
}

// Whatever the data store says, the last token is raised once for each resource.
func TestHealingEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		for name, c := range map[string]struct {
			passed func(grants []lease.Grant) *passedError
			asked  int
			want   string
		}{
			"it never has enough":   {func(gs []lease.Grant) *passedError { return &passedError{gs[1].Resource(), gs[1].Token() + 1} }, 3, "has seen"},
			"another resource":      {func(gs []lease.Grant) *passedError { return &passedError{"c", gs[0].Token() + 1} }, 1, "c has seen"},
			"what no token is":      {func([]lease.Grant) *passedError { return &passedError{"a", 0} }, 1, "the last token was not raised"},
			"the last token of all": {func([]lease.Grant) *passedError { return &passedError{"a", 1<<53 - 1} }, 1, "tokens exhausted"},
		} {
			for _, opts := range [][]lease.Option{nil, {lease.NoWait()}} {
				asked := 0
				seal := func(_ context.Context, gs ...lease.Grant) error {
					if asked++; asked > 5 {
						return nil
					}
					return c.passed(gs)
				}
				i := w.issuer(t, lease.Config{TTL: 9 * time.Second, Seal: seal})
				_, err := i.AcquireAll(t.Context(), []string{"a", "b"}, opts...)
				require.ErrorContains(t, err, c.want, name)
				require.Equal(t, c.asked, asked, name)
				require.NoError(t, i.Close(t.Context()))
				require.NoError(t, w.client.FlushAll(t.Context()).Err())
			}
		}
	})
}

// A process that does not reach Redis any more gives up, and says what the data store has said.
func TestAHealingWithoutAnAnswer(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		f := fences{"a": time.Now().Add(time.Hour).UnixMicro()}
		i := w.issuer(t, lease.Config{TTL: 9 * time.Second, Seal: func(ctx context.Context, grants ...lease.Grant) error {
			w.faults.Always(faulty.LoseRequest)
			return f.seal(ctx, grants...)
		}})
		_, err := i.Acquire(t.Context(), "a", lease.NoWait())
		require.ErrorIs(t, err, lease.ErrUnreachable)
		require.ErrorContains(t, err, "a has seen")
		w.faults.Always(faulty.None)
		require.NoError(t, i.Close(t.Context()))
		require.Empty(t, w.client.Keys(t.Context(), "*owner").Val())
	})
}

func release(ctx context.Context, l *lease.Lease, err error) error {
	if err != nil {
		return err
	}
	return l.Release(ctx)
}

// A process that reaches Redis but not the data store keeps the resource for one TTL.
func TestSealingIsBoundedByOneTTL(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		hangs := func(ctx context.Context, _ ...lease.Grant) error { <-ctx.Done(); return context.Cause(ctx) }
		i := w.issuer(t, lease.Config{TTL: 2 * time.Second, Seal: hangs})
		grants := make(chan grant)
		began := time.Now()
		time.AfterFunc(ms, func() { wait(t.Context(), w.issuer(t, lease.Config{TTL: 2 * time.Second}), 0, grants) })

		_, err := i.Acquire(t.Context(), "a")

		require.ErrorContains(t, err, "the data store has not answered within the TTL of the lease (2s)")
		require.LessOrEqual(t, time.Since(began), 2*time.Second)
		g := <-grants
		require.NoError(t, g.err)
		require.LessOrEqual(t, g.at.Sub(began), 2*time.Second+200*ms, "it was not renewed")
		require.NoError(t, g.lease.Release(t.Context()))
	})
}

// Also by a store that does not heed its context: the process keeps the lease from nobody.
func TestWhatIsNotSealedIsNotRenewed(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		const stuck = 20 * time.Second
		hangs := func(context.Context, ...lease.Grant) error { time.Sleep(stuck); return nil }
		i := w.issuer(t, lease.Config{TTL: 2 * time.Second, Seal: hangs})
		grants := make(chan grant, 1)
		began := time.Now()
		time.AfterFunc(ms, func() { wait(t.Context(), w.issuer(t, lease.Config{TTL: time.Minute}), 0, grants) })

		_, err := i.Acquire(t.Context(), "a")

		require.True(t, lease.IsLost(err), "%v", err)
		require.Equal(t, stuck, time.Since(began).Truncate(time.Second))
		g := <-grants
		require.NoError(t, g.err)
		require.LessOrEqual(t, g.at.Sub(began), 2*time.Second+200*ms)
		require.NoError(t, g.lease.Release(t.Context()))
	})
}

// What was sealed is renewed, however long that took.
func TestASealedLeaseIsRenewed(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		slow := func(context.Context, ...lease.Grant) error { time.Sleep(8 * time.Second); return nil }
		l := try(t, w.issuer(t, lease.Config{TTL: 9 * time.Second, Seal: slow}), "a")
		time.Sleep(time.Minute)
		require.NoError(t, l.Err())
	})
}

// Another holder has the fence. A waiting acquisition lets others go first meanwhile, and says what
// blocked it when its patience ends.
func TestAnAcquisitionWhoseSealIsBlockedQueuesAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		blocked := &passedError{"elsewhere", 1}
		var free atomic.Bool
		seal := func(ctx context.Context, grants ...lease.Grant) error {
			if free.Load() {
				return nil
			}
			<-time.After(time.Until(grants[0].(*lease.Lease).ValidUntil()))
			return blocked
		}
		i := w.issuer(t, lease.Config{TTL: 2 * time.Second, Seal: seal})
		began := time.Now()
		_, err := i.Acquire(t.Context(), "a", lease.WaitAtMost(7*time.Second))
		require.ErrorIs(t, err, blocked)
		require.True(t, lease.IsLost(err))
		require.GreaterOrEqual(t, time.Since(began), 7*time.Second)
		require.LessOrEqual(t, time.Since(began), 9*time.Second)

		_, err = i.Acquire(t.Context(), "a", lease.NoWait())
		require.ErrorIs(t, err, blocked)
		time.AfterFunc(5*time.Second, func() { free.Store(true) })
		l, err := i.Acquire(t.Context(), "a")
		require.NoError(t, err)
		require.NoError(t, l.Release(t.Context()))
	})
}

// It would ask Redis and the data store thousands of times in a second.
func TestASealThatAnswersALossAtOnceIsAskedAfterAPause(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		asked := 0
		seal := func(context.Context, ...lease.Grant) error { asked++; return lease.ErrStale }
		_, err := w.issuer(t, lease.Config{TTL: time.Minute, Seal: seal}).Acquire(t.Context(), "a", lease.WaitAtMost(10*time.Second))
		require.ErrorIs(t, err, lease.ErrStale)
		require.Greater(t, asked, 5)
		require.Less(t, asked, 30)
	})
}
