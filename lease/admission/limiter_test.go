package admission_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/protocol"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/lease/admission"
)

const ms = time.Millisecond

// admitted is one admission as its caller saw it: the judgement fell between the two times.
type admitted struct {
	sent, answered time.Time
	count          int
}

// crowd lets 64 callers ask as soon as it can be of use, until enough says so, and returns all
// admissions.
func crowd(t *testing.T, l *admission.Limiter, enough func(admitted) bool) (all []admitted) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var mu sync.Mutex
	var callers sync.WaitGroup
	for range 64 {
		callers.Go(func() {
			for ctx.Err() == nil {
				a := admitted{sent: time.Now()}
				d, err := l.Allow(t.Context(), "tenant:7")
				if err != nil || d.Err != nil {
					t.Errorf("%v, %v", err, d.Err)
					return
				}
				if !d.Allowed {
					select {
					case <-time.After(d.RetryAfter):
					case <-ctx.Done():
					}
					continue
				}
				a.answered, a.count = time.Now(), d.Count
				mu.Lock()
				all = append(all, a)
				if enough(a) {
					stop()
				}
				mu.Unlock()
			}
		})
	}
	callers.Wait()
	return all
}

// requireAtMost checks by the callers' clocks that no span of that length saw more than limit
// admissions. The nth judgement came no sooner than the nth request and no later than the nth
// answer.
func requireAtMost(t *testing.T, limit int, span time.Duration, all []admitted) {
	t.Helper()
	var sent, answered []time.Time
	for _, a := range all {
		sent, answered = append(sent, a.sent), append(answered, a.answered)
	}
	slices.SortFunc(sent, time.Time.Compare)
	slices.SortFunc(answered, time.Time.Compare)
	for n := range len(all) - limit {
		require.GreaterOrEqual(t, answered[n+limit].Sub(sent[n])+ms, span, "admissions %d to %d", n, n+limit)
	}
}

func TestThirtyFixedWindowsAreNeverMoreThanFull(t *testing.T) {
	t.Parallel()
	const limit, window, windows = 20, 250 * ms, 30 // on a busy machine too, demand exceeds the limit in each of them
	l := newWorld(t).limiter(t, admission.Config{Limit: limit, Window: window})
	begun := 0
	all := crowd(t, l, func(a admitted) bool {
		if a.count == 1 {
			begun++
		}
		return begun > windows
	})

	times := make(map[int]int) // how often each count was given out: once in each window
	for _, a := range all {
		times[a.count]++
	}
	require.Equal(t, windows+1, times[1], "the last one has only begun")
	for count := 2; count <= limit; count++ {
		require.GreaterOrEqual(t, times[count], windows/3, "count %d; while a machine stalls, a window stays half empty", count)
		require.LessOrEqual(t, times[count], windows+1, "count %d", count)
	}
	require.Len(t, times, limit, "never above the limit")
	requireAtMost(t, 2*limit, window, all)
	elapsed := all[len(all)-1].answered.Sub(all[0].sent)
	require.LessOrEqual(t, len(all), limit*(int(elapsed/window)+1))
}

func TestASlidingWindowHoldsWhereverItIsLaid(t *testing.T) {
	t.Parallel()
	const limit, window, windows = 20, 60 * ms, 30
	l := newWorld(t).limiter(t, admission.Config{Limit: limit, Window: window, Sliding: true})
	n := 0
	all := crowd(t, l, func(admitted) bool { n++; return n >= limit*windows })
	requireAtMost(t, limit, window, all)
}

func TestRetryAfterIsExact(t *testing.T) {
	for name, sliding := range map[string]bool{"fixed": false, "sliding": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				l := w.limiter(t, admission.Config{Limit: 2, Window: time.Second, Sliding: sliding})
				requireAdmitted(t, l, "a")
				time.Sleep(300 * ms)
				requireAdmitted(t, l, "a")
				time.Sleep(300 * ms)
				d := requireRefused(t, l, "a")
				require.InDelta(t, 400*ms, d.RetryAfter, float64(ms))
				require.InDelta(t, map[bool]time.Duration{false: 400 * ms, true: 700 * ms}[sliding], d.ResetAfter, float64(ms))
				time.Sleep(d.RetryAfter - 2*ms)
				requireRefused(t, l, "a")
				time.Sleep(2 * ms)
				requireAdmitted(t, l, "a")
				if sliding {
					d := requireRefused(t, l, "a")
					require.Equal(t, 300*ms, d.RetryAfter, "the second leaves")
				}
			})
		})
	}
}

