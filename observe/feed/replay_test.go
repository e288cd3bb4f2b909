package feed_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/observe/feed"
)

func (s *stream) replay(from string) (seen []string, err error) {
	err = feed.Replay(s.Context(), s.client, from, func(e feed.Event) error {
		seen = append(seen, e.Resource)
		return nil
	}, feed.Namespace(s.namespace))
	return seen, err
}

func TestReplayEndsWithTheLastEvent(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	seen, err := s.replay("0")
	require.NoError(t, err)
	require.Empty(t, seen)

	var want []string
	for i := range 1000 { // more than one answer
		want = append(want, fmt.Sprint(i))
		s.add(fmt.Sprintf("7-%d", i), want[i])
	}
	seen, err = s.replay("0")
	require.NoError(t, err)
	require.Equal(t, want, seen)
	seen, err = s.replay("7-997")
	require.NoError(t, err)
	require.Equal(t, want[998:], seen)
}

func TestReplayEndsWithItsErrors(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	_, err := s.replay("$")
	require.ErrorIs(t, err, feed.ErrPlace)

	s.add("*", "a")
	s.add("*", "b")
	calls := 0
	err = feed.Replay(t.Context(), s.client, "0", func(feed.Event) error { calls++; return errEnough }, feed.Namespace(s.namespace))
	require.ErrorIs(t, err, errEnough)
	require.Equal(t, 1, calls)

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, feed.Replay(ended, s.client, "0", nil), context.Canceled)

	require.NoError(t, s.client.Set(t.Context(), s.key(), "no stream", 0).Err())
	_, err = s.replay("0")
	require.True(t, redis.HasErrorPrefix(err, "WRONGTYPE"))
}
