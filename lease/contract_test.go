package lease_test

import (
	"context"
	"errors"
	"math/rand/v2"
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

func TestContractOnRedis(t *testing.T) {
	t.Parallel()
	runContract(t, newWorld(t).forSubtests())
}

func TestContractOnRedisWithHashedResources(t *testing.T) {
	t.Parallel()
	issuer := newWorld(t).forSubtests()
	runContract(t, func(t *testing.T, cfg lease.Config) *lease.Issuer {
		cfg.HashResources = true
		return issuer(t, cfg)
	})
}

func TestContractWithLostReplies(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.faults.First(faulty.LoseReply)
	runContract(t, w.forSubtests())
}

func TestContractWithLostRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.faults.First(faulty.LoseRequest)
	runContract(t, w.forSubtests())
}

// In bubbles, because the clock of miniredis also moves within a script otherwise, as Redis's does
// not.
func TestContractOnMiniredis(t *testing.T) {
	t.Parallel()
	for name, test := range contract {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) { test(t, w.issuer) })
		})
	}
}

func (w *world) forSubtests() newIssuer {
	return func(t *testing.T, cfg lease.Config) *lease.Issuer {
		cfg.Namespace = subspace(t, w.namespace)
		return w.issuer(t, cfg)
	}
}

func TestContractOnCluster(t *testing.T) {
	t.Parallel()
	client := testenv.Cluster(t).Client()
	runContract(t, (&world{client: client, namespace: "contract"}).forSubtests())
}

func TestContractOnSentinel(t *testing.T) {
	t.Parallel()
	client := testenv.Sentinel(t).Client()
	runContract(t, (&world{client: client, namespace: "contract"}).forSubtests())
}

// ttl is long enough for a loaded machine, ttlShort short enough to wait for its end, ttlRenewed
// for both.
const (
	ttl        = 10 * time.Second
	ttlShort   = 2 * time.Second
	ttlRenewed = 6 * time.Second
)

// patience is how long a server may fail to answer before the contract is broken.
const patience = 2 * time.Minute

// newIssuer makes an issuer for one test. Issuers of one test share resources, those of two tests
// do not.
type newIssuer func(t *testing.T, cfg lease.Config) *lease.Issuer

// contract is what every implementation keeps.
var contract = map[string]func(*testing.T, newIssuer){
	"GrantsWhatIsFree":          grantsWhatIsFree,
	"RefusesWhatIsHeld":         refusesWhatIsHeld,
	"OneWinner":                 oneWinner,
	"TokensRise":                tokensRise,
	"KeepsResourcesApart":       keepsResourcesApart,
	"ReleaseIsIdempotent":       releaseIsIdempotent,
	"ExtendMovesValidity":       extendMovesValidity,
	"ExpiredLeaseTouchesNobody": expiredLeaseTouchesNobody,
	"WatchdogKeepsTheLease":     watchdogKeepsTheLease,
	"AcquireWaitsForRelease":    acquireWaitsForRelease,
	"AcquireIsBoundedByContext": acquireIsBoundedByContext,
	"DoReleases":                doReleases,
	"SeveralAreAllOrNone":       severalAreAllOrNone,
	"RevokeEndsTheHolder":       revokeEndsTheHolder,
	"RaiseMovesTheFenceOn":      raiseMovesTheFenceOn,
}

func runContract(t *testing.T, issuer newIssuer) {
	for name, test := range contract {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, issuer)
		})
	}
}

func acquire(t *testing.T, i *lease.Issuer, resource string, opts ...lease.Option) *lease.Lease {
	t.Helper()
	l, err := i.Acquire(t.Context(), resource, append(slices.Clip(opts), lease.NoWait())...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Release(context.Background()) })
	return l
}

func requireStanding(t *testing.T, l *lease.Lease, want lease.Standing) {
	t.Helper()
	var standing lease.Standing
	require.NoError(t, answered(func() (err error) {
		standing, err = l.Verify(t.Context())
		return err
	}))
	require.Equal(t, want, standing)
}

// answered repeats a request until there is an answer, because a short TTL may be too short for a
// busy machine. It gives up after patience.
func answered(request func() error) error {
	err := request()
	for deadline := time.Now().Add(patience); errors.Is(err, lease.ErrUnreachable) && time.Now().Before(deadline); {
		err = request()
	}
	return err
}

func grantsWhatIsFree(t *testing.T, issuer newIssuer) {
	before := time.Now()
	l := acquire(t, issuer(t, lease.Config{TTL: ttl}), "table:12")
	require.Equal(t, "table:12", l.Resource())
	require.Positive(t, l.Token())
	require.NotEqual(t, uuid.Nil, l.LeaseID())
	require.WithinRange(t, l.ValidUntil(), before, time.Now().Add(ttl))
	require.NoError(t, l.Err())
	requireStanding(t, l, lease.Current)
}

