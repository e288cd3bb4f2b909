package testenv

import (
	"context"
	"testing"
	"time"
)

// await asks done until it says yes. Servers agree among themselves in their own time and tell nobody
// when they have.
func await(t testing.TB, what string, done func(context.Context) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	again := time.NewTicker(pollEvery)
	defer again.Stop()
	for !done(ctx) {
		select {
		case <-ctx.Done():
			t.Fatalf("testenv: waited for %s: %v", what, context.Cause(ctx))
		case <-again.C:
		}
	}
}
