package lease_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

// deaf is a client that does not mind contexts, as go-redis by default does not while it reads:
// once Redis hangs, so do its requests, until it ends. What was asked is then carried out.
type deaf struct {
	faulty.Redis
	hangs atomic.Pointer[chan struct{}]
}

func (h *deaf) hang() {
	c := make(chan struct{})
	h.hangs.Store(&c)
}

func (h *deaf) end() {
	if c := h.hangs.Swap(nil); c != nil {
		close(*c)
	}
}

func (h *deaf) wait() {
	if c := h.hangs.Load(); c != nil {
		<-*c
	}
}

func (h *deaf) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if name := cmd.Name(); strings.HasPrefix(name, "eval") || name == "time" || name == "info" {
			h.wait()
		}
		return next(context.WithoutCancel(ctx), cmd)
	}
}

func (h *deaf) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.wait()
		return next(context.WithoutCancel(ctx), cmds)
	}
}

// call is one way into the package that asks Redis.
type call struct {
	held bool // another has the resource
	call func(ctx context.Context, i *lease.Issuer, l *lease.Lease, hang func()) error
}

// everyCall is all of them. Each hangs Redis when it has come to its request.
var everyCall = map[string]call{
	"Acquire NoWait": {call: func(ctx context.Context, i *lease.Issuer, _ *lease.Lease, hang func()) error {
		hang()
		_, err := i.Acquire(ctx, "free", lease.NoWait())
		return err
	}},
	"Acquire": {call: func(ctx context.Context, i *lease.Issuer, _ *lease.Lease, hang func()) error {
		hang()
		_, err := i.Acquire(ctx, "free")
		return err
	}},
	"Acquire, waiting": {held: true, call: func(ctx context.Context, i *lease.Issuer, _ *lease.Lease, hang func()) error {
		time.AfterFunc(100*ms, hang)
		_, err := i.Acquire(ctx, "held")
		return err
	}},
	"Acquire, behind another": {held: true, call: func(ctx context.Context, i *lease.Issuer, _ *lease.Lease, hang func()) error {
		other, cancel := context.WithCancel(context.WithoutCancel(ctx))
		defer cancel()
		go func() { _, _ = i.Acquire(other, "held") }()
		time.AfterFunc(100*ms, hang)
		_, err := i.Acquire(ctx, "held")
		return err
	}},
	"AcquireAll": {held: true, call: func(ctx context.Context, i *lease.Issuer, _ *lease.Lease, hang func()) error {
		time.AfterFunc(100*ms, hang)
		_, err := i.AcquireAll(ctx, []string{"free", "held"})
		return err
	}},
	"AcquireAll NoWait": {call: func(ctx context.Context, i *lease.Issuer, _ *lease.Lease, hang func()) error {
		hang()
		_, err := i.AcquireAll(ctx, []string{"free", "free too"}, lease.NoWait())
		return err
	}},
	"Do": {call: func(ctx context.Context, i *lease.Issuer, _ *lease.Lease, hang func()) error {
		return i.Do(ctx, "free", func(context.Context, *lease.Lease) error { hang(); return nil })
	}},
	"DoAll": {call: func(ctx context.Context, i *lease.Issuer, _ *lease.Lease, hang func()) error {
		return i.DoAll(ctx, many(20), func(context.Context, lease.Leases) error { hang(); return nil })
	}},
	"Leases.Release": {call: func(ctx context.Context, i *lease.Issuer, _ *lease.Lease, hang func()) error {
		ls, err := i.AcquireAll(ctx, many(20), lease.NoWait())
		if err != nil {
			return err
		}
		hang()
		return ls.Release(ctx)
	}},
	"Release": {call: func(ctx context.Context, _ *lease.Issuer, l *lease.Lease, hang func()) error {
		hang()
		return l.Release(ctx)
	}},
	"Release, during a renewal": {call: func(ctx context.Context, _ *lease.Issuer, l *lease.Lease, hang func()) error {
		hang()
		go func() { _ = l.Extend(context.WithoutCancel(ctx)) }()
		return l.Release(ctx)
	}},
	"Extend": {call: func(ctx context.Context, _ *lease.Issuer, l *lease.Lease, hang func()) error {
		time.Sleep(100 * ms) // there has to be something to gain
		hang()
		return l.Extend(ctx)
	}},
	"Verify": {call: func(ctx context.Context, _ *lease.Issuer, l *lease.Lease, hang func()) error {
		hang()
		_, err := l.Verify(ctx)
		return err
	}},
	"Revoke": {call: func(ctx context.Context, i *lease.Issuer, _ *lease.Lease, hang func()) error {
		hang()
		_, err := i.Revoke(ctx, "held")
		return err
	}},
	"TakeOver": {call: func(ctx context.Context, i *lease.Issuer, l *lease.Lease, hang func()) error {
		hang()
		_, err := i.TakeOver(ctx, "held", l.Token())
		return err
	}},
	"Raise": {call: func(ctx context.Context, i *lease.Issuer, l *lease.Lease, hang func()) error {
		hang()
		_, err := i.Raise(ctx, "held", l.Token())
		return err
	}},
	"Inspect": {call: func(ctx context.Context, i *lease.Issuer, _ *lease.Lease, hang func()) error {
		hang()
		_, err := i.Inspect(ctx, "held")
		return err
	}},
	"Check": {call: func(ctx context.Context, i *lease.Issuer, _ *lease.Lease, hang func()) error {
		hang()
		_, err := i.Check(ctx)
		return err
	}},
	"Close": {call: func(ctx context.Context, i *lease.Issuer, _ *lease.Lease, hang func()) error {
		hang()
		return i.Close(ctx)
	}},
}

