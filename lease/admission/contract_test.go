package admission_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/leasetest"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/lease/admission"
)

// newLimiter makes a limiter of one test's own: two made in one test share keys, as two processes
// do.
type newLimiter func(t *testing.T, cfg admission.Config) *admission.Limiter

// contract is what holds on every deployment of Redis, for both kinds of window.
var contract = map[string]func(*testing.T, newLimiter){
	"AdmitsUpToTheLimit":       admitsUpToTheLimit,
	"KeepsKeysApart":           keepsKeysApart,
	"AHundredCallersOneLimit":  aHundredCallersOneLimit,
	"RetryAfterIsLongEnough":   retryAfterIsLongEnough,
	"LimitsCanBeRaisedAndCut":  limitsCanBeRaisedAndCut,
	"WindowsCanBeMadeShorter":  windowsCanBeMadeShorter,
	"RefusedRequestsDoNotCost": refusedRequestsDoNotCost,
}

func runContract(t *testing.T, make newLimiter) {
	for name, test := range contract {
		for kind, sliding := range map[string]bool{"Fixed": false, "Sliding": true} {
			t.Run(name+kind, func(t *testing.T) {
				t.Parallel()
				test(t, func(t *testing.T, cfg admission.Config) *admission.Limiter {
					cfg.Sliding = sliding
					return make(t, cfg)
				})
			})
		}
	}
}

func TestContractOnRedis(t *testing.T) {
	t.Parallel()
	runContract(t, newWorld(t).forSubtests())
}

func TestContractOnRedisWithAClientThatHonoursContexts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.client = directClient(t, testenv.Redis(t))
	runContract(t, w.forSubtests())
}

func TestContractOnRedisWithHashedKeys(t *testing.T) {
	t.Parallel()
	plain := newWorld(t).forSubtests()
	runContract(t, func(t *testing.T, cfg admission.Config) *admission.Limiter {
		cfg.HashKeys = true
		return plain(t, cfg)
	})
}

func TestContractOnCluster(t *testing.T) {
	t.Parallel()
	client := testenv.Cluster(t).Client()
	runContract(t, (&world{client: client, namespace: "contract"}).forSubtests())
}

// In bubbles, because the clock of miniredis also moves within a script otherwise, as Redis's does
// not: a window that was full is gone when the script looks for its oldest entry.
func TestContractOnMiniredis(t *testing.T) {
	t.Parallel()
	for name, test := range contract {
		for kind, sliding := range map[string]bool{"Fixed": false, "Sliding": true} {
			t.Run(name+kind, func(t *testing.T) {
				inBubble(t, func(t *testing.T, w *world) {
					test(t, func(t *testing.T, cfg admission.Config) *admission.Limiter {
						cfg.Sliding = sliding
						return w.limiter(t, cfg)
					})
				})
			})
		}
	}
}

func admitsUpToTheLimit(t *testing.T, make newLimiter) {
	l := make(t, admission.Config{Limit: 3, Window: time.Minute})
	for n := range 3 {
		d := allow(t, l, "tenant:7")
		require.True(t, d.Allowed)
		require.Equal(t, []int{3, n + 1, 2 - n}, []int{d.Limit, d.Count, d.Remaining})
		require.Zero(t, d.RetryAfter)
		require.Positive(t, d.ResetAfter)
		require.LessOrEqual(t, d.ResetAfter, time.Minute+time.Millisecond)
	}
	for _, l := range []*admission.Limiter{l, make(t, admission.Config{Limit: 3, Window: time.Minute})} {
		d := requireRefused(t, l, "tenant:7")
		require.Equal(t, []int{3, 3, 0}, []int{d.Limit, d.Count, d.Remaining})
		require.InDelta(t, time.Minute, d.RetryAfter, float64(20*time.Second))
		require.LessOrEqual(t, d.RetryAfter, d.ResetAfter)
	}
}

func keepsKeysApart(t *testing.T, make newLimiter) {
	l := make(t, admission.Config{Limit: 1, Window: time.Minute})
	for _, key := range []string{"a", "a b", "{", "}", "{}", "}{", "a{b}c", "%7B", "a/b", "/", "%", "\n", "läßt", strings.Repeat("x", admission.MaxKey)} {
		requireAdmitted(t, l, key)
		requireRefused(t, l, key)
	}
}

func aHundredCallersOneLimit(t *testing.T, make newLimiter) {
	l := make(t, admission.Config{Limit: 10, Window: time.Minute})
	var admitted atomic.Int64
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			d, err := l.Allow(t.Context(), "tenant:7")
			if err != nil || d.Err != nil {
				t.Errorf("%v, %v", err, d.Err)
			}
			if d.Allowed {
				admitted.Add(1)
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 10, admitted.Load())
}

