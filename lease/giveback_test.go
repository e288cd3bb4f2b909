package lease_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/protocol"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

// disturbances pass. A release in one of them is carried out when it has passed, whoever has
// stopped waiting for it.
var disturbances = map[string]struct {
	answer string // "" is silence
	want   error
}{
	"silence":       {"", lease.ErrUnreachable},
	"restart":       {"LOADING Redis is loading the dataset in memory", &lease.RefusedError{Code: "LOADING"}},
	"fail-over":     {"READONLY You can't write against a read only replica.", &lease.RefusedError{Code: "READONLY"}},
	"moving slot":   {"TRYAGAIN Multiple keys request during rehashing of slot", &lease.RefusedError{Code: "CLUSTERDOWN"}},
	"cluster down":  {"CLUSTERDOWN The cluster is down", &lease.RefusedError{Code: "CLUSTERDOWN"}},
	"endless work":  {"BUSY Redis is busy running a script.", &lease.RefusedError{Code: "BUSY"}},
	"full of users": {"ERR max number of clients reached", &lease.RefusedError{Code: "BUSY"}},
}

func TestAReleaseOutlastsADisturbance(t *testing.T) {
	for name, disturbance := range disturbances {
		begin := func(w *world) {
			w.faults.Always(faulty.LoseRequest)
			if disturbance.answer != "" {
				w.faults.Always(faulty.None)
				w.memory.SetError(disturbance.answer)
			}
		}
		end := func(w *world) {
			w.faults.Always(faulty.None)
			w.memory.SetError("")
		}
		for _, lasting := range []time.Duration{time.Second, 4 * time.Second, 20 * time.Second} {
			t.Run(name+" "+lasting.String(), func(t *testing.T) {
				inBubble(t, func(t *testing.T, w *world) {
					i := w.issuer(t, lease.Config{TTL: 30 * time.Second, RenewEvery: lease.Never})
					free := func() {
						t.Helper()
						require.Empty(t, w.client.Get(t.Context(), w.key("a", "owner")).Val())
					}
					l := try(t, i, "a")
					begin(w)
					time.AfterFunc(lasting, func() { end(w) })
					start := time.Now()
					err := l.Release(t.Context())
					if lasting < 5*time.Second {
						require.NoError(t, err)
						require.Less(t, time.Since(start), lasting+550*ms)
					} else {
						require.ErrorIs(t, err, disturbance.want)
						require.Equal(t, 5*time.Second, time.Since(start))
						time.Sleep(time.Until(start.Add(lasting + 550*ms)))
						require.NoError(t, l.Release(t.Context()), "the outcome of the release that went on")
					}
					free()

					// Do waits for no more than its caller does, and what passes is no error of it.
					ctx, cancel := context.WithTimeout(t.Context(), 500*ms)
					defer cancel()
					start = time.Now()
					require.NoError(t, i.Do(ctx, "a", func(context.Context, *lease.Lease) error {
						begin(w)
						time.AfterFunc(lasting, func() { end(w) })
						return nil
					}))
					require.LessOrEqual(t, time.Since(start), 550*ms)
					time.Sleep(time.Until(start.Add(lasting + 550*ms)))
					free()
				})
			})
		}
	}
}

