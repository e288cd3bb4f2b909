package main

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/lease/once"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestTheProgramBuildsTheHotKeyOnce(t *testing.T) {
	t.Setenv("FENCEDB_REDIS_URL", "")
	var out bytes.Buffer
	require.ErrorContains(t, run(t.Context(), &out), "FENCEDB_REDIS_URL")
	t.Setenv("FENCEDB_REDIS_URL", "redis://"+testenv.Redis(t).Options().Addr+"/0")
	require.NoError(t, run(t.Context(), &out))
	require.Contains(t, out.String(), "1000 readers in 4 processes, all at once: built 1 times")
}

func TestAThousandReadersOneBuild(t *testing.T) {
	t.Parallel()
	builds, slowest, err := stampede(t.Context(), testenv.Redis(t).Options(), testenv.Namespace(t))
	require.NoError(t, err)
	require.EqualValues(t, 1, builds)
	require.GreaterOrEqual(t, slowest, buildTime)
}

func newCache(t *testing.T, cfg once.Config, build func(context.Context, string) (string, error)) *Cache[string] {
	t.Helper()
	cfg.Namespace = testenv.Namespace(t)
	c, err := NewCache(testenv.Redis(t), cfg, build)
	require.NoError(t, err)
	return c
}

func TestValuesAreBuiltAnewWhenTheyAreDropped(t *testing.T) {
	t.Parallel()
	var version atomic.Int64
	c := newCache(t, once.Config{}, func(context.Context, string) (string, error) {
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

func TestAFailedBuildIsNotCached(t *testing.T) {
	t.Parallel()
	broken := errors.New("the kitchen is closed")
	c := newCache(t, once.Config{}, func(_ context.Context, key string) (string, error) {
		return "", broken
	})
	_, err := c.Get(t.Context(), "menu")
	require.ErrorIs(t, err, broken)
	c.build = func(context.Context, string) (string, error) { return "soup", nil }
	got, err := c.Get(t.Context(), "menu")
	require.NoError(t, err)
	require.Equal(t, "soup", got)
}

func TestBadConfig(t *testing.T) {
	t.Parallel()
	_, err := NewCache[string](testenv.Redis(t), once.Config{Done: -time.Second}, nil)
	require.ErrorIs(t, err, lease.ErrInvalid)
}
