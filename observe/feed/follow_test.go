package feed_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/observe/feed"
)

// following collects resources of events in the background.
type following struct {
	*testing.T
	seen chan string
	stop context.CancelCauseFunc
	err  chan error
}

func (s *stream) follow(from string) *following {
	ctx, stop := context.WithCancelCause(s.Context())
	f := &following{s.T, make(chan string, 100), stop, make(chan error, 1)}
	go func() {
		f.err <- feed.Follow(ctx, s.client, from, func(e feed.Event) error {
			f.seen <- e.Resource
			return nil
		}, feed.Namespace(s.namespace))
	}()
	s.Cleanup(func() { stop(nil) })
	return f
}

func (f *following) next() string {
	f.Helper()
	select {
	case resource := <-f.seen:
		return resource
	case err := <-f.err:
		require.NoError(f, err)
	case <-time.After(time.Minute):
		require.Fail(f, "no event")
	}
	return ""
}

// add puts an event into the stream under an id, "*" for the next.
func (s *stream) add(id, resource string) {
	s.Helper()
	require.NoError(s, s.client.XAdd(s.Context(), &redis.XAddArgs{
		Stream: s.key(), ID: id, Values: []string{"event", `{"kind":"committed","resource":"` + resource + `"}`},
	}).Err())
}

// awaitReader returns once the reader waits for what comes: it has seen the last, and XREAD is
// blocked.
func (s *stream) awaitReader() {
	s.Helper()
	require.Eventually(s, func() bool {
		n, err := s.client.InfoMap(s.Context(), "clients").Result()
		return err == nil && n["Clients"]["blocked_clients"] != "0"
	}, time.Minute, time.Millisecond)
}

// awaitTick returns in another millisecond of the server's.
func (s *stream) awaitTick() {
	s.Helper()
	now := func() time.Time { return s.client.Time(s.Context()).Val() }
	from := now()
	require.Eventually(s, func() bool { return now().Sub(from) > time.Millisecond }, time.Minute, time.Millisecond)
}

func TestFollowingFromNowOn(t *testing.T) {
	t.Parallel()
	s := &stream{t, testenv.OwnRedis(t).Client(), "ns"}
	s.add("*", "before")
	f := s.follow("$")
	s.awaitReader()
	s.add("*", "a")
	s.add("*", "b")
	require.Equal(t, "a", f.next())
	require.Equal(t, "b", f.next())
}

func TestFollowingFromAPlace(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	s.add("7-1", "a")
	s.add("7-2", "b")
	s.add("8-0", "c")
	require.Equal(t, "a", s.read("0", 3)[0].Resource)
	require.Equal(t, "a", s.read("7", 3)[0].Resource)
	require.Equal(t, "b", s.read("7-1", 2)[0].Resource)
	require.Equal(t, "c", s.read("7-2", 1)[0].Resource)
	require.Equal(t, feed.Event{
		ID: "8-0", At: time.UnixMilli(8), Kind: feed.Committed, Resource: "c",
	}, s.read("7-2", 1)[0])
}

func TestFollowingSurvivesARestartAndAFlush(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t, "--appendonly", "yes")
	s := &stream{t, server.Client(), "ns"}
	f := s.follow("0")
	s.add("*", "a")
	require.Equal(t, "a", f.next())
	server.Kill()
	server.Restart()
	s.add("*", "b")
	require.Equal(t, "b", f.next())
	require.NoError(t, s.client.FlushAll(t.Context()).Err())
	s.awaitTick() // or c could get the very id of b, and pass for it
	s.add("*", "c")
	require.Equal(t, "c", f.next())
}

// broken fails the first commands of a client.
type broken struct{ left atomic.Int32 }

func (b *broken) DialHook(next redis.DialHook) redis.DialHook { return next }

func (b *broken) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (b *broken) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if b.left.Add(-1) >= 0 {
			cmd.SetErr(net.ErrClosed)
			return net.ErrClosed
		}
		return next(ctx, cmd)
	}
}

func TestFollowingTriesAgainAfterFailures(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	options := *s.client.Options()
	s.client = redis.NewClient(&options)
	defer s.client.Close()
	s.add("*", "a")
	failing := new(broken)
	s.client.AddHook(failing)
	failing.left.Store(2)
	var told []error
	stopped := errors.New("seen")

	err := feed.Follow(t.Context(), s.client, "0", func(e feed.Event) error {
		require.Equal(t, "a", e.Resource)
		return stopped
	}, feed.Namespace(s.namespace), feed.OnOutage(func(err error) { told = append(told, err) }))

	require.ErrorIs(t, err, stopped)
	require.Negative(t, failing.left.Load())
	require.Equal(t, []error{net.ErrClosed, nil}, told, "once when it goes and once when it is back")
	require.Equal(t, "a", s.read("0", 1)[0].Resource, "who does not ask is not told")
}

