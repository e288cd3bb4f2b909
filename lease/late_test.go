package lease

import (
	"context"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	protocol "github.com/fencedb/fencedb/lease/internal/redis"
)

// A process that is stopped between deciding to ask and asking has not heard from Redis, and may ask again.
func TestATimeThatIsOverBeforeTheRequestIsSentIsNoAnswer(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	defer client.Close()
	i, err := New(client, Config{TTL: time.Minute})
	require.NoError(t, err)
	a, err := i.acquisition(t.Context(), []string{"table:12"}, nil)
	require.NoError(t, err)

	_, _, err = a.attempt(t.Context(), try, 0) // over at once

	require.ErrorIs(t, err, ErrUnreachable)
	require.True(t, protocol.Transient(err))
}

func TestAMemberThatIsNotAskedInTimeHasNotAnswered(t *testing.T) {
	t.Parallel()
	q := &quorum{members: make([]*single, 3), need: 2, patience: 0}
	ask := func(ctx context.Context, _ *single) (int, error) {
		return protocol.Bounded(ctx, func() int { return 1 })
	}
	for _, vote := range poll(t.Context(), q, ask) {
		require.ErrorIs(t, vote.err, ErrUnreachable)
	}
}
