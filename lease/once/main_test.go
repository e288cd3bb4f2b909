package once_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/leasetest"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/lease/once"
)

// world is one test's view of a Redis: what is made in it shares keys with each other and with no
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

func (w *world) once(t *testing.T, cfg once.Config) *once.Once {
	t.Helper()
	if cfg.Namespace == "" {
		cfg.Namespace = w.namespace
	}
	o, err := once.New(w.client, cfg)
	require.NoError(t, err)
	return o
}

// forSubtests gives each subtest a namespace of its own.
func (w *world) forSubtests() newOnce {
	return func(t *testing.T, cfg once.Config) *once.Once {
		_, name, _ := strings.Cut(t.Name(), "/")
		cfg.Namespace = w.namespace + "/" + name
		return w.once(t, cfg)
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

type work = func(context.Context, *lease.Lease) ([]byte, error)

// answers is work that is done at once.
func answers(result string) work {
	return func(context.Context, *lease.Lease) ([]byte, error) { return []byte(result), nil }
}

var errDeclined = errors.New("declined")

func fails(context.Context, *lease.Lease) ([]byte, error) { return nil, errDeclined }

// forbidden fails the test if it runs.
func forbidden(t *testing.T) work {
	return func(context.Context, *lease.Lease) ([]byte, error) {
		t.Error("ran, though it should not")
		return nil, nil
	}
}

// held is work that says when it has begun and goes on when told.
type held struct {
	claim chan *lease.Lease
	goOn  chan struct{}
}

func newHeld() *held { return &held{make(chan *lease.Lease, 1), make(chan struct{})} }

func (h *held) thatAnswers(result string) work {
	return func(_ context.Context, claim *lease.Lease) ([]byte, error) {
		h.claim <- claim
		<-h.goOn
		return []byte(result), nil
	}
}

// outcome is what Do returned.
type outcome struct {
	result   string
	replayed bool
	err      error
}

func do(ctx context.Context, o *once.Once, key string, fn work, opts ...once.Option) outcome {
	result, replayed, err := o.Do(ctx, key, nil, fn, opts...)
	return outcome{string(result), replayed, err}
}

// begin calls Do on the side.
func begin(ctx context.Context, o *once.Once, key string, fn work) <-chan outcome {
	done := make(chan outcome, 1)
	go func() { done <- do(ctx, o, key, fn) }()
	return done
}