// silent are those whose work is done when Redis hangs: that the release is not answered is no
// error.
var silent = map[string]bool{"Do": true, "DoAll": true}

func TestAContextBoundsEveryCall(t *testing.T) {
	for name, c := range everyCall {
		for how, end := range map[string]func(ctx context.Context) (context.Context, context.CancelFunc){
			"deadline": func(ctx context.Context) (context.Context, context.CancelFunc) {
				return context.WithTimeout(ctx, 2*time.Second)
			},
			"cancelled": func(ctx context.Context) (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancel(ctx)
				time.AfterFunc(2*time.Second, cancel)
				return ctx, cancel
			},
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				inBubble(t, func(t *testing.T, w *world) {
					i, h := w.issuer(t, lease.Config{TTL: time.Minute}), new(deaf)
					w.client.AddHook(h)
					l := try(t, i, "held")
					ctx, cancel := end(context.Background())
					defer cancel()
					start := time.Now()
					err := c.call(ctx, i, l, h.hang)
					require.LessOrEqual(t, time.Since(start), 2050*ms)
					if silent[name] {
						require.NoError(t, err)
					} else {
						require.Error(t, err)
						require.ErrorIs(t, err, context.Cause(ctx))
						require.NotContains(t, err.Error(), "context canceled", "whose, and why?")
					}
					if errors.Is(err, lease.ErrUnreachable) {
						require.Regexp(t, `no answer|release .* is still being tried`, err.Error())
					}
					time.Sleep(10 * time.Second)
					h.end()

					// What was asked for is carried out now, and given back behind that; what is
					// held may be released.
					time.Sleep(time.Second)
					found, err := i.Inspect(t.Context(), "held")
					require.NoError(t, err)
					require.Zero(t, found.Waiters)
					for _, resource := range append(many(20), "free", "free too") {
						require.Empty(t, w.client.Get(t.Context(), w.key(resource, "owner")).Val(), resource)
					}
				})
			})
		}
	}
}

// panicking is a hook with a fault of its own.
type panicking struct {
	faulty.Redis
	up atomic.Bool
}

func (h *panicking) fault() {
	if h.up.Load() {
		panic("a hook of the client")
	}
}

func (h *panicking) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		h.fault()
		return next(ctx, network, addr)
	}
}

func (h *panicking) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { h.fault(); return next(ctx, cmd) }
}

func (h *panicking) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { h.fault(); return next(ctx, cmds) }
}

// Most requests are sent by goroutines of ours, where nobody could recover it.
func TestAHookThatPanicsDoesNotEndTheProcess(t *testing.T) {
	for name, c := range everyCall {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				i, h := w.issuer(t, lease.Config{TTL: 2 * time.Second}), new(panicking)
				w.client.AddHook(h)
				l := try(t, i, "held")
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				err := c.call(ctx, i, l, func() { h.up.Store(true) })
				if silent[name] || name == "Close" { // which waits until nothing is blocked any more
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, "panicked: a hook of the client")
				}
				h.up.Store(false)
			})
		})
	}
}

// The same on a server that is stopped, with a client as most have it. A machine that is busy is
// late now and then, and a call without a bound each time.
func TestAContextBoundsEveryCallOnAServerThatHangs(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	for name, c := range everyCall {
		for tries := 1; ; tries++ {
			late := lateOn(t, server, name, c)
			if late < 2*time.Second {
				break
			}
			require.Less(t, tries, 4, "%s: %v late, each time", name, late)
		}
	}
}

