package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestAThousandReadersOneBuild(t *testing.T) {
	t.Setenv("FENCEDB_REDIS_URL", "")
	var out bytes.Buffer
	require.ErrorContains(t, run(t.Context(), &out), "FENCEDB_REDIS_URL")
	t.Setenv("FENCEDB_REDIS_URL", "redis://"+testenv.Redis(t).Options().Addr+"/0")
	require.NoError(t, run(t.Context(), &out))
	require.Contains(t, out.String(), "1000 readers in 4 processes, all at once: built 1 times")
}

func newCache(t *testing.T, namespace string, build func(context.Context, string) (string, error)) *Cache[string] {
	t.Helper()
	cfg := lease.Config{TTL: 10 * time.Second, Namespace: namespace}
	c, err := NewCache(testenv.Redis(t), cfg, time.Minute, build)
	require.NoError(t, err)
	return c
}

func TestValuesAreBuiltAnewWhenTheyAreDropped(t *testing.T) {
	t.Parallel()
	var version atomic.Int64
	c := newCache(t, testenv.Namespace(t), func(context.Context, string) (string, error) {
		return string(rune('a' - 1 + version.Add(1))), nil
	})
	for _, want := range []string{"a", "a"} {
		got, err := c.Get(t.Context(), "menu")
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	require.NoError(t, c.Drop(t.Context(), "menu"))
	got, err := c.Get(t.Context(), "menu")
	require.NoError(t, err)
	require.Equal(t, "b", got)
}

// A reads the old menu and is slow. The menu changes, and B caches the new one. Then A comes.
func TestASlowBuilderDoesNotOverwriteANewerValue(t *testing.T) {
	t.Parallel()
	var menu atomic.Value
	menu.Store("old")
	hasRead, goOn := make(chan struct{}), make(chan struct{})
	first := true
	namespace := testenv.Namespace(t)
	slow := newCache(t, namespace, func(context.Context, string) (string, error) {
		text := menu.Load().(string)
		if first {
			first = false
			close(hasRead)
			<-goOn // it does not look at its context, as after a pause that it cannot notice
		}
		return text, nil
	})
	quick := newCache(t, namespace, func(context.Context, string) (string, error) { return menu.Load().(string), nil })
	late := make(chan string)
	go func() {
		text, err := slow.Get(t.Context(), "menu")
		assert.NoError(t, err)
		late <- text
	}()
	<-hasRead
	menu.Store("new")
	require.NoError(t, slow.Drop(t.Context(), "menu"))
	got, err := quick.Get(t.Context(), "menu")
	require.NoError(t, err)
	require.Equal(t, "new", got)
	close(goOn)

	require.Equal(t, "new", <-late, "nor does its reader get the old one")
	got, err = quick.Get(t.Context(), "menu")
	require.NoError(t, err)
	require.Equal(t, "new", got)
}

func TestAReaderDoesNotWaitLongerThanItsContext(t *testing.T) {
	t.Parallel()
	goOn := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	c := newCache(t, testenv.Namespace(t), func(context.Context, string) (string, error) {
		cancel()
		<-goOn
		return "soup", nil
	})
	_, err := c.Get(ctx, "menu")
	require.ErrorIs(t, err, context.Canceled)
	close(goOn)
	got, err := c.Get(t.Context(), "menu")
	require.NoError(t, err)
	require.Equal(t, "soup", got)
}

func TestAFailedBuildIsNotCached(t *testing.T) {
	t.Parallel()
	broken := errors.New("the kitchen is closed")
	c := newCache(t, testenv.Namespace(t), func(_ context.Context, key string) (string, error) {
		return "", broken
	})
	_, err := c.Get(t.Context(), "menu")
	require.ErrorIs(t, err, broken)
	c.build = func(context.Context, string) (string, error) { return "soup", nil }
	got, err := c.Get(t.Context(), "menu")
	require.NoError(t, err)
	require.Equal(t, "soup", got)
}

// A build can ask for a lease of its own, or write behind a fence.
func TestABuildThatLosesSomethingElseIsNotRepeated(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]error{
		"a lease that another holds": &lease.HeldError{Resource: "table:12", RetryAfter: time.Minute},
		"a lease that it had":        fmt.Errorf("table:12: %w", lease.ErrExpired),
		"a token":                    lease.ErrStale,
		"a fenced write":             fencedb.ErrStale,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var builds atomic.Int64
			c := newCache(t, testenv.Namespace(t), func(context.Context, string) (string, error) {
				if builds.Add(1) > 1 {
					return "soup", nil
				}
				return "", lost
			})

			_, err := c.Get(t.Context(), "menu")

			require.ErrorIs(t, err, lost)
			require.EqualValues(t, 1, builds.Load())
		})
	}
}

func TestABuildThatPanicsIsAnErrorOfItsReaders(t *testing.T) {
	t.Parallel()
	c := newCache(t, testenv.Namespace(t), func(context.Context, string) (string, error) { panic("no fish") })
	_, err := c.Get(t.Context(), "menu")
	require.ErrorContains(t, err, "no fish")
	c.build = func(context.Context, string) (string, error) { return "soup", nil }
	got, err := c.Get(t.Context(), "menu")
	require.NoError(t, err)
	require.Equal(t, "soup", got)
}

// Two releases run side by side during a deployment.
func TestAValueOfAnotherReleaseIsBuiltAnew(t *testing.T) {
	t.Parallel()
	c := newCache(t, testenv.Namespace(t), func(context.Context, string) (string, error) { return "soup", nil })
	require.NoError(t, c.client.Set(t.Context(), c.key("menu"), `{"dishes": ["fish"]}`, time.Minute).Err())

	got, err := c.Get(t.Context(), "menu")

	require.NoError(t, err)
	require.Equal(t, "soup", got)
}

func TestBadConfig(t *testing.T) {
	t.Setenv("FENCEDB_REDIS_URL", "redis://127.0.0.1:1/0")
	_, err := NewCache[string](testenv.Redis(t), lease.Config{}, time.Minute, nil)
	require.ErrorIs(t, err, lease.ErrInvalid)
	t.Setenv("CACHE_TTL", "soon")
	require.ErrorContains(t, run(t.Context(), io.Discard), "CACHE_TTL")
}
