package lease_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

// newSemaphore makes a semaphore of one test's own: two made in one test share resources, as two
// processes do.
type newSemaphore func(t *testing.T, limit int, cfg lease.Config) *lease.Semaphore

// contract is what holds on every deployment of Redis.
var semaphoreContract = map[string]func(*testing.T, newSemaphore){
	"GivesOutAllPlaces":          givesOutAllPlaces,
	"KeepsResourcesApart":        keepsPermitsApart,
	"ReleaseIsIdempotent":        releaseOfAPermitIsIdempotent,
	"ADeadHoldersPlaceComesFree": aDeadHoldersPlaceComesFree,
	"TheWatchdogKeepsAPlace":     theWatchdogKeepsAPlace,
	"WaitersComeInOrder":         waitersComeInOrder,
	"WaitingIsBoundedByContext":  waitingIsBoundedByContext,
	"AHundredContenders":         aHundredContenders,
	"ALowerLimitDrains":          aLowerLimitDrains,
	"RevokeEndsOneHolder":        revokeEndsOneHolder,
	"InspectListsHolders":        inspectListsHolders,
	"SeveralPlacesManyProcesses": severalPlacesManyProcesses,
}

func runSemaphoreContract(t *testing.T, make newSemaphore) {
	for name, test := range semaphoreContract {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, make)
		})
	}
}

func TestSemaphoreContractOnRedis(t *testing.T) {
	t.Parallel()
	runSemaphoreContract(t, newWorld(t).semaphoresForSubtests())
}

func TestSemaphoreContractOnRedisWithHashedResources(t *testing.T) {
	t.Parallel()
	plain := newWorld(t).semaphoresForSubtests()
	runSemaphoreContract(t, func(t *testing.T, limit int, cfg lease.Config) *lease.Semaphore {
		cfg.HashResources = true
		return plain(t, limit, cfg)
	})
}

func TestSemaphoreContractOnCluster(t *testing.T) {
	t.Parallel()
	client := testenv.Cluster(t).Client()
	runSemaphoreContract(t, (&world{client: client, namespace: "contract"}).semaphoresForSubtests())
}

func TestSemaphoreContractOnMiniredis(t *testing.T) {
	t.Parallel()
	for name, test := range semaphoreContract {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) { test(t, w.semaphore) })
		})
	}
}

func TestSemaphoreContractWithLostReplies(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.faults.First(faulty.LoseReply)
	runSemaphoreContract(t, w.semaphoresForSubtests())
}

func TestSemaphoreContractWithLostRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.faults.First(faulty.LoseRequest)
	runSemaphoreContract(t, w.semaphoresForSubtests())
}

func givesOutAllPlaces(t *testing.T, make newSemaphore) {
	s := make(t, 3, lease.Config{})
	var last int64
	for range 3 {
		l := tryPermit(t, s, "tenant:7")
		require.Equal(t, "tenant:7", l.Resource())
		require.Greater(t, l.Token(), last)
		last = l.Token()
		requireStanding(t, l, lease.Current)
	}
	held := requireFull(t, s, "tenant:7")
	require.Equal(t, "tenant:7", held.Resource)
	requireFull(t, make(t, 3, lease.Config{}), "tenant:7")
}

func keepsPermitsApart(t *testing.T, make newSemaphore) {
	s := make(t, 1, lease.Config{})
	for _, resource := range []string{"a", "a b", "{", "}", "{}", "}{", "a{b}c", "%7B", "a/b", "/", "%", "\n", "läßt", strings.Repeat("x", 512)} {
		tryPermit(t, s, resource)
		requireFull(t, s, resource)
		found, err := s.Inspect(t.Context(), resource)
		require.NoError(t, err)
		require.Len(t, found.Permits, 1, "%q: Inspect looks at the same keys", resource)
	}
}

func releaseOfAPermitIsIdempotent(t *testing.T, make newSemaphore) {
	s := make(t, 2, lease.Config{})
	first, second := tryPermit(t, s, "a"), tryPermit(t, s, "a")
	require.NoError(t, first.Release(t.Context()))
	require.NoError(t, first.Release(t.Context()))
	requireStanding(t, first, lease.LeaseLost)
	requireStanding(t, second, lease.Current)
	tryPermit(t, s, "a")
	requireFull(t, s, "a")
}