// An outage must not make each call last longer whose work is done.
func TestDoWaitsForOneAttemptToRelease(t *testing.T) {
	for name, c := range map[string]struct {
		over   bool // the lease, when the work returns
		took   time.Duration
		answer error
	}{
		"while it holds":  {false, 2500*ms + protocol.Grace, nil},
		"when it is over": {true, 0, lease.ErrWorkDone},
	} {
		work := func(w *world, l *lease.Lease, ended *time.Time) {
			w.faults.Always(faulty.Hang)
			if c.over {
				<-l.Context().Done()
			}
			*ended = time.Now()
		}
		for call, do := range map[string]func(ctx context.Context, w *world, cfg lease.Config) (time.Time, error){
			"Do": func(ctx context.Context, w *world, cfg lease.Config) (ended time.Time, err error) {
				err = w.issuer(t, cfg).Do(ctx, "a", func(_ context.Context, l *lease.Lease) error { work(w, l, &ended); return nil })
				return ended, err
			},
			"DoAll": func(ctx context.Context, w *world, cfg lease.Config) (ended time.Time, err error) {
				err = w.issuer(t, cfg).DoAll(ctx, []string{"a", "b"}, func(_ context.Context, ls lease.Leases) error {
					work(w, ls[0], &ended)
					return nil
				})
				return ended, err
			},
			"Semaphore": func(ctx context.Context, w *world, cfg lease.Config) (ended time.Time, err error) {
				s, err := lease.NewSemaphore(w.client, lease.SemaphoreConfig{Limit: 2, Lease: cfg})
				require.NoError(t, err)
				err = s.Do(ctx, "a", func(_ context.Context, l *lease.Lease) error { work(w, l, &ended); return nil })
				return ended, err
			},
			"GiveBack": func(ctx context.Context, w *world, cfg lease.Config) (ended time.Time, err error) {
				ls, err := w.issuer(t, cfg).AcquireAll(ctx, []string{"a"})
				require.NoError(t, err)
				work(w, ls[0], &ended)
				ls.GiveBack(ctx)
				return ended, c.answer
			},
		} {
			t.Run(call+" "+name, func(t *testing.T) {
				inBubble(t, func(t *testing.T, w *world) {
					ended, err := do(t.Context(), w, lease.Config{TTL: 10 * time.Second})
					require.ErrorIs(t, err, c.answer)
					require.Equal(t, c.took, time.Since(ended))
					w.faults.Always(faulty.None)
					time.Sleep(5 * time.Second)
					require.Empty(t, w.client.Keys(t.Context(), "*:owner").Val(), "the release has gone on")
				})
			})
		}
	}
}

// It is not tried for longer than the lease can last.
func TestAReleaseGivesUpWhenTheLeaseHasRunOut(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		l := try(t, w.issuer(t, lease.Config{TTL: 9 * time.Second, RenewEvery: lease.Never}), "a")
		w.faults.Always(faulty.LoseRequest)
		require.ErrorIs(t, l.Release(t.Context()), lease.ErrUnreachable)
		time.Sleep(5 * time.Second)
		w.faults.Always(faulty.None)
		time.Sleep(time.Second)
		require.NoError(t, l.Release(t.Context()), "it is asked once more, and gone, perhaps by a request that went unanswered")
	})
}

func TestAReleaseOutlastsARestart(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t, "--appendonly", "yes", "--appendfsync", "always")
	w := worldOn(t, server.Client())
	l := try(t, w.issuer(t, lease.Config{TTL: time.Minute, RenewEvery: lease.Never}), "a")
	server.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), 200*ms)
	defer cancel()
	require.ErrorIs(t, l.Release(ctx), lease.ErrUnreachable)
	server.Restart()
	require.Eventually(t, func() bool { return w.client.Get(t.Context(), w.key("a", "owner")).Val() == "" }, time.Minute, 10*ms)
}

// The keys of a resource are moved one by one. Until the last has come, a script that needs several
// is refused by both sides.
func TestAReleaseOutlastsAMovingSlot(t *testing.T) {
	t.Parallel()
	cluster := testenv.Cluster(t)
	w := &world{client: cluster.Client(), namespace: "cluster"}
	l := try(t, w.issuer(t, lease.Config{TTL: time.Minute, RenewEvery: lease.Never}), "a")
	slot := cluster.Slot(w.key("a", "owner"))
	from := cluster.Owner(slot)
	cluster.BeginMove(slot)
	to := cluster.Nodes()[0]
	for n, node := range cluster.Nodes() {
		if node == from {
			to = cluster.Nodes()[(n+1)%3]
		}
	}
	host, port, err := net.SplitHostPort(to.Addr())
	require.NoError(t, err)
	require.NoError(t, from.Client().Do(t.Context(), "MIGRATE", host, port, w.key("a", "fence"), 0, 5000).Err())

	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	err = l.Release(ctx)
	require.ErrorIs(t, err, &lease.RefusedError{Code: "CLUSTERDOWN"})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	cluster.FinishMove(slot)
	require.Eventually(t, func() bool { return w.client.Get(t.Context(), w.key("a", "owner")).Val() == "" }, time.Minute, 10*ms)
	require.NoError(t, l.Release(t.Context()))
}

