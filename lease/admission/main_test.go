package admission_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/leasetest"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease/admission"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// world is one test's view of a Redis: limiters made in it share keys with each other and with no
// other test.
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

// limiter has time, and fails closed, unless the test says otherwise.
func (w *world) limiter(t *testing.T, cfg admission.Config) *admission.Limiter {
	t.Helper()
	if cfg.Namespace == "" {
		cfg.Namespace = w.namespace
	}
	if cfg.OnError == 0 {
		cfg.OnError = admission.FailClosed
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 10 * time.Second
	}
	l, err := admission.New(w.client, cfg)
	require.NoError(t, err)
	return l
}

// forSubtests gives each subtest a namespace of its own.
func (w *world) forSubtests() newLimiter {
	return func(t *testing.T, cfg admission.Config) *admission.Limiter {
		_, name, _ := strings.Cut(t.Name(), "/")
		cfg.Namespace = w.namespace + "/" + name
		return w.limiter(t, cfg)
	}
}

// inBubble runs a test on a miniredis inside a bubble: no sockets, and a clock that moves only when
// everything waits.
func inBubble(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		client, _ := leasetest.InMemory(t)
		w := &world{client: client, namespace: "test", faults: new(faulty.Redis)}
		client.AddHook(w.faults)
		test(t, w)
	})
}

// allow asks once, and Redis has to judge.
func allow(t *testing.T, l *admission.Limiter, key string) admission.Decision {
	t.Helper()
	d, err := l.Allow(t.Context(), key)
	require.NoError(t, err)
	require.NoError(t, d.Err)
	return d
}

func requireAdmitted(t *testing.T, l *admission.Limiter, key string) {
	t.Helper()
	d := allow(t, l, key)
	require.True(t, d.Allowed, "%+v", d)
}

func requireRefused(t *testing.T, l *admission.Limiter, key string) admission.Decision {
	t.Helper()
	d := allow(t, l, key)
	require.False(t, d.Allowed, "%+v", d)
	require.Positive(t, d.RetryAfter)
	return d
}

// directClient is without hooks, and honours contexts.
func directClient(t testing.TB, base *redis.Client) *redis.Client {
	options := *base.Options()
	options.ContextTimeoutEnabled = true
	client := redis.NewClient(&options)
	t.Cleanup(func() { _ = client.Close() })
	return client
}
