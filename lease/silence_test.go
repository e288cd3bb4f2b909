package lease_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

// deafServer accepts connections and answers nobody.
func deafServer(t *testing.T) (addr string) { return fakeServer(t, "") }

// loadingServer refuses everything.
func loadingServer(t *testing.T) (addr string) { return fakeServer(t, "-LOADING in a moment\r\n") }

// fakeServer has the same answer to each command.
func fakeServer(t *testing.T, answer string) (addr string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = conn.Close() })
			go func() {
				for asked := make([]byte, 64<<10); answer != ""; {
					n, err := conn.Read(asked)
					if err != nil {
						return
					}
					_, _ = conn.Write(bytes.Repeat([]byte(answer), bytes.Count(asked[:n], []byte("*"))))
				}
			}()
		}
	}()
	return listener.Addr().String()
}

// usedUp is a client whose only connection waits for something else.
func usedUp(t *testing.T) *redis.Client {
	t.Helper()
	server := testenv.OwnRedis(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), PoolSize: 1})
	t.Cleanup(func() { _ = client.Close() })
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	go client.BLPop(ctx, 0, "nothing")
	blocked := regexp.MustCompile(`blocked_clients:1\b`)
	require.Eventually(t, func() bool {
		return blocked.MatchString(server.Client().Info(ctx, "clients").Val())
	}, time.Minute, ms)
	return client
}

// Whoever reads the error knows where to look, and what for.
func TestAnErrorWithoutAnAnswerNamesWhoDidNotAnswer(t *testing.T) {
	t.Parallel()
	guest := errors.New("the guest left")
	const later = 500 * ms // when the request is under way, on a busy machine too
	for name, c := range map[string]struct {
		client func(t *testing.T) *redis.Client
		whom   string // %s is the address
	}{
		"the server": {func(t *testing.T) *redis.Client {
			return redis.NewClient(&redis.Options{Addr: deafServer(t), PoolSize: 200})
		}, `127\.0\.0\.1:\d+`},
		"its name": {func(t *testing.T) *redis.Client {
			addr := deafServer(t)
			return redis.NewClient(&redis.Options{Addr: "localhost" + addr[len("127.0.0.1"):], PoolSize: 200})
		}, `localhost:\d+`},
		"the pool": {usedUp, `the pool of 1 connections to 127\.0\.0\.1:\d+, which is used up`},
		"the group": {func(t *testing.T) *redis.Client {
			addr := deafServer(t)
			return redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{addr}})
		}, `the primary of the Sentinel group`},
	} {
		for how, end := range map[string]struct {
			ctx   func(context.Context) (context.Context, context.CancelFunc)
			says  string
			cause error
		}{
			"its own bound": {context.WithCancel, ` within [\d.]+m?s$`, nil},
			"a deadline": {func(ctx context.Context) (context.Context, context.CancelFunc) {
				return context.WithTimeout(ctx, later)
			}, ` within [\d.]+m?s: the caller's deadline has passed$`, context.DeadlineExceeded},
			"cancelled": {func(ctx context.Context) (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancel(ctx)
				time.AfterFunc(later, cancel)
				return ctx, cancel
			}, ` within [\d.]+m?s: the caller's context ended$`, context.Canceled},
			"with a cause": {func(ctx context.Context) (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancelCause(ctx)
				time.AfterFunc(later, func() { cancel(guest) })
				return ctx, func() { cancel(nil) }
			}, ` within [\d.]+m?s: the guest left$`, guest},
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				t.Parallel()
				ttl := time.Minute
				if how == "its own bound" {
					ttl = 400 * ms
				}
				var client *redis.Client
				var i *lease.Issuer
				for call, ask := range map[string]func(context.Context) error{
					"Acquire NoWait": func(ctx context.Context) error { _, err := i.Acquire(ctx, "a", lease.NoWait()); return err },
					"Acquire":        func(ctx context.Context) error { _, err := i.Acquire(ctx, "a"); return err },
					"AcquireAll":     func(ctx context.Context) error { _, err := i.AcquireAll(ctx, []string{"a", "b"}); return err },
					"Check":          func(ctx context.Context) error { _, err := i.Check(ctx); return err },
					"with replica":   func(ctx context.Context) error { return acquireReplicated(ctx, client, ttl) },
				} {
					if name == "the pool" && call == "with replica" {
						continue // which has a pool of its own, in the client library
					}
					if how == "its own bound" && call == "Check" {
						continue // which is longer than the client library waits
					}
					client = c.client(t) // of its own: what an earlier call has left waits for the pool, too
					t.Cleanup(func() { _ = client.Close() })
					var err error
					i, err = lease.New(client, lease.Config{TTL: ttl})
					require.NoError(t, err)
					ctx, cancel := end.ctx(t.Context())
					err = ask(ctx)
					for how == "its own bound" && strings.Contains(err.Error(), "redis was not asked") { // the machine stood still for so long
						err = ask(ctx)
					}
					require.ErrorIs(t, err, lease.ErrUnreachable, call)
					require.Regexp(t, `redis unreachable: no answer from `+c.whom+end.says, err.Error(), call)
					require.NotContains(t, err.Error(), "context canceled", call)
					require.NotContains(t, err.Error(), "FailoverClient", call)
					if end.cause != nil {
						require.ErrorIs(t, err, end.cause, call)
					}
					cancel()
				}
			})
		}
	}
}

