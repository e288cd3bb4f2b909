package semaphore_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/lease/semaphore"
)

const ms = time.Millisecond

// world is one test's view of a Redis: what is made in it shares resources with each other and with no other test.
type world struct {
	client    redis.UniversalClient
	namespace string
	faults    *faulty.Redis // in front of client
}

// newWorld has a client of its own, so that its faults are its own.
func newWorld(t *testing.T) *world {
	t.Helper()
	options := *testenv.Redis(t).Options()
	client := redis.NewClient(&options)
	t.Cleanup(func() { _ = client.Close() })
	w := &world{client: client, namespace: testenv.Namespace(t), faults: new(faulty.Redis)}
	client.AddHook(w.faults)
	return w
}

// semaphore lasts long enough for a loaded machine, unless the test says otherwise.
func (w *world) semaphore(t *testing.T, limit int, cfg lease.Config) *semaphore.Semaphore {
	t.Helper()
	if cfg.Namespace == "" {
		cfg.Namespace = w.namespace
	}
	if cfg.TTL == 0 {
		cfg.TTL = 30 * time.Second
	}
	s, err := semaphore.New(w.client, semaphore.Config{Limit: limit, Lease: cfg})
	require.NoError(t, err)
	return s
}

// forSubtests gives each subtest a namespace of its own.
func (w *world) forSubtests() newSemaphore {
	return func(t *testing.T, limit int, cfg lease.Config) *semaphore.Semaphore {
		_, name, _ := strings.Cut(t.Name(), "/")
		cfg.Namespace = w.namespace + "/" + name
		return w.semaphore(t, limit, cfg)
	}
}

func (w *world) key(resource, name string) string {
	return "semaphore:v1:{" + w.namespace + "/" + resource + "}:" + name
}

// inBubble runs a test on a miniredis inside a bubble: no sockets, and a clock that moves only when everything waits.
func inBubble(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		server := miniredis.NewMiniRedis()
		server.ClockTTL(true)
		client := redis.NewClient(&redis.Options{
			Addr:   "127.0.0.1:6379", // never dialled
			Dialer: func(context.Context, string, string) (net.Conn, error) { return server.Dial() },
		})
		defer func() {
			time.Sleep(5 * time.Second) // the subscription of a waiter lingers, and its health check wakes up
			_ = client.Close()
			server.Close()
		}()
		w := &world{client: client, namespace: "test", faults: new(faulty.Redis)}
		client.AddHook(w.faults)
		test(t, w)
	})
}

// try takes a place and fails the test if there is none. It is given back at the end of the test.
func try(t *testing.T, s *semaphore.Semaphore, resource string, opts ...lease.Option) *lease.Lease {
	t.Helper()
	l, err := s.TryAcquire(t.Context(), resource, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Release(context.Background()) })
	return l
}

func requireFull(t *testing.T, s *semaphore.Semaphore, resource string) *lease.HeldError {
	t.Helper()
	_, err := s.TryAcquire(t.Context(), resource)
	require.ErrorIs(t, err, lease.ErrHeld)
	var held *lease.HeldError
	require.ErrorAs(t, err, &held)
	require.Positive(t, held.RetryAfter)
	return held
}

func requireVerdict(t *testing.T, l *lease.Lease, want lease.Verdict) {
	t.Helper()
	got, err := l.Verify(t.Context())
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// waiting is an Acquire on the side.
func waiting(t *testing.T, s *semaphore.Semaphore, resource string) <-chan *lease.Lease {
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
func awaitWaiters(t *testing.T, s *semaphore.Semaphore, resource string, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		found, err := s.Inspect(t.Context(), resource)
		require.NoError(t, err)
		return found.Waiters == n
	}, 10*time.Second, 2*ms)
}
