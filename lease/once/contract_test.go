package once_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/leasetest"
	"github.com/fencedb/fencedb/internal/protocol"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/lease/once"
)

// newOnce makes a Once of one test's own: two made in one test share keys, as two processes do.
type newOnce func(t *testing.T, cfg once.Config) *once.Once

// contract is what holds on every deployment of Redis.
var contract = map[string]func(*testing.T, newOnce){
	"RunsOnceAndReplays":           runsOnceAndReplays,
	"KeepsKeysApart":               keepsKeysApart,
	"KeepsResultsAsTheyAre":        keepsResultsAsTheyAre,
	"AFailureFreesTheKey":          aFailureFreesTheKey,
	"APanicFreesTheKey":            aPanicFreesTheKey,
	"RefusesAnotherRequest":        refusesAnotherRequest,
	"NoWaitAnswersAtOnce":          noWaitAnswersAtOnce,
	"WaitersGetTheResult":          waitersGetTheResult,
	"AWaiterIsTheRetry":            aWaiterIsTheRetry,
	"WaitingIsBoundedByContext":    waitingIsBoundedByContext,
	"ALateResultIsRefused":         aLateResultIsRefused,
	"TellsTheState":                tellsTheState,
	"ForgetsOnDemand":              forgetsOnDemand,
	"ResultsAreForgottenInTheEnd":  resultsAreForgottenInTheEnd,
	"ManyProcessesOneRun":          manyProcessesOneRun,
	"TheRunnerMayOutliveItsCaller": theRunnerMayOutliveItsCaller,
}

func runContract(t *testing.T, make newOnce) {
	for name, test := range contract {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, make)
		})
	}
}

func TestContractOnRedis(t *testing.T) {
	t.Parallel()
	runContract(t, newWorld(t).forSubtests())
}

func TestContractOnRedisWithHashedKeys(t *testing.T) {
	t.Parallel()
	plain := newWorld(t).forSubtests()
	runContract(t, func(t *testing.T, cfg once.Config) *once.Once {
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
// not.
func TestContractOnMiniredis(t *testing.T) {
	t.Parallel()
	for name, test := range contract {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) { test(t, w.once) })
		})
	}
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

func runsOnceAndReplays(t *testing.T, make newOnce) {
	o := make(t, once.Config{})
	require.Equal(t, outcome{"paid", false, nil}, do(t.Context(), o, "order:7", answers("paid")))
	for range 3 {
		require.Equal(t, outcome{"paid", true, nil}, do(t.Context(), o, "order:7", forbidden(t)))
	}
	require.Equal(t, outcome{"paid", true, nil}, do(t.Context(), make(t, once.Config{}), "order:7", forbidden(t)), "another process")
}

func keepsKeysApart(t *testing.T, make newOnce) {
	o := make(t, once.Config{})
	for _, key := range []string{"a", "a b", "{", "}", "{}", "}{", "a{b}c", "%7B", "a/b", "/", "%", "\n", "läßt", strings.Repeat("x", once.MaxKey)} {
		require.Equal(t, outcome{key, false, nil}, do(t.Context(), o, key, answers(key)))
		require.Equal(t, outcome{key, true, nil}, do(t.Context(), o, key, forbidden(t)))
	}
}

func keepsResultsAsTheyAre(t *testing.T, make newOnce) {
	o, another := make(t, once.Config{}), make(t, once.Config{})
	for key, result := range map[string]string{"none": "", "bytes": "\x00\xff\r\n$-1", "greatest": strings.Repeat("\xfe", once.MaxResult)} {
		require.NoError(t, do(t.Context(), o, key, answers(result)).err)
		got := do(t.Context(), another, key, forbidden(t))
		require.NoError(t, got.err)
		require.True(t, got.result == result, "%d bytes for %s", len(got.result), key)
	}
}

func aFailureFreesTheKey(t *testing.T, make newOnce) {
	o := make(t, once.Config{})
	require.Equal(t, outcome{"", false, errDeclined}, do(t.Context(), o, "order:7", fails))
	require.Equal(t, outcome{"paid", false, nil}, do(t.Context(), o, "order:7", answers("paid"), once.NoWait()))
}

func aPanicFreesTheKey(t *testing.T, make newOnce) {
	o := make(t, once.Config{})
	require.PanicsWithValue(t, "at the disco", func() {
		_ = do(t.Context(), o, "order:7", func(context.Context, *lease.Lease) ([]byte, error) { panic("at the disco") })
	})
	require.Equal(t, outcome{"paid", false, nil}, do(t.Context(), o, "order:7", answers("paid"), once.NoWait()))
}