// Whoever stands in line in this process learns that Redis does not answer the front of it, and so
// does who comes to the front then.
func TestAWaiterInLineIsToldThatRedisDoesNotAnswer(t *testing.T) {
	t.Parallel()
	const (
		held   = `^lease: "a" is still held by another: `
		inLine = `in line after a caller of this process: `
		silent = `lease: redis unreachable: no answer from 127\.0\.0\.1:\d+ within [\d.]+m?s: `
	)
	for name, c := range map[string]struct {
		server func(*testing.T) (addr string)
		front  time.Duration // how long the caller in front stays
		says   string
	}{
		"in line":      {deafServer, time.Minute, held + inLine + silent},
		"at the front": {deafServer, 300 * ms, held + silent},
		"refused":      {loadingServer, time.Minute, held + inLine + `lease: redis refuses: it is loading its data; wait .*; `},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := redis.NewClient(&redis.Options{Addr: c.server(t)})
			t.Cleanup(func() { _ = client.Close() })
			i, err := lease.New(client, lease.Config{TTL: time.Minute})
			require.NoError(t, err)
			front, leave := context.WithTimeout(t.Context(), c.front)
			t.Cleanup(leave)
			go func() { _, _ = i.Acquire(front, "a") }()
			require.Eventually(t, func() bool { return client.PoolStats().TotalConns > 0 }, time.Minute, ms)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			_, err = i.Acquire(ctx, "a")
			require.ErrorIs(t, err, lease.ErrHeld)
			require.NotErrorIs(t, err, lease.ErrUnreachable)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Regexp(t, c.says+`the caller's deadline has passed$`, err.Error())
		})
	}
}

func acquireReplicated(ctx context.Context, client *redis.Client, ttl time.Duration) error {
	i, err := lease.New(client, lease.Config{TTL: ttl, Replicas: 1})
	if err != nil {
		return err
	}
	_, err = i.Acquire(ctx, "a", lease.NoWait())
	return err
}

// A master is named by its address, also where it is one of several.
func TestAnErrorNamesTheMasterThatDidNotAnswer(t *testing.T) {
	t.Parallel()
	cluster := testenv.Cluster(t)
	w := cluster.Client()
	namespace := testenv.Namespace(t)
	i, err := lease.New(w, lease.Config{TTL: time.Minute, Namespace: namespace})
	require.NoError(t, err)
	l, err := i.Acquire(t.Context(), "a", lease.NoWait()) // the client knows the masters
	require.NoError(t, err)
	require.NoError(t, l.Release(t.Context()))
	key := lease.Key{Namespace: namespace, Resource: "a", Field: "owner"}.String()
	owner := cluster.Owner(cluster.Slot(key))
	owner.Pause()
	defer owner.Resume()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err = i.Acquire(ctx, "a", lease.NoWait())
	require.ErrorIs(t, err, lease.ErrUnreachable)
	require.Regexp(t, "no answer from "+regexp.QuoteMeta(owner.Addr())+" within ", err.Error())
}