func TestALimitThatWasCutWaitsForMoreThanTheOldest(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		three := w.limiter(t, admission.Config{Limit: 3, Window: time.Second, Sliding: true})
		for range 3 {
			requireAdmitted(t, three, "a")
			time.Sleep(100 * ms)
		}
		one := w.limiter(t, admission.Config{Limit: 1, Window: time.Second, Sliding: true})
		require.Equal(t, 900*ms, requireRefused(t, one, "a").RetryAfter)
	})
}

func TestAnExpiryThatWentMissingHeals(t *testing.T) {
	t.Parallel()
	for kind, sliding := range map[string]bool{"fixed": false, "sliding": true} {
		w := newWorld(t)
		l := w.limiter(t, admission.Config{Limit: 1, Window: time.Minute, Sliding: sliding})
		requireAdmitted(t, l, "a")
		key := "admission:v1:{" + w.namespace + "/a}:" + kind
		require.True(t, w.client.Persist(t.Context(), key).Val())
		d := requireRefused(t, l, "a")
		require.LessOrEqual(t, d.RetryAfter, time.Minute+ms)
		require.Positive(t, w.client.PTTL(t.Context(), key).Val())
	}
}

func TestEveryAdmissionLeavesAnExpiry(t *testing.T) {
	t.Parallel()
	for kind, sliding := range map[string]bool{"fixed": false, "sliding": true} {
		w := newWorld(t)
		requireAdmitted(t, w.limiter(t, admission.Config{Limit: 5, Window: time.Minute, Sliding: sliding}), "a")
		left := w.client.PTTL(t.Context(), "admission:v1:{"+w.namespace+"/a}:"+kind).Val()
		require.Positive(t, left)
		require.LessOrEqual(t, left, time.Minute+ms)
	}
}

// Redis begins a script some time before the script reads the clock, on a machine that stands still
// in between. The log stays until its newest entry has left the window all the same.
func TestTheLogOfASlowScriptOutlivesItsWindow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, window := range []time.Duration{ms, 2 * ms, 10 * ms, time.Second, 366 * 24 * time.Hour} {
		var answer []float64
		for tries := 1; len(answer) < 4; tries++ { // a machine that stands still lets the window pass meanwhile
			require.Less(t, tries, 20, "the log is gone, each time")
			var err error
			answer, err = w.client.Eval(t.Context(), `
			local admit = function()
				`+protocol.AdmissionSliding.Source+`
			end
			for _ = 1, 3000000 do end -- takes some milliseconds
			local newest = {} -- entry and its log's expiry, microseconds
			for n = 1, 2 do
				admit() -- the second finds a log without an expiry
				newest[2 * n - 1] = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2]
				newest[2 * n] = string.format('%.0f', redis.call('PEXPIRETIME', KEYS[1]) * 1000)
				redis.call('PERSIST', KEYS[1])
				ARGV[3] = 'ffffffff-0000-4000-8000-000000000000'
			end
			return newest`,
				[]string{"admission:v1:{" + w.namespace + "/" + window.String() + uuid.NewString() + "}:sliding"},
				1, window.Milliseconds(), uuid.NewString()).Float64Slice()
			require.NoError(t, err)
		}
		for n := range 2 {
			entered, expires := time.UnixMicro(int64(answer[2*n])), time.UnixMicro(int64(answer[2*n+1]))
			require.GreaterOrEqual(t, expires.Sub(entered), window, "admission %d", n+1)
		}
	}
}

func TestEntriesFromTheFutureDoNotBlockForLong(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.limiter(t, admission.Config{Limit: 2, Window: time.Minute, Sliding: true})
	requireAdmitted(t, l, "a")
	key := "admission:v1:{" + w.namespace + "/a}:sliding"
	later := float64(time.Now().Add(time.Hour).UnixMicro())
	require.NoError(t, w.client.ZAdd(t.Context(), key, redis.Z{Score: later, Member: "x"}).Err())
	d := requireRefused(t, l, "a")
	require.LessOrEqual(t, d.ResetAfter, time.Minute)
}

func TestWithoutADecision(t *testing.T) {
	for name, policy := range map[string]admission.Policy{"open": admission.FailOpen, "closed": admission.FailClosed} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				l := w.limiter(t, admission.Config{Limit: 2, Window: time.Second, OnError: policy, Timeout: 300 * ms})
				for _, fault := range []faulty.Fault{faulty.LoseRequest, faulty.Hang} {
					w.faults.Always(fault)
					start := time.Now()
					d, err := l.Allow(t.Context(), "a")
					require.NoError(t, err)
					require.LessOrEqual(t, time.Since(start), 300*ms)
					require.ErrorIs(t, d.Err, lease.ErrUnreachable)
					require.Equal(t, policy == admission.FailOpen, d.Allowed)
					require.Equal(t, 2, d.Limit)
				}
			})
		})
	}
}