func refusesAnotherRequest(t *testing.T, make newOnce) {
	o, another := make(t, once.Config{}), make(t, once.Config{})
	_, _, err := o.Do(t.Context(), "order:7", []byte("12 EUR"), answers("paid"))
	require.NoError(t, err)
	for _, o := range []*once.Once{o, another} {
		result, _, err := o.Do(t.Context(), "order:7", []byte("13 EUR"), forbidden(t))
		require.ErrorIs(t, err, once.ErrKeyReused)
		require.Empty(t, result)
		for _, request := range [][]byte{[]byte("12 EUR"), nil} {
			result, replayed, err := o.Do(t.Context(), "order:7", request, forbidden(t))
			require.NoError(t, err)
			require.True(t, replayed)
			require.Equal(t, "paid", string(result))
		}
	}
}

func noWaitAnswersAtOnce(t *testing.T, make newOnce) {
	h := newHeld()
	o := make(t, once.Config{InFlight: time.Minute})
	first := begin(t.Context(), o, "order:7", h.thatAnswers("paid"))
	<-h.claim
	for _, o := range []*once.Once{o, make(t, once.Config{})} {
		got := do(t.Context(), o, "order:7", forbidden(t), once.NoWait())
		require.ErrorIs(t, got.err, once.ErrInFlight)
		var inFlight *once.InFlightError
		require.ErrorAs(t, got.err, &inFlight)
		require.Equal(t, "order:7", inFlight.Key)
		require.Positive(t, inFlight.RetryAfter)
		require.LessOrEqual(t, inFlight.RetryAfter, time.Minute)
		require.NoError(t, inFlight.Cause)
		require.Contains(t, inFlight.Holder, fmt.Sprint(":", os.Getpid()))
		require.ErrorContains(t, got.err, strconv.Quote(inFlight.Holder))
	}
	close(h.goOn)
	require.Equal(t, outcome{"paid", false, nil}, <-first)
	require.Equal(t, outcome{"paid", true, nil}, do(t.Context(), o, "order:7", forbidden(t), once.NoWait()))
}

func waitersGetTheResult(t *testing.T, make newOnce) {
	h := newHeld()
	o := make(t, once.Config{})
	first := begin(t.Context(), o, "order:7", h.thatAnswers("paid"))
	<-h.claim
	here := begin(t.Context(), o, "order:7", forbidden(t))
	elsewhere := begin(t.Context(), make(t, once.Config{}), "order:7", forbidden(t))
	close(h.goOn)
	require.Equal(t, outcome{"paid", false, nil}, <-first)
	require.Equal(t, outcome{"paid", true, nil}, <-here)
	require.Equal(t, outcome{"paid", true, nil}, <-elsewhere)
}

func aWaiterIsTheRetry(t *testing.T, make newOnce) {
	for name, waiter := range map[string]*once.Once{"same process": nil, "another process": make(t, once.Config{})} {
		h := newHeld()
		o := make(t, once.Config{})
		if waiter == nil {
			waiter = o
		}
		first := begin(t.Context(), o, name, func(ctx context.Context, claim *lease.Lease) ([]byte, error) {
			_, _ = h.thatAnswers("")(ctx, claim)
			return nil, errDeclined
		})
		token := (<-h.claim).Token()
		second := begin(t.Context(), waiter, name, func(_ context.Context, claim *lease.Lease) ([]byte, error) {
			if claim.Token() <= token {
				t.Errorf("token %d after %d", claim.Token(), token)
			}
			return []byte("paid"), nil
		})
		close(h.goOn)
		require.ErrorIs(t, (<-first).err, errDeclined)
		require.Equal(t, outcome{"paid", false, nil}, <-second, name)
	}
}

func waitingIsBoundedByContext(t *testing.T, make newOnce) {
	h := newHeld()
	o := make(t, once.Config{})
	first := begin(t.Context(), o, "order:7", h.thatAnswers("paid"))
	<-h.claim
	for n, o := range []*once.Once{o, make(t, once.Config{})} {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // and an answer by then, on a busy machine too
		got := do(ctx, o, "order:7", forbidden(t))
		require.ErrorIs(t, got.err, once.ErrInFlight)
		require.ErrorIs(t, got.err, context.DeadlineExceeded)
		var inFlight *once.InFlightError
		require.ErrorAs(t, got.err, &inFlight)
		require.Equal(t, n == 1, inFlight.Holder != "", "callers of one process share one request")
		cancel()
	}
	close(h.goOn)
	require.Equal(t, outcome{"paid", false, nil}, <-first)
}