func aDeadHoldersPlaceComesFree(t *testing.T, make newSemaphore) {
	short, s := make(t, 2, lease.Config{TTL: 2 * time.Second, RenewEvery: lease.Never}), make(t, 2, lease.Config{})
	alive := tryPermit(t, s, "a")
	dead := tryPermit(t, short, "a")
	l, err := s.Acquire(t.Context(), "a")
	require.NoError(t, err)
	<-dead.Context().Done()
	require.ErrorIs(t, context.Cause(dead.Context()), lease.ErrExpired)
	require.ErrorIs(t, dead.Release(t.Context()), lease.ErrExpired)
	requireStanding(t, dead, lease.LeaseLost)
	requireStanding(t, alive, lease.Current)
	requireStanding(t, l, lease.Current)
	require.NoError(t, l.Release(t.Context()))
}

func theWatchdogKeepsAPlace(t *testing.T, make newSemaphore) {
	const ttl = ttlRenewed
	s := make(t, 1, lease.Config{TTL: ttl})
	l := tryPermit(t, s, "a")
	select {
	case <-l.Context().Done():
		require.NoError(t, context.Cause(l.Context()))
	case <-time.After(ttl * 4 / 3):
	}
	requireStanding(t, l, lease.Current)
	requireFull(t, s, "a")
}

func waitersComeInOrder(t *testing.T, make newSemaphore) {
	s := make(t, 1, lease.Config{})
	holder := tryPermit(t, s, "a")
	var queue []<-chan *lease.Lease
	for n := range 3 {
		queue = append(queue, waitingForPermit(t, make(t, 1, lease.Config{}), "a"))
		awaitWaiters(t, s, "a", n+1)
		<-time.After(ms) // in a bubble, the next would arrive in the same microsecond
	}
	for _, next := range queue {
		require.NoError(t, holder.Release(t.Context()))
		holder = <-next
		require.NotNil(t, holder)
	}
	require.NoError(t, holder.Release(t.Context()))
}

func waitingIsBoundedByContext(t *testing.T, make newSemaphore) {
	s := make(t, 1, lease.Config{})
	l := tryPermit(t, s, "a")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // and an answer by then, on a busy machine too
	defer cancel()
	_, err := s.Acquire(ctx, "a")
	require.ErrorIs(t, err, lease.ErrHeld)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	awaitWaiters(t, s, "a", 0) // it is withdrawn behind the caller's back
	require.NoError(t, l.Release(t.Context()))
	tryPermit(t, s, "a") // nobody has right of way
}

func aHundredContenders(t *testing.T, make newSemaphore) {
	const limit = 7
	s := make(t, limit, lease.Config{})
	var got atomic.Int64
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			switch _, err := s.Acquire(t.Context(), "a", lease.NoWait()); {
			case err == nil:
				got.Add(1)
			default:
				require.ErrorIs(t, err, lease.ErrHeld)
			}
		})
	}
	all.Wait()
	require.EqualValues(t, limit, got.Load())
}

