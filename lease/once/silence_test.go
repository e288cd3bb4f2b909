package once_test

import (
	"context"
	"regexp"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/lease/once"
)

// Whoever reads the error knows which server did not answer, for how long, and whose context ended.
func TestAnErrorWithoutAnAnswerNamesWhoDidNotAnswer(t *testing.T) {
	t.Parallel()
	paused := func(t *testing.T) (*once.Once, *testenv.RedisServer, string) {
		server := testenv.OwnRedis(t)
		client := redis.NewClient(&redis.Options{Addr: server.Addr()})
		t.Cleanup(func() { _ = client.Close() })
		o, err := once.New(client, once.Config{InFlight: time.Minute})
		require.NoError(t, err)
		t.Cleanup(server.Resume)
		return o, server, regexp.QuoteMeta(server.Addr())
	}
	silent := func(whom string) string {
		return `lease: redis unreachable: no answer from ` + whom + ` within [\d.]+m?s: the caller's context ended`
	}

	t.Run("first", func(t *testing.T) {
		t.Parallel()
		o, server, whom := paused(t)
		server.Pause()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(2*time.Second, cancel) // it has been sent by then
		got := do(ctx, o, "a", forbidden(t))
		require.ErrorIs(t, got.err, lease.ErrUnreachable)
		require.Regexp(t, silent(whom)+"$", got.err.Error())
	})
	t.Run("behind the first", func(t *testing.T) {
		t.Parallel()
		o, _, _ := paused(t)
		h := newHeld()
		first := begin(t.Context(), o, "a", h.thatAnswers("paid"))
		<-h.claim
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		got := do(ctx, o, "a", forbidden(t))
		require.ErrorIs(t, got.err, once.ErrInFlight)
		require.ErrorIs(t, got.err, context.Canceled)
		require.EqualError(t, got.err, `once: "a" is still in flight: the caller's context ended`)
		close(h.goOn)
		require.NoError(t, (<-first).err)
	})
	t.Run("recording", func(t *testing.T) {
		t.Parallel()
		o, server, whom := paused(t)
		ctx, cancel := context.WithCancel(t.Context())
		got := do(ctx, o, "a", func(context.Context, *lease.Lease) ([]byte, error) {
			server.Pause()
			cancel()
			return []byte("paid"), nil
		})
		require.ErrorIs(t, got.err, once.ErrNotRecorded)
		require.ErrorIs(t, got.err, lease.ErrUnreachable)
		require.ErrorIs(t, got.err, context.Canceled)
		require.Regexp(t, silent(whom)+"; the recording goes on$", got.err.Error())

		err := o.Close(ctx)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorContains(t, err, "once: close: results are still being recorded: the caller's context ended")
		require.NotContains(t, err.Error(), "context canceled")
	})
}