// The naive version, which records whatever comes, fails here.
func aLateResultIsRefused(t *testing.T, make newOnce) {
	zombie := newHeld()
	// Its claim reaches its longest time and is not renewed, as that of a process that is stopped.
	short := make(t, once.Config{InFlight: 3 * time.Second, MaxRun: 3 * time.Second})
	late := begin(t.Context(), short, "order:7", zombie.thatAnswers("from A"))
	first := <-zombie.claim

	var second *lease.Lease
	got := do(t.Context(), make(t, once.Config{}), "order:7", func(_ context.Context, claim *lease.Lease) ([]byte, error) {
		second = claim
		return []byte("from B"), nil
	})
	require.Equal(t, outcome{"from B", false, nil}, got)
	require.Greater(t, second.Token(), first.Token())

	close(zombie.goOn)
	refused := <-late
	require.ErrorIs(t, refused.err, once.ErrNotRecorded)
	require.ErrorIs(t, refused.err, lease.ErrLost)
	require.Equal(t, "from A", refused.result)
	require.Equal(t, outcome{"from B", true, nil}, do(t.Context(), short, "order:7", forbidden(t)))
}

func tellsTheState(t *testing.T, make newOnce) {
	o := make(t, once.Config{InFlight: time.Minute, Done: time.Hour})
	state := func() once.State {
		s, err := o.State(t.Context(), "order:7")
		require.NoError(t, err)
		return s
	}
	require.Equal(t, once.State{}, state())

	h := newHeld()
	first := begin(t.Context(), o, "order:7", h.thatAnswers("paid"))
	claim := <-h.claim
	s := state()
	require.Equal(t, once.InFlight, s.Phase)
	require.Equal(t, claim.Token(), s.Token)
	require.Equal(t, claim.LeaseID(), s.Claim)
	require.InDelta(t, time.Minute, s.ExpiresIn, float64(20*time.Second))

	close(h.goOn)
	require.NoError(t, (<-first).err)
	s = state()
	require.Equal(t, once.Done, s.Phase)
	require.Equal(t, "paid", string(s.Result))
	require.InDelta(t, time.Hour, s.ExpiresIn, float64(20*time.Second))
}

func forgetsOnDemand(t *testing.T, make newOnce) {
	o := make(t, once.Config{})
	require.NoError(t, o.Forget(t.Context(), "price:7"))
	require.NoError(t, do(t.Context(), o, "price:7", answers("1")).err)
	require.NoError(t, o.Forget(t.Context(), "price:7"))
	require.Equal(t, outcome{"2", false, nil}, do(t.Context(), o, "price:7", answers("2")))
}

func resultsAreForgottenInTheEnd(t *testing.T, make newOnce) {
	o := make(t, once.Config{Done: 100 * time.Millisecond})
	require.NoError(t, do(t.Context(), o, "price:7", answers("1")).err)
	require.Eventually(t, func() bool {
		return do(t.Context(), o, "price:7", answers("2")).result == "2"
	}, time.Minute, 20*time.Millisecond)
}

func manyProcessesOneRun(t *testing.T, make newOnce) {
	var runs atomic.Int64
	var all sync.WaitGroup
	for range 5 {
		o := make(t, once.Config{})
		for range 10 {
			all.Go(func() {
				got := do(t.Context(), o, "order:7", func(context.Context, *lease.Lease) ([]byte, error) {
					runs.Add(1)
					return []byte("paid"), nil
				})
				if got.err != nil || got.result != "paid" {
					t.Errorf("got %+v", got)
				}
			})
		}
	}
	all.Wait()
	require.EqualValues(t, 1, runs.Load())
}