// Not by a fault in the client, but by a server that accepts requests and does not answer.
func TestAServerThatIsStoppedTakesNoLongerThanTimeout(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	var limiters []*admission.Limiter
	options := *server.Client().Options()
	options.ReadTimeout = time.Hour // the client's own bound
	client := redis.NewClient(&options)
	t.Cleanup(func() { _ = client.Close() })
	for _, client := range []*redis.Client{client, directClient(t, client)} {
		l := (&world{client: client, namespace: "test"}).limiter(t, admission.Config{Limit: 10, Window: time.Minute, Timeout: 300 * ms})
		require.Eventually(t, func() bool { return allow(t, l, "a").Allowed }, time.Minute, ms) // connected
		limiters = append(limiters, l)
	}
	server.Pause()
	for _, l := range limiters {
		d, err := l.Allow(t.Context(), "a")
		require.NoError(t, err)
		require.ErrorIs(t, d.Err, lease.ErrUnreachable)
	}
	server.Resume()
}

func TestWhatRedisRefusesIsNoDecision(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for kind, sliding := range map[string]bool{"fixed": false, "sliding": true} {
		l := w.limiter(t, admission.Config{Limit: 2, Window: time.Second, Sliding: sliding})
		key := "admission:v1:{" + w.namespace + "/a}:" + kind
		require.NoError(t, w.client.RPush(t.Context(), key, "x").Err())
		d, err := l.Allow(t.Context(), "a")
		require.NoError(t, err)
		require.ErrorIs(t, d.Err, lease.ErrCorrupt)
		require.False(t, d.Allowed)
		require.NoError(t, w.client.Del(t.Context(), key).Err())
	}
	l := w.limiter(t, admission.Config{Limit: 2, Window: time.Second})
	for _, value := range []string{"x", "-1", "1.5", "1000000000000000"} {
		require.NoError(t, w.client.Set(t.Context(), "admission:v1:{"+w.namespace+"/a}:fixed", value, time.Minute).Err())
		d, err := l.Allow(t.Context(), "a")
		require.NoError(t, err)
		require.ErrorIs(t, d.Err, lease.ErrCorrupt, value)
	}
}

// The script removes the last entry of the key, and a master that gives the slot away has no answer
// for a key that it lacks.
func TestAScriptThatEndsInTheMiddleIsNoDecision(t *testing.T) {
	t.Parallel()
	cluster := testenv.Cluster(t)
	client := cluster.Client()
	l := (&world{client: client, namespace: "moving"}).limiter(t, admission.Config{Limit: 1, Window: time.Minute, Sliding: true})
	require.True(t, allow(t, l, "a").Allowed)
	key := "admission:v1:{moving/a}:sliding"
	cluster.BeginMove(cluster.Slot(key))
	entry := client.ZRange(t.Context(), key, 0, 0).Val()[0]
	require.NoError(t, client.ZAddXX(t.Context(), key, redis.Z{Score: 1, Member: entry}).Err())

	d, err := l.Allow(t.Context(), "a")
	require.NoError(t, err)
	require.ErrorIs(t, d.Err, lease.ErrUnreachable)

	cluster.FinishMove(cluster.Slot(key))
	require.True(t, allow(t, l, "a").Allowed)
}

func TestTheCallersContext(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		l := w.limiter(t, admission.Config{Limit: 2, Window: time.Second, OnError: admission.FailOpen})
		gone := errors.New("the client has gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(ms, func() { cancel(gone) })
		w.faults.Always(faulty.Hang)
		d, err := l.Allow(ctx, "a")
		require.NoError(t, err)
		require.ErrorIs(t, d.Err, gone)

		w.faults.Set(func(faulty.Request) faulty.Fault { t.Error("asked"); return faulty.None })
		d, err = l.Allow(ctx, "a")
		require.ErrorIs(t, err, gone)
		require.False(t, d.Allowed, "nobody is there any more")
	})
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	good := admission.Config{Limit: 1, Window: time.Second, OnError: admission.FailOpen}
	for name, change := range map[string]func(*admission.Config){
		"no limit":             func(c *admission.Config) { c.Limit = 0 },
		"negative limit":       func(c *admission.Config) { c.Limit = -1 },
		"limit too great":      func(c *admission.Config) { c.Limit = 1_000_000_001 },
		"log too long":         func(c *admission.Config) { c.Limit, c.Sliding = 10_001, true },
		"no window":            func(c *admission.Config) { c.Window = 0 },
		"window below 1ms":     func(c *admission.Config) { c.Window = ms - 1 },
		"window above a year":  func(c *admission.Config) { c.Window = 366*24*time.Hour + ms },
		"no policy":            func(c *admission.Config) { c.OnError = 0 },
		"unknown policy":       func(c *admission.Config) { c.OnError = 3 },
		"negative timeout":     func(c *admission.Config) { c.Timeout = -1 },
		"namespace too long":   func(c *admission.Config) { c.Namespace = strings.Repeat("x", 129) },
		"namespace no text":    func(c *admission.Config) { c.Namespace = "\xff" },
		"namespace with a NUL": func(c *admission.Config) { c.Namespace = "a\x00" },
	} {
		cfg := good
		change(&cfg)
		_, err := admission.New(w.client, cfg)
		require.ErrorIs(t, err, lease.ErrInvalid, name)
	}
	_, err := admission.New((*redis.Client)(nil), good)
	require.ErrorIs(t, err, lease.ErrInvalid)
	_, err = admission.New(nil, good)
	require.ErrorIs(t, err, lease.ErrInvalid)
	for name, key := range map[string]string{
		"empty": "", "too long": strings.Repeat("x", admission.MaxKey+1), "no text": "\xff", "NUL": "a\x00b",
	} {
		d, err := w.limiter(t, good).Allow(t.Context(), key)
		require.ErrorIs(t, err, lease.ErrInvalid, name)
		require.False(t, d.Allowed, name)
	}
}