func TestClose(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: 30 * time.Second})
		var held lease.Leases
		for n := range 50 {
			held = append(held, try(t, i, "a"+itoa(int64(n))))
		}
		others := try(t, w.issuer(t, lease.Config{TTL: 30 * time.Second}), "others")
		waiting := make(chan error, 2)
		go func() {
			_, err := i.Acquire(context.Background(), "others")
			waiting <- err
		}()
		go func() {
			_, err := i.AcquireAll(context.Background(), []string{"free", "others"})
			waiting <- err
		}()
		time.Sleep(time.Second)

		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				if err := i.Close(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		for _, l := range held {
			require.ErrorIs(t, context.Cause(l.Context()), lease.ErrReleased)
			require.Empty(t, w.client.Get(t.Context(), w.key(l.Resource(), "owner")).Val())
			require.NoError(t, l.Release(t.Context()), "by Close")
		}
		for range 2 {
			require.ErrorIs(t, <-waiting, lease.ErrClosed)
		}
		require.Empty(t, w.client.Get(t.Context(), w.key("free", "owner")).Val())
		found, err := i.Inspect(t.Context(), "others")
		require.NoError(t, err)
		require.Zero(t, found.Waiters)
		require.NoError(t, others.Err())

		ctx := t.Context()
		w.faults.Set(func(faulty.Request) faulty.Fault { t.Error("Redis was asked for a lease"); return faulty.None })
		_, err = i.Acquire(ctx, "b", lease.NoWait())
		require.ErrorIs(t, err, lease.ErrClosed)
		require.NotErrorIs(t, err, lease.ErrHeld)
		_, err = i.Acquire(ctx, "b")
		require.ErrorIs(t, err, lease.ErrClosed)
		_, err = i.AcquireAll(ctx, []string{"b", "c"})
		require.ErrorIs(t, err, lease.ErrClosed)
		require.ErrorIs(t, i.Do(ctx, "b", func(context.Context, *lease.Lease) error { t.Error("it ran"); return nil }), lease.ErrClosed)
		w.faults.Always(faulty.None)
		_, err = i.Inspect(ctx, "b")
		require.NoError(t, err, "asking goes on")
		require.NoError(t, i.Close(ctx), "and once more")
	})
}

// Work that was under way when Close began learns of it, and what its acquisition gets in the
// meantime goes back.
func TestCloseDuringAnAcquisition(t *testing.T) {
	for name, fault := range map[string]faulty.Fault{"hang": faulty.Hang, "reply lost": faulty.LoseReply} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				i := w.issuer(t, lease.Config{TTL: 30 * time.Second})
				w.faults.Always(fault)
				acquired := make(chan error, 1)
				go func() {
					_, err := i.Acquire(context.Background(), "a")
					acquired <- err
				}()
				time.Sleep(time.Second)
				time.AfterFunc(2*time.Second, func() { w.faults.Always(faulty.None) })
				start := time.Now()
				require.NoError(t, i.Close(t.Context()))
				require.Less(t, time.Since(start), 6*time.Second)
				require.ErrorIs(t, <-acquired, lease.ErrClosed)
				require.Empty(t, w.client.Get(t.Context(), w.key("a", "owner")).Val())
			})
		})
	}
}

// atTheSameTime is a context that ends while somebody looks at it, after everything else has.
type atTheSameTime struct {
	context.Context
	everything func()
}

func (c atTheSameTime) Err() error { return context.DeadlineExceeded }

func (c atTheSameTime) Done() <-chan struct{} {
	c.everything()
	done := make(chan struct{})
	close(done)
	return done
}

// On a busy processor both are noticed together.
func TestCloseWhoseContextEndsWithTheLastCall(t *testing.T) {
	for range 20 { // a select takes either
		inBubble(t, func(t *testing.T, w *world) {
			sealing, goOn, acquired := make(chan struct{}), make(chan struct{}), make(chan error, 1)
			i := w.issuer(t, lease.Config{TTL: 30 * time.Second, Seal: func(context.Context, ...lease.Grant) error {
				close(sealing)
				<-goOn
				return nil
			}})
			go func() {
				_, err := i.Acquire(context.Background(), "a")
				acquired <- err
			}()
			<-sealing
			require.NoError(t, i.Close(atTheSameTime{context.Background(), sync.OnceFunc(func() {
				close(goOn)
				require.ErrorIs(t, <-acquired, lease.ErrClosed)
				synctest.Wait()
			})}))
		})
	}
}

