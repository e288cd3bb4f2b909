package lease

import (
	"context"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// A waiter that was woken and then gives up has used up the wake-up. Its turn must pass on.
func TestAWithdrawalPassesTheTurnOn(t *testing.T) {
	server := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	s := newSingle(client, Config{})
	k := newKeys("", "a", false)
	request := func(id uuid.UUID, m mode) (token int64) {
		t.Helper()
		answer, err := s.acquire(t.Context(), ask{[]keys{k}, id, m, time.Minute, time.Hour, nil})
		require.NoError(t, err)
		for _, token = range answer.tokens {
		}
		return token
	}
	holder, first, second := uuid.New(), uuid.New(), uuid.New()
	granted := request(holder, try)
	require.Positive(t, granted)
	require.Zero(t, request(first, wait))
	require.Zero(t, request(second, wait))

	messages := client.Subscribe(context.Background(), k.channel+":"+s.listener)
	defer messages.Close()
	_, err := messages.Receive(t.Context())
	require.NoError(t, err)
	next := func() string {
		t.Helper()
		message, err := messages.ReceiveMessage(t.Context())
		require.NoError(t, err)
		return message.Payload
	}

	require.NoError(t, s.withdraw(t.Context(), k, second))
	require.Zero(t, request(second, wait), "it comes back, to the end")
	result, err := s.release(t.Context(), extension{term{k, holder, granted}, time.Minute, time.Hour})
	require.NoError(t, err)
	require.Equal(t, done, result)
	require.Contains(t, next(), "granted "+first.String(), "the withdrawal of a waiter while the resource is held wakes nobody")

	require.NoError(t, s.withdraw(t.Context(), k, first))
	require.Equal(t, "free "+second.String(), next())
	require.Positive(t, request(second, wait))
	require.NoError(t, s.withdraw(t.Context(), k, second), "a grant whose reply was lost is given back")
	require.Positive(t, request(first, try))
}