// BenchmarkAllow compares a judgement with the cheapest round trip there is, asked in turns in the
// same run.
func BenchmarkAllow(b *testing.B) {
	client, namespace := directClient(b, testenv.Redis(b)), testenv.Namespace(b)
	l, err := admission.New(client, admission.Config{
		Limit: 1_000_000_000, Window: time.Hour, OnError: admission.FailClosed,
		Namespace: namespace, Timeout: time.Minute,
	})
	require.NoError(b, err)
	requests := []func() error{
		func() error { return client.Incr(b.Context(), namespace+":incr").Err() },
		func() error {
			d, err := l.Allow(b.Context(), "a")
			return errors.Join(err, d.Err)
		},
	}
	var took [2][]time.Duration
	for n := 0; b.Loop(); n++ {
		which := n / 2 % 2 // twice the same, so that both meet both as their predecessor
		start := time.Now()
		err := requests[which]()
		took[which] = append(took[which], time.Since(start))
		if err != nil {
			b.Fatal(err)
		}
	}
	var p50 [2]float64
	for which, durations := range took {
		slices.Sort(durations)
		p50[which] = float64(durations[len(durations)/2].Nanoseconds()) / 1000
	}
	b.ReportMetric(p50[0], "µs-INCR-p50")
	b.ReportMetric(p50[1], "µs-Allow-p50")
	b.ReportMetric(p50[1]/p50[0], "ratio-p50")
}

type decisions struct {
	starts []admission.TraceStart
	ends   []admission.TraceEnd
}

func (d *decisions) TraceAdmissionStart(ctx context.Context, s admission.TraceStart) context.Context {
	d.starts = append(d.starts, s)
	return context.WithValue(ctx, d, s.Key)
}

func (d *decisions) TraceAdmissionEnd(ctx context.Context, e admission.TraceEnd) {
	if ctx.Value(d) == e.Key {
		d.ends = append(d.ends, e)
	}
}

func TestTracersAreToldOfEachDecision(t *testing.T) {
	t.Parallel()
	first, second := new(decisions), new(decisions)
	namespace := testenv.Namespace(t)
	cfg := admission.Config{Limit: 1, Window: time.Hour, OnError: admission.FailOpen, Timeout: 10 * time.Second,
		Namespace: namespace, HashKeys: true, Tracers: []admission.Tracer{first, second}}
	l, err := admission.New(testenv.Redis(t), cfg)
	require.NoError(t, err)
	for range 2 {
		_, err := l.Allow(t.Context(), "tenant:7")
		require.NoError(t, err)
	}
	_, err = l.Allow(t.Context(), "")
	require.ErrorIs(t, err, lease.ErrInvalid, "nothing is decided")
	away, err := admission.New(redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}), cfg)
	require.NoError(t, err)
	_, err = away.Allow(t.Context(), "tenant:8")
	require.NoError(t, err)

	require.Equal(t, []admission.TraceStart{{namespace, "tenant:7"}, {namespace, "tenant:7"}, {namespace, "tenant:8"}}, first.starts)
	require.Len(t, first.ends, 3)
	require.True(t, first.ends[0].Decision.Allowed)
	require.Positive(t, first.ends[0].Took)
	require.Positive(t, first.ends[1].Decision.RetryAfter)
	require.ErrorIs(t, first.ends[2].Decision.Err, lease.ErrUnreachable)
	require.True(t, first.ends[2].Decision.Allowed)
	require.Equal(t, first, second)
}