func TestCloseDuringASeal(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		sealing, goOn := make(chan struct{}), make(chan struct{})
		i := w.issuer(t, lease.Config{TTL: 30 * time.Second, Seal: func(context.Context, ...lease.Grant) error {
			close(sealing)
			<-goOn
			return nil
		}})
		acquired := make(chan error, 1)
		go func() {
			_, err := i.Acquire(context.Background(), "a", lease.NoWait())
			acquired <- err
		}()
		<-sealing
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, i.Close(ctx), context.DeadlineExceeded, "the call has not come to its end")
		close(goOn)
		require.ErrorIs(t, <-acquired, lease.ErrClosed)
		require.NoError(t, i.Close(t.Context()))
		require.Empty(t, w.client.Get(t.Context(), w.key("a", "owner")).Val())
	})
}

// holdBegins is a tracer that waits when a lease begins, which the issuer does not list yet.
type holdBegins struct{ granted, goOn chan struct{} }

func (h holdBegins) TraceLeaseStart(ctx context.Context, s lease.TraceStart) context.Context {
	if s.Op == lease.OpHold {
		close(h.granted)
		<-h.goOn
	}
	return ctx
}

func (holdBegins) TraceLeaseEnd(context.Context, lease.TraceEnd) {}

func TestCloseWhileALeaseIsGranted(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		h := holdBegins{make(chan struct{}), make(chan struct{})}
		i := w.issuer(t, lease.Config{TTL: 30 * time.Second, Tracers: []lease.Tracer{h}})
		acquired := make(chan error, 1)
		go func() {
			_, err := i.Acquire(context.Background(), "a", lease.NoWait())
			acquired <- err
		}()
		<-h.granted
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, i.Close(ctx), context.DeadlineExceeded, "the call has not come to its end")
		close(h.goOn)
		require.ErrorIs(t, <-acquired, lease.ErrClosed)
		require.NoError(t, i.Close(t.Context()))
		require.Empty(t, w.client.Get(t.Context(), w.key("a", "owner")).Val())
	})
}

// slowRelease is a tracer that takes its time when a release begins.
type slowRelease struct{}

func (slowRelease) TraceLeaseStart(ctx context.Context, s lease.TraceStart) context.Context {
	if s.Op == lease.OpRelease {
		time.Sleep(time.Second)
	}
	return ctx
}

func (slowRelease) TraceLeaseEnd(context.Context, lease.TraceEnd) {}

func TestCloseWaitsForAReleaseThatIsAboutToBeSent(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: 9 * time.Second, Tracers: []lease.Tracer{slowRelease{}}})
		l := try(t, i, "a")
		released := make(chan error, 1)
		go func() { released <- l.Release(t.Context()) }()
		time.Sleep(100 * ms)
		err := i.Close(t.Context())
		left := w.client.Get(t.Context(), w.key("a", "owner")).Val()
		require.NoError(t, <-released)
		require.NoError(t, err)
		require.Empty(t, left)
	})
}

func TestCloseSaysWhatStaysBlocked(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: 30 * time.Second, RenewEvery: lease.Never})
		try(t, i, "b")
		try(t, i, "a")
		time.Sleep(10 * time.Second)
		w.faults.Always(faulty.LoseRequest)
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := i.Close(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.LessOrEqual(t, time.Since(start), 1050*ms)
		var left *lease.NotGivenBackError
		require.ErrorAs(t, err, &left)
		require.Len(t, left.Blocked, 2)
		for n, resource := range []string{"a", "b"} {
			require.Equal(t, resource, left.Blocked[n].Resource)
			require.Equal(t, start.Add(30*time.Second), left.Blocked[n].Until, "Redis may have got a renewal as late as now")
			require.ErrorIs(t, left.Blocked[n].Err, lease.ErrUnreachable)
		}
		require.ErrorContains(t, err, `"a" until `)

		w.faults.Always(faulty.None)
		require.NoError(t, i.Close(t.Context()), "it went on")
		require.Empty(t, w.client.Get(t.Context(), w.key("a", "owner")).Val())
	})
}

func TestCloseSaysWhatWasRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: 30 * time.Second, RenewEvery: lease.Never})
		l := try(t, i, "a")
		w.memory.SetError("NOPERM this user has no permissions")
		var left *lease.NotGivenBackError
		require.ErrorAs(t, i.Close(t.Context()), &left)
		require.Equal(t, "a", left.Blocked[0].Resource)
		require.ErrorIs(t, left, &lease.RefusedError{Code: "NOPERM"})
		w.memory.SetError("")
		require.NoError(t, l.Release(t.Context()))
	})
}

