package feed_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/observe/feed"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// stream is one test's own.
type stream struct {
	*testing.T
	client    *redis.Client
	namespace string
}

func newStream(t *testing.T) *stream {
	t.Helper()
	return &stream{t, testenv.Redis(t), testenv.Namespace(t)}
}

func (s *stream) key() string { return "fencedb:v1:" + s.namespace + ":events" }

// feed is closed at the end of the test at the latest.
func (s *stream) feed(opts ...feed.Option) *feed.Feed {
	s.Helper()
	f := feed.New(s.client, append([]feed.Option{feed.Namespace(s.namespace), feed.Worker("w")}, opts...)...)
	s.Cleanup(func() { require.NoError(s, f.Close(context.Background())) })
	return f
}

var errEnough = errors.New("enough")

// read returns the first n events after from, for which it waits.
func (s *stream) read(from string, n int) []feed.Event {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), 20*time.Second)
	defer cancel()
	var events []feed.Event
	if n == 0 {
		return nil
	}
	err := feed.Follow(ctx, s.client, from, func(e feed.Event) error {
		if events = append(events, e); len(events) == n {
			return errEnough
		}
		return nil
	}, feed.Namespace(s.namespace))
	require.ErrorIs(s, err, errEnough, "after %d events", len(events))
	return events
}

// all closes the feed and returns what it has published, without the values that differ from run to run.
func (s *stream) all(f *feed.Feed) []feed.Event {
	s.Helper()
	require.NoError(s, f.Close(s.Context()))
	require.Zero(s, f.Dropped())
	n, err := s.client.XLen(s.Context(), s.key()).Result()
	require.NoError(s, err)
	events := s.read("0", int(n))
	for i := range events {
		require.NotEmpty(s, events[i].ID)
		require.WithinDuration(s, time.Now(), events[i].At, time.Hour)
		events[i].ID, events[i].At = "", time.Time{}
	}
	return events
}