// After a loss the ids of the new stream are lower where the clock of the server is behind that of
// the one before.
func TestFollowingGoesBackWithTheClock(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	s.add("9999999999999-0", "a")
	f := s.follow("0")
	require.Equal(t, "a", f.next())
	require.NoError(t, s.client.Del(t.Context(), s.key()).Err())
	s.add("5-0", "b")
	s.add("6-0", "c")
	require.Equal(t, "b", f.next())
	require.Equal(t, "c", f.next())
}

func TestWhatIsNoEventIsPassedOver(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	for _, values := range [][]string{{"other", "x"}, {"event", "no json"}, {"event", "{}"}, {"event", `{"kind":7}`}} {
		require.NoError(t, s.client.XAdd(t.Context(), &redis.XAddArgs{Stream: s.key(), Values: values}).Err())
	}
	s.add("*", "a")
	require.Equal(t, "a", s.read("0", 1)[0].Resource)
}

func TestFollowingEndsWithItsContext(t *testing.T) {
	t.Parallel()
	f := newStream(t).follow("$")
	cause := errors.New("shutting down")
	f.stop(cause)
	require.ErrorIs(t, <-f.err, cause)
}

// The client library alone would wait for an answer until its own timeouts are over.
func TestReadingEndsWithItsContextWhileRedisHangs(t *testing.T) {
	t.Parallel()
	type reads func(context.Context, redis.UniversalClient, string, func(feed.Event) error, ...feed.Option) error
	for name, read := range map[string]reads{"Follow": feed.Follow, "Replay": feed.Replay} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStream(t)
			s.add("*", "a")
			wire := new(faulty.RedisProxy)
			options := *s.client.Options()
			options.Dialer, options.ReadTimeout = wire.Dial, time.Hour
			client := redis.NewClient(&options)
			defer client.Close()
			ctx, stop := context.WithCancelCause(t.Context())
			cause, ended := errors.New("shutting down"), make(chan error, 1)
			go func() {
				ended <- read(ctx, client, "0", func(feed.Event) error {
					wire.Stop()
					time.AfterFunc(100*time.Millisecond, func() { stop(cause) }) // while the next request hangs
					return nil
				}, feed.Namespace(s.namespace))
			}()
			require.ErrorIs(t, <-ended, cause)
		})
	}
}

func TestFollowingEndsWithItsClient(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	options := *s.client.Options()
	s.client = redis.NewClient(&options)
	s.add("*", "a")
	f := s.follow("0")
	require.Equal(t, "a", f.next())
	require.NoError(t, s.client.Close())
	require.ErrorIs(t, <-f.err, redis.ErrClosed)
}

func TestAHookThatPanicsEndsReadingAndNotTheProcess(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(testenv.Redis(t).Options())
	t.Cleanup(func() { _ = client.Close() })
	client.AddHook(panicking{})
	nothing := func(feed.Event) error { return nil }
	for name, read := range map[string]func() error{
		"Follow":              func() error { return feed.Follow(t.Context(), client, "0", nothing) },
		"Follow from the end": func() error { return feed.Follow(t.Context(), client, "$", nothing) },
		"Replay":              func() error { return feed.Replay(t.Context(), client, "0", nothing) },
	} {
		require.ErrorContains(t, read(), "panicked", name)
	}
}

func TestFollowingEndsBetweenTwoEvents(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	s.add("*", "a")
	s.add("*", "b")
	ctx, cancel := context.WithCancel(t.Context())
	seen := 0
	err := feed.Follow(ctx, s.client, "0", func(feed.Event) error {
		seen++
		cancel()
		return nil
	}, feed.Namespace(s.namespace))
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 1, seen)
}

func TestNoPlaceIsRefused(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	for _, from := range []string{"", "now", "1-", "-1", "1-2-3", "1-x"} {
		require.ErrorContains(t, feed.Follow(t.Context(), s.client, from, nil), "not a position in the stream", from)
	}
}

func TestAServerThatRefusesForGoodEndsTheFollowing(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	require.NoError(t, s.client.Set(t.Context(), s.key(), "no stream", 0).Err())
	require.True(t, redis.HasErrorPrefix(<-s.follow("0").err, "WRONGTYPE"))
	require.True(t, redis.HasErrorPrefix(<-s.follow("$").err, "WRONGTYPE"))
}

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
	require.ErrorContains(t, err, "not a position in the stream")

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