func refusesWhatIsHeld(t *testing.T, issuer newIssuer) {
	i := issuer(t, lease.Config{TTL: ttl})
	l := acquire(t, i, "table:12")
	_, err := i.Acquire(t.Context(), "table:12", lease.NoWait())
	require.ErrorIs(t, err, lease.ErrHeld)
	var held *lease.HeldError
	require.ErrorAs(t, err, &held)
	require.Equal(t, "table:12", held.Resource)
	require.Positive(t, held.RetryAfter)
	require.LessOrEqual(t, held.RetryAfter, ttl)
	requireStanding(t, l, lease.Current)
}

// oneWinner lets a hundred rivals try until one has won.
func oneWinner(t *testing.T, issuer newIssuer) {
	i := issuer(t, lease.Config{TTL: ttl})
	var winners atomic.Int64
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			for winners.Load() == 0 {
				_, err := i.Acquire(t.Context(), "table:12", lease.NoWait())
				if err == nil {
					winners.Add(1)
					return
				}
				if !errors.Is(err, lease.ErrHeld) {
					t.Error(err)
					return
				}
				<-time.After(rand.N(50 * time.Millisecond))
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 1, winners.Load())
	_, err := i.Acquire(t.Context(), "table:12", lease.NoWait())
	require.ErrorIs(t, err, lease.ErrHeld)
}

func tokensRise(t *testing.T, issuer newIssuer) {
	i := issuer(t, lease.Config{TTL: ttl})
	var last int64
	for range 20 {
		l := acquire(t, i, "table:12")
		require.Greater(t, l.Token(), last)
		last = l.Token()
		require.NoError(t, l.Release(t.Context()))
	}
}

func keepsResourcesApart(t *testing.T, issuer newIssuer) {
	i := issuer(t, lease.Config{TTL: ttl})
	for _, resource := range []string{
		"table:12", "a b", "\"quoted'", "{", "}", "{}", "}{", "a{b}c", "%7B", "a/b", "/", "%", "\n", "läßt", "🍽️:12",
		strings.Repeat("x", 512),
	} {
		l := acquire(t, i, resource)
		require.Equal(t, resource, l.Resource())
		_, err := i.Acquire(t.Context(), resource, lease.NoWait())
		require.ErrorIs(t, err, lease.ErrHeld)
	}
}

func releaseIsIdempotent(t *testing.T, issuer newIssuer) {
	i := issuer(t, lease.Config{TTL: ttl})
	first := acquire(t, i, "table:12")
	require.NoError(t, first.Release(t.Context()))
	require.ErrorIs(t, first.Err(), lease.ErrReleased)
	second := acquire(t, i, "table:12")
	require.NoError(t, first.Release(t.Context()))
	requireStanding(t, second, lease.Current)
	requireStanding(t, first, lease.LeaseLost)
}

func extendMovesValidity(t *testing.T, issuer newIssuer) {
	l := acquire(t, issuer(t, lease.Config{TTL: ttl, RenewEvery: lease.Never}), "table:12")
	before := l.ValidUntil()
	<-time.After(ms) // there has to be something to gain
	require.NoError(t, l.Extend(t.Context()))
	require.True(t, l.ValidUntil().After(before))
	require.NoError(t, l.Release(t.Context()))
	require.ErrorIs(t, l.Extend(t.Context()), lease.ErrReleased)
}

func expiredLeaseTouchesNobody(t *testing.T, issuer newIssuer) {
	short := issuer(t, lease.Config{TTL: ttlShort, RenewEvery: lease.Never})
	first := acquire(t, short, "table:12")
	second, err := issuer(t, lease.Config{TTL: ttl}).Acquire(t.Context(), "table:12")
	require.NoError(t, err)
	require.Greater(t, second.Token(), first.Token())

	<-first.Context().Done()
	require.ErrorIs(t, context.Cause(first.Context()), lease.ErrExpired)
	require.ErrorIs(t, first.Extend(t.Context()), lease.ErrExpired)
	require.ErrorIs(t, answered(func() error { return first.Release(t.Context()) }), lease.ErrExpired)
	requireStanding(t, first, lease.LeaseLost)
	requireStanding(t, second, lease.Current)
	require.NoError(t, second.Release(t.Context()))
}