func severalPlacesManyProcesses(t *testing.T, make newSemaphore) {
	const limit, processes, turns = 3, 5, 4
	var holding, most, done atomic.Int64
	var all sync.WaitGroup
	for range processes {
		s := make(t, limit, lease.Config{})
		for range turns {
			all.Go(func() {
				err := s.Do(t.Context(), "a", func(context.Context, *lease.Lease) error {
					now := holding.Add(1)
					defer holding.Add(-1)
					for seen := most.Load(); now > seen && !most.CompareAndSwap(seen, now); seen = most.Load() {
					}
					done.Add(1)
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
	all.Wait()
	require.EqualValues(t, processes*turns, done.Load())
	require.LessOrEqual(t, most.Load(), int64(limit))
}

func aLowerLimitDrains(t *testing.T, make newSemaphore) {
	s, lower := make(t, 3, lease.Config{}), make(t, 1, lease.Config{})
	holders := []*lease.Lease{tryPermit(t, s, "a"), tryPermit(t, s, "a"), tryPermit(t, s, "a")}
	for _, l := range holders {
		requireFull(t, lower, "a")
		require.NoError(t, l.Release(t.Context()))
	}
	tryPermit(t, lower, "a")
	requireFull(t, lower, "a")
	tryPermit(t, s, "a")
}

func inspectListsHolders(t *testing.T, make newSemaphore) {
	s := make(t, 2, lease.Config{TTL: time.Minute})
	found, err := s.Inspect(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, lease.SemaphoreInspection{}, found)

	first := tryPermit(t, s, "a")
	<-time.After(ms) // or they expire together
	second := tryPermit(t, s, "a")
	found, err = s.Inspect(t.Context(), "a")
	require.NoError(t, err)
	require.Len(t, found.Permits, 2)
	for n, l := range []*lease.Lease{first, second} {
		h := found.Permits[n]
		require.Equal(t, l.LeaseID(), h.LeaseID)
		require.Equal(t, l.Token(), h.Token)
		require.InDelta(t, time.Minute, h.ExpiresIn, float64(20*time.Second))
	}
}

func revokeEndsOneHolder(t *testing.T, make newSemaphore) {
	s := make(t, 3, lease.Config{})
	first, second, third := tryPermit(t, s, "tenant:7"), tryPermit(t, s, "tenant:7"), tryPermit(t, s, "tenant:7")
	waiter := waitingForPermit(t, make(t, 3, lease.Config{}), "tenant:7")
	awaitWaiters(t, s, "tenant:7", 1)
	for _, l := range []*lease.Lease{first, second} {
		for range 2 { // asking again gives the same answer
			held, err := s.Revoke(t.Context(), "tenant:7", l.LeaseID())
			require.NoError(t, err)
			require.True(t, held)
		}
	}
	next := <-waiter
	require.NotNil(t, next)
	requireStanding(t, third, lease.Current)
	<-time.After(ms) // there has to be something to gain
	require.ErrorIs(t, first.Extend(t.Context()), lease.ErrRevoked)
	require.ErrorIs(t, second.Release(t.Context()), lease.ErrRevoked)
	requireStanding(t, next, lease.Current)

	held, err := s.Revoke(t.Context(), "tenant:7", uuid.New())
	require.NoError(t, err)
	require.False(t, held)
	require.NoError(t, next.Release(t.Context()))
	held, err = s.Revoke(t.Context(), "tenant:7", next.LeaseID())
	require.NoError(t, err)
	require.False(t, held, "it is given back already")
	_, err = s.Revoke(t.Context(), "", next.LeaseID())
	require.ErrorIs(t, err, lease.ErrInvalid)
}

// semaphore lasts long enough for a loaded machine, unless the test says otherwise.
func (w *world) semaphore(t *testing.T, limit int, cfg lease.Config) *lease.Semaphore {
	t.Helper()
	if cfg.Namespace == "" {
		cfg.Namespace = w.namespace
	}
	if cfg.TTL == 0 {
		cfg.TTL = 30 * time.Second
	}
	s, err := lease.NewSemaphore(w.client, lease.SemaphoreConfig{Limit: limit, Lease: cfg})
	require.NoError(t, err)
	return s
}

// semaphoresForSubtests gives each subtest a namespace of its own.
func (w *world) semaphoresForSubtests() newSemaphore {
	return func(t *testing.T, limit int, cfg lease.Config) *lease.Semaphore {
		_, name, _ := strings.Cut(t.Name(), "/")
		cfg.Namespace = w.namespace + "/" + name
		return w.semaphore(t, limit, cfg)
	}
}

func (w *world) permitKey(resource, name string) string {
	return "semaphore:v1:{" + w.namespace + "/" + resource + "}:" + name
}

// tryPermit takes a place and fails the test if there is none. It is given back at the end of the
// test.
func tryPermit(t *testing.T, s *lease.Semaphore, resource string, opts ...lease.Option) *lease.Lease {
	t.Helper()
	l, err := s.Acquire(t.Context(), resource, append(slices.Clip(opts), lease.NoWait())...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Release(context.Background()) })
	return l
}

func requireFull(t *testing.T, s *lease.Semaphore, resource string) *lease.HeldError {
	t.Helper()
	_, err := s.Acquire(t.Context(), resource, lease.NoWait())
	require.ErrorIs(t, err, lease.ErrHeld)
	var held *lease.HeldError
	require.ErrorAs(t, err, &held)
	require.Positive(t, held.RetryAfter)
	return held
}

// waitingForPermit is an Acquire on the side.
func waitingForPermit(t *testing.T, s *lease.Semaphore, resource string) <-chan *lease.Lease {
	got := make(chan *lease.Lease, 1)
	go func() {
		l, err := s.Acquire(t.Context(), resource)
		if err != nil {
			t.Errorf("acquire: %v", err)
		}
		got <- l
	}()
	return got
}

// awaitWaiters waits until that many stand in Redis's queue.
func awaitWaiters(t *testing.T, s *lease.Semaphore, resource string, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		found, err := s.Inspect(t.Context(), resource)
		require.NoError(t, err)
		return found.Waiters == n
	}, time.Minute, 2*ms)
}
