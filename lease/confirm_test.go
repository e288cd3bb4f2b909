package lease

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	protocol "github.com/fencedb/fencedb/lease/internal/redis"
)

// A member on which the lease has run out, or was taken meanwhile, must not count for it, nor be changed.
func TestOnlyTheHolderIsConfirmed(t *testing.T) {
	server := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	s := newSingle(client, Config{})
	k := protocol.KeysOf(protocol.LeaseKind, "", "a", false)
	confirm := func(id uuid.UUID, token int64) outcome {
		t.Helper()
		result, err := s.confirm(t.Context(), extension{term{keys: k, id: id, token: token, call: "ca11"}, time.Minute, time.Hour})
		require.NoError(t, err)
		return result
	}
	holder, other := uuid.New(), uuid.New()
	require.Equal(t, gone, confirm(holder, 7))
	require.False(t, server.Exists(k.Owner), "never creates")

	answer, err := s.acquire(t.Context(), ask{[]protocol.Keys{k}, holder, "ca11", 1, try, time.Minute, time.Hour, nil})
	require.NoError(t, err)
	token := answer.tokens[0]
	require.Equal(t, taken, confirm(other, token+5))
	verdict, err := s.verify(t.Context(), term{keys: k, id: holder, token: token, call: "ca11"})
	require.NoError(t, err)
	require.Equal(t, Current, verdict, "nothing was changed")

	require.Equal(t, done, confirm(holder, token+5))
	verdict, err = s.verify(t.Context(), term{keys: k, id: holder, token: token + 5, call: "ca11"})
	require.NoError(t, err)
	require.Equal(t, Current, verdict)
	require.Equal(t, done, confirm(holder, token+2), "a smaller token of the majority does not lower the fence")
	verdict, err = s.verify(t.Context(), term{keys: k, id: holder, token: token + 2, call: "ca11"})
	require.NoError(t, err)
	require.Equal(t, FenceStale, verdict)
}