func watchdogKeepsTheLease(t *testing.T, issuer newIssuer) {
	l := acquire(t, issuer(t, lease.Config{TTL: ttlRenewed}), "table:12")
	_, err := issuer(t, lease.Config{TTL: ttl}).Acquire(t.Context(), "table:12", lease.NoWait())
	require.ErrorIs(t, err, lease.ErrHeld)
	select {
	case <-l.Context().Done():
		require.NoError(t, context.Cause(l.Context()))
	case <-time.After(ttlRenewed * 4 / 3):
	}
	requireStanding(t, l, lease.Current)
	require.NoError(t, l.Release(t.Context()))
}

func acquireWaitsForRelease(t *testing.T, issuer newIssuer) {
	i := issuer(t, lease.Config{TTL: ttl})
	first := acquire(t, i, "table:12")
	got := make(chan *lease.Lease, 1)
	go func() {
		l, err := i.Acquire(t.Context(), "table:12")
		if err != nil {
			t.Errorf("acquire: %v", err)
		}
		got <- l
	}()
	select {
	case <-got:
		t.Fatal("granted while another holds it")
	case <-time.After(50 * time.Millisecond):
	}
	require.NoError(t, first.Release(t.Context()))
	second := <-got
	require.NotNil(t, second)
	require.Greater(t, second.Token(), first.Token())
	require.NoError(t, second.Release(t.Context()))
}

func acquireIsBoundedByContext(t *testing.T, issuer newIssuer) {
	i := issuer(t, lease.Config{TTL: ttl})
	first := acquire(t, i, "table:12")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // and an answer by then, on a busy machine too
	defer cancel()
	_, err := i.Acquire(ctx, "table:12")
	require.ErrorIs(t, err, lease.ErrHeld)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	// The waiter has left, so nobody comes first.
	require.NoError(t, first.Release(t.Context()))
	require.Eventually(t, func() bool {
		l, err := i.Acquire(t.Context(), "table:12", lease.NoWait())
		return err == nil && l.Release(t.Context()) == nil
	}, patience, ms, "it leaves behind the call that has returned")
}

func doReleases(t *testing.T, issuer newIssuer) {
	i := issuer(t, lease.Config{TTL: ttl})
	for range 2 {
		require.NoError(t, i.Do(t.Context(), "table:12", func(ctx context.Context, l *lease.Lease) error {
			requireStanding(t, l, lease.Current)
			return ctx.Err()
		}))
	}
	acquire(t, i, "table:12")
}

func severalAreAllOrNone(t *testing.T, issuer newIssuer) {
	i := issuer(t, lease.Config{TTL: ttl})
	ls, err := i.AcquireAll(t.Context(), []string{"table:14", "table:12", "table:13"})
	require.NoError(t, err)
	require.Len(t, ls, 3)
	for _, l := range ls {
		requireStanding(t, l, lease.Current)
	}
	_, err = i.AcquireAll(t.Context(), []string{"table:11", "table:13"}, lease.NoWait())
	require.ErrorIs(t, err, lease.ErrHeld)
	free, err := i.Acquire(t.Context(), "table:11") // on a Cluster it may still be on its way back
	require.NoError(t, err)
	require.NoError(t, free.Release(t.Context()))
	require.NoError(t, ls.Release(t.Context()))
	ls, err = i.AcquireAll(t.Context(), []string{"table:12", "table:13"}, lease.NoWait())
	require.NoError(t, err)
	require.NoError(t, ls.Release(t.Context()))
}

func revokeEndsTheHolder(t *testing.T, issuer newIssuer) {
	i := issuer(t, lease.Config{TTL: ttl})
	l := acquire(t, i, "table:12")
	r, err := i.TakeOver(t.Context(), "table:12", l.Token())
	require.NoError(t, err)
	require.Greater(t, r.Token(), l.Token())
	_, err = i.TakeOver(t.Context(), "table:12", l.Token())
	require.ErrorIs(t, err, lease.ErrStale, "only one can")
	<-time.After(ms) // there has to be something to gain
	require.ErrorIs(t, l.Extend(t.Context()), lease.ErrRevoked)
	<-l.Context().Done()
	require.ErrorIs(t, context.Cause(l.Context()), lease.ErrRevoked)
	require.Greater(t, acquire(t, i, "table:12").Token(), r.Token())
}

func raiseMovesTheFenceOn(t *testing.T, issuer newIssuer) {
	i := issuer(t, lease.Config{TTL: ttl})
	l := acquire(t, i, "table:12")
	stored := l.Token() + int64(time.Hour/time.Microsecond)
	last, err := i.Raise(t.Context(), "table:12", stored)
	require.NoError(t, err)
	require.Equal(t, stored, last)
	requireStanding(t, l, lease.FenceStale)

	require.NoError(t, l.Release(t.Context()))
	next := acquire(t, i, "table:12")
	require.Greater(t, next.Token(), stored)
	requireStanding(t, next, lease.Current)
}