func TestNothingRunsOnAfterClose(t *testing.T) {
	server := testenv.OwnRedis(t) // not parallel: other tests' goroutines must not come and go
	w := worldOn(t, server.Client())
	require.NoError(t, w.client.Ping(t.Context()).Err())
	before := goleak.IgnoreCurrent()
	i := w.issuer(t, lease.Config{TTL: time.Minute})
	others := w.issuer(t, lease.Config{TTL: time.Minute})
	l, err := others.Acquire(t.Context(), "held", lease.NoWait())
	require.NoError(t, err)
	for n := range 20 {
		_, err := i.Acquire(t.Context(), "a"+itoa(int64(n)), lease.NoWait())
		require.NoError(t, err)
	}
	waiting := make(chan error)
	go func() {
		_, err := i.Acquire(context.Background(), "held")
		waiting <- err
	}()
	require.Eventually(t, func() bool { return w.snapshot(t, "held").waiters == 1 }, time.Minute, ms)
	server.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 100*ms)
	defer cancel()
	_, err = i.Acquire(ctx, "free", lease.NoWait())
	require.ErrorIs(t, err, context.DeadlineExceeded)
	time.AfterFunc(200*ms, server.Resume)
	require.NoError(t, i.Close(t.Context()))
	require.ErrorIs(t, <-waiting, lease.ErrClosed)
	require.NoError(t, l.Release(t.Context()))
	require.NoError(t, others.Close(t.Context()))
	require.NoError(t, w.client.Close())
	goleak.VerifyNone(t, before)
}

// A process with many waiters is shut down, or loses its callers. Each of them has asked for a
// resource of its own.
func TestWhatIsCancelledAtOnceIsWithdrawnTogether(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		const waiters = 500
		var resources []string
		for n := range waiters {
			resources = append(resources, fmt.Sprint(n))
		}
		held, err := w.issuer(t, lease.Config{TTL: time.Minute}).AcquireAll(t.Context(), resources)
		require.NoError(t, err)
		i := w.issuer(t, lease.Config{TTL: time.Minute})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var all sync.WaitGroup
		for _, resource := range resources {
			all.Go(func() {
				_, err := i.Acquire(ctx, resource)
				assert.ErrorIs(t, err, lease.ErrHeld)
			})
		}
		time.Sleep(time.Second)
		require.EqualValues(t, 1, w.snapshot(t, "7").waiters)
		trips := &trips{each: 10 * ms}
		w.client.AddHook(trips)

		cancelled := time.Now()
		cancel()
		all.Wait()
		require.Zero(t, time.Since(cancelled), "nobody waits for the withdrawal")

		time.Sleep(time.Second)
		require.LessOrEqual(t, trips.n.Load(), int64(4), "two of 256 at most, each once more if it has to bring the script")
		for _, resource := range resources {
			require.Zero(t, w.snapshot(t, resource).waiters)
		}
		require.NoError(t, held.Release(t.Context()))
	})
}

// The answer about one resource does not hide that there was none about another, which is then
// withdrawn by an attempt of its own.
func TestWhatWasNotAnsweredIsWithdrawnAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		hook := new(oneAnswer)
		w.client.AddHook(hook)
		i := w.issuer(t, lease.Config{TTL: time.Minute})
		w.faults.Next("acquire", "a", 3, faulty.LoseReply)
		_, err := i.AcquireAll(t.Context(), []string{"a", "b"}, lease.NoWait())
		require.ErrorIs(t, err, lease.ErrUnreachable)
		time.Sleep(time.Second)
		require.True(t, hook.given.Load())
		try(t, i, "a")
	})
}

// oneAnswer is a hook that leaves the first pipeline of scripts without an answer, except for the
// last of them.
type oneAnswer struct {
	faulty.Redis
	given atomic.Bool
}

func (h *oneAnswer) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if !strings.HasPrefix(cmds[0].Name(), "eval") || h.given.Swap(true) {
			return next(ctx, cmds)
		}
		for _, cmd := range cmds {
			cmd.SetErr(io.ErrUnexpectedEOF)
		}
		last := cmds[len(cmds)-1].(interface {
			SetErr(error)
			SetVal(any)
		})
		last.SetErr(nil)
		last.SetVal([]any{"corrupt", "b", "is odd"})
		return io.ErrUnexpectedEOF
	}
}