func theRunnerMayOutliveItsCaller(t *testing.T, make newOnce) {
	o := make(t, once.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	got := do(ctx, o, "order:7", func(work context.Context, _ *lease.Lease) ([]byte, error) {
		cancel()
		<-work.Done()
		return []byte("paid all the same"), nil
	})
	require.Equal(t, "paid all the same", got.result)
	if got.err != nil { // it took longer than a moment, and goes on
		require.ErrorIs(t, got.err, once.ErrNotRecorded)
		require.ErrorIs(t, got.err, context.Canceled)
	}
	require.Equal(t, outcome{"paid all the same", true, nil}, do(t.Context(), make(t, once.Config{}), "order:7", forbidden(t)))
}

func TestRights(t *testing.T) {
	t.Parallel()
	leasetest.RunRights(t, "lease/once", func(ctx context.Context, t *testing.T, client, admin redis.UniversalClient, namespace string, try func(error) error) {
		bounded := ctx
		cfg := once.Config{Namespace: namespace}
		o, err := once.New(client, cfg)
		others, err2 := once.New(admin, cfg)
		if try(err) != nil || try(err2) != nil {
			return
		}
		defer func() { try(o.Close(ctx)); try(others.Close(ctx)) }()
		paid := func(context.Context, *lease.Lease) ([]byte, error) { return []byte("paid"), nil }
		for range 2 { // run, and replayed
			_, _, err = o.Do(ctx, "a", nil, paid)
			try(err)
		}
		_, _, err = o.Do(ctx, "a", nil, paid, once.NoWait())
		try(err)
		_, err = o.State(ctx, "a")
		try(err)
		try(o.Forget(ctx, "a"))

		// A runner whose claim another waits for, first theirs and then ours.
		for n, pair := range [][2]*once.Once{{others, o}, {o, others}} {
			key := []string{"b", "c"}[n]
			running, waited := make(chan struct{}), make(chan error, 1)
			_, _, err = pair[0].Do(ctx, key, nil, func(ctx context.Context, claim *lease.Lease) ([]byte, error) {
				try(claim.Extend(ctx))
				close(running)
				go func() {
					_, _, err := pair[1].Do(bounded, key, nil, paid)
					waited <- err
				}()
				keys := protocol.KeysOf(protocol.LeaseKind, namespace, "once:"+key, false)
				leasetest.AwaitListener(ctx, admin, keys.Queue.(string), keys.Channel.(string),
					func() bool { return len(waited) > 0 })
				return []byte("paid"), nil
			})
			try(err)
			select {
			case <-running:
				try(<-waited)
			default:
			}
		}

		// After a lost reply a run leaves a note of its call.
		faults := new(faulty.Redis)
		client.AddHook(faults)
		faults.First(faulty.LoseReply)
		for range 2 {
			_, _, err = o.Do(ctx, "d", nil, paid)
			try(err)
			try(o.Forget(ctx, "d"))
		}
		faults.Always(faulty.None)
	})
}

func TestRefusalsHaveOneErrorEach(t *testing.T) {
	t.Parallel()
	keys := func(t *testing.T, client *redis.Client) *once.Once {
		o, err := once.New(client, once.Config{InFlight: time.Minute})
		require.NoError(t, err)
		return o
	}
	paid := func(context.Context, *lease.Lease) ([]byte, error) { return []byte("paid"), nil }
	leasetest.Refusals(t, map[string]leasetest.Request{
		"run": {Effect: leasetest.Writes, Prepare: func(t *testing.T, client *redis.Client) func() error {
			o := keys(t, client)
			return func() error { _, _, err := o.Do(t.Context(), "run", nil, paid, once.NoWait()); return err }
		}},
		"record": {Effect: leasetest.Writes, Prepare: func(t *testing.T, client *redis.Client) func() error {
			o, begun, end, done := keys(t, client), make(chan struct{}), make(chan struct{}), make(chan error, 1)
			go func() {
				_, _, err := o.Do(t.Context(), "record", nil, func(ctx context.Context, l *lease.Lease) ([]byte, error) {
					close(begun)
					<-end
					return paid(ctx, l)
				})
				done <- err
			}()
			<-begun
			return func() error {
				close(end)
				err := <-done
				require.ErrorIs(t, err, once.ErrNotRecorded)
				return err
			}
		}},
		"forget": {Effect: leasetest.Frees, Prepare: func(t *testing.T, client *redis.Client) func() error {
			o := keys(t, client)
			_, _, err := o.Do(t.Context(), "forget", nil, paid)
			require.NoError(t, err)
			return func() error { return o.Forget(t.Context(), "forget") }
		}},
		"state": {Effect: leasetest.Reads, Prepare: func(t *testing.T, client *redis.Client) func() error {
			o := keys(t, client)
			return func() error { _, err := o.State(t.Context(), "state"); return err }
		}},
	})
}
