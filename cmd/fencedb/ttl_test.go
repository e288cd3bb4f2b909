package main

import (
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/look"
)

// publish puts events in JSON into the feed.
func (w *world) publish(events ...string) {
	w.Helper()
	_, err := w.redis.Pipelined(w.Context(), func(pipe redis.Pipeliner) error {
		for _, text := range events {
			pipe.XAdd(w.Context(), &redis.XAddArgs{Stream: "fencedb:v1:" + w.namespace + ":events", Values: []string{"event", text}})
		}
		return nil
	})
	require.NoError(w, err)
}

// held puts n leases on a type into the feed: one for each of 1 to n milliseconds.
func (w *world) held(kind, event string, n int) {
	w.Helper()
	events := make([]string, n)
	for i := range events {
		events[i] = fmt.Sprintf(`{"kind":%q,"resource":"%s:12","token":41,"took_ms":%d}`, event, kind, i+1)
	}
	w.publish(events...)
}

func TestTTLAddsMarginsToWhatWasMeasured(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.held("table", "released", 1990)
	w.held("table", "lost", 10)
	w.held("seat", "released", 1000)
	w.held("tablecloth", "released", 100)
	w.held("table", "committed", 100)
	var got look.Advice

	w.json("ttl", &got, "ttl", "table", "--pause", "5s", "--network", "300ms")

	require.Equal(t, look.Advice{
		ResourceType: "table", Samples: 2000, Lost: 10,
		P50MS: 990, P99MS: 1970, P999MS: 1988, PauseMS: 5000, NetworkMS: 300,
		TTLMS: 7300, RenewEveryMS: 2433, WarnBeforeMS: 1216,
	}, got)
	w.screen.Width = 80
	shown := w.ok("ttl", "table", "--pause", "5s", "--network", "300ms")
	require.Contains(t, shown, "lease.Config{TTL: 7300 * time.Millisecond, RenewEvery: 2433 * time.Millisecond,")
	require.Contains(t, shown, "10 of them were lost")
}

func TestTTLRefusesTooFew(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, n := range []int{0, 999} {
		w.held("table", "released", n)
		got := w.run("ttl", "table")
		require.Equal(t, app.ExitFailed, got.code)
		require.Contains(t, got.errOut, fmt.Sprint(n, " of table"))
		require.Contains(t, got.errOut, "docs/patterns.md", "how to get more")
		require.Empty(t, got.out)
	}
	w.held("table", "released", 1)
	w.ok("ttl", "table")
}