// lateOn is for how long a call outlasts its context on a server that hangs meanwhile.
func lateOn(t *testing.T, server *testenv.RedisServer, name string, c call) (late time.Duration) {
	t.Helper()
	w := worldOn(t, server.Client())
	i := w.issuer(t, lease.Config{TTL: time.Minute})
	l := try(t, i, "held")
	ctx, cancel := context.WithTimeout(t.Context(), 400*ms)
	end, _ := ctx.Deadline()
	hung := make(chan struct{})
	_ = c.call(ctx, i, l, func() { server.Pause(); close(hung) })
	late = time.Since(end)
	select {
	case <-hung: // or it could hang behind Resume
	case <-time.After(patience):
		require.Fail(t, "never hung", name)
	}
	server.Resume()
	cancel()
	closing, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, i.Close(closing), name)
	require.Zero(t, w.client.Exists(t.Context(), w.key("held", "owner"), w.key("free", "owner"), w.key("free too", "owner")).Val(), name)
	return late
}

func TestPatienceBoundsTheCallToo(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i, h := w.issuer(t, lease.Config{TTL: time.Minute}), new(deaf)
		w.client.AddHook(h)
		try(t, i, "held")
		time.AfterFunc(300*ms, h.hang)
		start := time.Now()
		_, err := i.Acquire(t.Context(), "held", lease.WaitAtMost(500*ms))
		require.ErrorIs(t, err, lease.ErrHeld)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.LessOrEqual(t, time.Since(start), 550*ms)

		start = time.Now()
		_, err = i.Acquire(t.Context(), "free", lease.WaitAtMost(500*ms)) // of which the request hangs
		require.ErrorIs(t, err, lease.ErrUnreachable)
		require.LessOrEqual(t, time.Since(start), 550*ms)
		h.end()
	})
}

// Without a deadline, an outage takes a TTL and no more, however it looks and whoever stands in
// line.
func TestAnOutageTakesNoLongerThanOneTTL(t *testing.T) {
	for _, ttl := range []time.Duration{time.Second, 3 * time.Second, 20 * time.Second} {
		for name, fault := range map[string]faulty.Fault{"hang": faulty.Hang, "broken": faulty.LoseRequest, "reply lost": faulty.LoseReply} {
			t.Run(ttl.String()+" "+name, func(t *testing.T) {
				inBubble(t, func(t *testing.T, w *world) {
					i := w.issuer(t, lease.Config{TTL: ttl})
					w.faults.Always(fault)
					start := time.Now()
					ends := make(chan time.Duration)
					for range 10 {
						go func() {
							_, err := i.Acquire(context.Background(), "a")
							if !errors.Is(err, lease.ErrUnreachable) {
								t.Error(err)
							}
							ends <- time.Since(start)
						}()
					}
					for range 10 {
						took := <-ends
						require.GreaterOrEqual(t, took, ttl*7/8)
						require.LessOrEqual(t, took, ttl+50*ms)
					}
					start = time.Now()
					_, err := i.Acquire(t.Context(), "a", lease.NoWait())
					require.ErrorIs(t, err, lease.ErrUnreachable)
					require.LessOrEqual(t, time.Since(start), ttl+50*ms)
					w.faults.Always(faulty.None)
				})
			})
		}
	}
}

// It begins with the first request that is not answered, also when the one before was long ago.
// It does not come back.
func TestNobodyWaitsForAClientThatWasClosed(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: time.Minute})
		require.NoError(t, w.client.Close())
		began := time.Now()
		_, err := i.Acquire(t.Context(), "a")
		require.ErrorIs(t, err, redis.ErrClosed)
		require.ErrorIs(t, err, lease.ErrUnreachable)
		require.Less(t, time.Since(began), time.Second)
	})
}

func TestAnOutageIsSatOutFromItsBeginning(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: time.Second})
		other := try(t, w.issuer(t, lease.Config{TTL: 4 * time.Second, RenewEvery: lease.Never}), "a")
		time.AfterFunc(time.Second, func() { w.faults.Always(faulty.LoseRequest) })
		time.AfterFunc(4800*ms, func() { w.faults.Always(faulty.None) })
		l, err := i.Acquire(t.Context(), "a")
		require.NoError(t, err, "the outage was noticed after 4 s, when the other's time was over")
		require.ErrorIs(t, other.Err(), lease.ErrExpired)
		require.NoError(t, l.Release(t.Context()))
	})
}

// Without a deadline, every call ends.
func TestEveryCallHasABoundOfItsOwn(t *testing.T) {
	for name, c := range everyCall {
		if name == "Close" || c.held { // the first is as patient as its context, the others wait for the holder
			continue
		}
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				i, h := w.issuer(t, lease.Config{TTL: 10 * time.Second}), new(deaf)
				w.client.AddHook(h)
				l := try(t, i, "held")
				start := time.Now()
				_ = c.call(context.Background(), i, l, h.hang)
				require.LessOrEqual(t, time.Since(start), 10050*ms)
				h.end()
			})
		})
	}
}