// trips is a hook that counts round trips.
type trips struct {
	faulty.Redis
	each time.Duration // how long one takes
	n    atomic.Int64
}

func (h *trips) count() {
	h.n.Add(1)
	time.Sleep(h.each)
}

func (h *trips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { h.count(); return next(ctx, cmd) }
}

func (h *trips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { h.count(); return next(ctx, cmds) }
}

// counts are the requests to run scripts: a pipeline is one.
type counts struct {
	faulty.Redis
	requests atomic.Int64
}

func (c *counts) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if strings.HasPrefix(cmd.Name(), "eval") {
			c.requests.Add(1)
		}
		return next(ctx, cmd)
	}
}

func (c *counts) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if strings.HasPrefix(cmds[0].Name(), "eval") {
			c.requests.Add(1)
		}
		return next(ctx, cmds)
	}
}

func TestCloseReleasesManyInOneRequest(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: time.Minute})
		require.NoError(t, try(t, i, "a").Release(t.Context())) // from now on the scripts are known
		ls, err := i.AcquireAll(t.Context(), many(1000), lease.NoWait())
		require.NoError(t, err)
		asked := new(counts)
		w.client.AddHook(asked)

		require.NoError(t, i.Close(t.Context()))

		require.LessOrEqual(t, asked.requests.Load(), int64(4))
		require.ErrorIs(t, ls[999].Err(), lease.ErrClosed)
		require.Zero(t, w.client.Exists(t.Context(), w.key(ls[999].Resource(), "owner")).Val())
	})
}

// Close does not wait for a request that the client never ends when what it may have been granted
// has expired.
func TestCloseDoesNotWaitForWhatHasExpired(t *testing.T) {
	for name, hang := range map[string]func(){
		"a client that waits for ever":   func() { time.Sleep(time.Hour) },
		"a hook that ends its goroutine": runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				i := w.issuer(t, lease.Config{TTL: 10 * time.Second})
				stuck := &stuck{hang: hang}
				w.client.AddHook(stuck)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if _, err := i.Acquire(ctx, "a"); err != nil { // a request whose goroutine has ended is sent again
					require.ErrorIs(t, err, lease.ErrUnreachable)
				}

				began := time.Now()
				closing, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				require.NoError(t, i.Close(closing))
				require.LessOrEqual(t, time.Since(began), 10*time.Second)
				time.Sleep(time.Hour)
			})
		})
	}
}

// A release whose goroutine is ended by a hook of the client has failed, and can be tried again.
func TestAReleaseWhoseGoroutineIsEndedHasFailed(t *testing.T) {
	t.Parallel()
	options := *testenv.Redis(t).Options()
	options.ContextTimeoutEnabled = true // the goroutine of the release itself sends it
	client := redis.NewClient(&options)
	t.Cleanup(func() { _ = client.Close() })
	i, err := lease.New(client, lease.Config{TTL: time.Minute, Namespace: testenv.Namespace(t)})
	require.NoError(t, err)
	l, err := i.Acquire(t.Context(), "a")
	require.NoError(t, err)
	broken := new(stuck)
	broken.hang = func() {
		broken.once.Store(false)
		runtime.Goexit()
	}
	client.AddHook(broken)

	over, cancel := context.WithCancel(t.Context())
	cancel()
	err = l.Release(over)
	for errors.Is(err, context.Canceled) { // it is still being tried
		err = l.Release(over)
	}
	require.ErrorIs(t, err, lease.ErrUnreachable)

	broken.once.Store(true)
	require.NoError(t, l.Release(t.Context()))
	require.NoError(t, try(t, i, "a").Release(t.Context()))
}

// stuck does that with the first request.
type stuck struct {
	faulty.Redis
	hang func()
	once atomic.Bool
}

func (s *stuck) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if s.once.CompareAndSwap(false, true) {
			s.hang()
		}
		return next(context.WithoutCancel(ctx), cmd)
	}
}

func (s *stuck) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if s.once.CompareAndSwap(false, true) {
			s.hang()
		}
		return next(context.WithoutCancel(ctx), cmds)
	}
}