func retryAfterIsLongEnough(t *testing.T, make newLimiter) {
	l := make(t, admission.Config{Limit: 1, Window: 100 * time.Millisecond})
	for range 5 {
		requireAdmitted(t, l, "tenant:7")
		d := allow(t, l, "tenant:7")
		for d.Allowed { // this process was slow
			d = allow(t, l, "tenant:7")
		}
		<-time.After(d.RetryAfter)
	}
}

func limitsCanBeRaisedAndCut(t *testing.T, make newLimiter) {
	two := make(t, admission.Config{Limit: 2, Window: time.Minute})
	four := make(t, admission.Config{Limit: 4, Window: time.Minute})
	requireAdmitted(t, two, "a")
	requireAdmitted(t, two, "a")
	requireRefused(t, two, "a")
	requireAdmitted(t, four, "a")
	requireAdmitted(t, four, "a")
	requireRefused(t, four, "a")
	d := requireRefused(t, two, "a")
	require.Equal(t, []int{2, 4, 0}, []int{d.Limit, d.Count, d.Remaining})
}

func windowsCanBeMadeShorter(t *testing.T, make newLimiter) {
	requireAdmitted(t, make(t, admission.Config{Limit: 1, Window: time.Hour}), "a")
	l := make(t, admission.Config{Limit: 1, Window: 50 * time.Millisecond})
	d := allow(t, l, "a")
	require.LessOrEqual(t, d.RetryAfter, 51*time.Millisecond)
	require.Eventually(t, func() bool { return d.Allowed || allow(t, l, "a").Allowed }, time.Minute, 10*time.Millisecond)
}

func refusedRequestsDoNotCost(t *testing.T, make newLimiter) {
	l := make(t, admission.Config{Limit: 1, Window: time.Minute})
	requireAdmitted(t, l, "a")
	for range 10 {
		require.Equal(t, 1, requireRefused(t, l, "a").Count)
	}
	requireAdmitted(t, make(t, admission.Config{Limit: 2, Window: time.Minute}), "a")
}

// A request without an answer has no decision, may have cost a place, and never makes one.
func TestLostRepliesAndRequests(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		fault   faulty.Fault
		left    int // of 3 places, after two requests that went wrong
		sliding bool
	}{
		{faulty.LoseReply, 1, false},
		{faulty.LoseReply, 1, true},
		{faulty.LoseRequest, 3, false},
		{faulty.LoseRequest, 3, true},
	} {
		w := newWorld(t)
		l := w.limiter(t, admission.Config{Limit: 3, Window: time.Minute, Sliding: test.sliding})
		requireAdmitted(t, l, "so that the script is known")
		w.faults.Next("", "a", 2, test.fault)
		for range 2 {
			d, err := l.Allow(t.Context(), "a")
			require.NoError(t, err)
			require.False(t, d.Allowed)
			require.ErrorIs(t, d.Err, lease.ErrUnreachable)
		}
		for range test.left {
			requireAdmitted(t, l, "a")
		}
		requireRefused(t, l, "a")
	}
}

func TestRights(t *testing.T) {
	t.Parallel()
	leasetest.RunRights(t, "lease/admission", func(ctx context.Context, t *testing.T, client, _ redis.UniversalClient, namespace string, try func(error) error) {
		limiter := func(limit int, window time.Duration, sliding bool) *admission.Limiter {
			l, err := admission.New(client, admission.Config{Limit: limit, Window: window, Sliding: sliding,
				Namespace: namespace, OnError: admission.FailClosed, Timeout: 10 * time.Second})
			require.NoError(t, err)
			return l
		}
		for _, sliding := range []bool{false, true} {
			l := limiter(50, 50*time.Millisecond, sliding)
			for admitted := 0; admitted < 120; { // also those of the next windows
				d, err := l.Allow(ctx, "a")
				if try(errors.Join(err, d.Err)) != nil {
					break
				}
				if d.Allowed {
					admitted++
				}
			}
			l = limiter(1, time.Hour, sliding)
			for range 2 {
				d, err := l.Allow(ctx, "b") // the second is refused, however slow the machine is
				try(errors.Join(err, d.Err))
			}
		}
	})
}

func TestWhyRedisHasNotJudgedHasOneErrorEach(t *testing.T) {
	t.Parallel()
	allow := func(sliding bool) leasetest.Request {
		return leasetest.Request{Effect: leasetest.Writes, Prepare: func(t *testing.T, client *redis.Client) func() error {
			l, err := admission.New(client, admission.Config{Limit: 2, Window: time.Hour, Sliding: sliding,
				OnError: admission.FailOpen, Timeout: time.Minute})
			require.NoError(t, err)
			return func() error {
				d, err := l.Allow(t.Context(), "tenant:7")
				require.NoError(t, err)
				require.True(t, d.Allowed)
				return d.Err
			}
		}}
	}
	leasetest.Refusals(t, map[string]leasetest.Request{"fixed": allow(false), "sliding": allow(true)})
}
