package feed_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
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
	ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
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

// all closes the feed and returns what it has published, without the values that differ from run to
// run.
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

func TestAnEventInJSON(t *testing.T) {
	t.Parallel()
	e := feed.Event{
		ID: "1700000000123-4", At: time.UnixMilli(1700000000123).UTC(), Kind: feed.Refused, Worker: "kitchen-2", Resource: "table:12",
		Token: 41, LeaseID: "0f8fad5b", Stored: 42, TTL: 1500 * time.Millisecond, Took: 1250 * time.Microsecond, Cause: "stale",
	}
	text, err := json.Marshal(e)
	require.NoError(t, err)
	require.JSONEq(t, `{
		"id": "1700000000123-4", "at": "2023-11-14T22:13:20.123Z", "kind": "refused", "worker": "kitchen-2", "resource": "table:12",
		"token": 41, "lease_id": "0f8fad5b", "stored": 42, "ttl_ms": 1500, "took_ms": 1.25, "cause": "stale"
	}`, string(text))
	var back feed.Event
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, e, back)

	text, err = json.Marshal(feed.Event{Kind: feed.Waiting})
	require.NoError(t, err)
	require.JSONEq(t, `{"kind": "waiting"}`, string(text))
}

func commit(f *feed.Feed, resource string) {
	wrote(f, fencedb.OpWrite, nil, fencedb.NewGrant(resource, 1, one, fencedb.NoEnd))
}

// Not in the goroutine that publishes, at the first event.
func TestAFeedWithoutAClientPanicsAtOnce(t *testing.T) {
	t.Parallel()
	require.PanicsWithValue(t, "feed: New needs a client of Redis", func() { feed.New(nil) })
}

// Whoever sees an event finds the process among the holders.
func TestTheWorkerIsNamedAsTheHolderIs(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	f := feed.New(s.client, feed.Namespace(s.namespace))
	commit(f, "table:12")
	issuer, err := lease.New(s.client, lease.Config{TTL: time.Minute, RenewEvery: lease.Never, Namespace: s.namespace})
	require.NoError(t, err)
	_, err = issuer.Acquire(t.Context(), "table:12", lease.NoWait())
	require.NoError(t, err)
	held, err := issuer.Inspect(t.Context(), "table:12")
	require.NoError(t, err)
	require.Equal(t, held.Label, s.all(f)[0].Worker)
}

// The digits are those of printf table:12 | sha256sum.
func TestResourcesAreHashedOnRequest(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	f := s.feed(feed.HashResources())
	commit(f, "table:12")
	require.Equal(t, "table:38ab6cd93feb", s.all(f)[0].Resource)
	require.Len(t, feed.Hashed("untyped"), 12)
}

func TestTheStreamIsBounded(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	for range 4 {
		f := s.feed()
		for range 4000 {
			commit(f, "table:12")
		}
		require.NoError(t, f.Close(t.Context()))
		require.Zero(t, f.Dropped())
	}
	n, err := s.client.XLen(t.Context(), s.key()).Result()
	require.NoError(t, err)
	require.GreaterOrEqual(t, n, int64(10_000))
	require.Less(t, n, int64(10_500))
}

// unanswering is a client whose server never answers. Its attempts fail when the test says so.
func unanswering(t *testing.T) (client *redis.Client, give func()) {
	t.Helper()
	up, fail := context.WithCancel(context.Background())
	client = redis.NewClient(&redis.Options{
		MaxRetries:    -1,
		DialerRetries: 1,
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			<-up.Done()
			return nil, net.ErrClosed
		},
	})
	t.Cleanup(func() {
		fail()
		_ = client.Close()
	})
	return client, fail
}

func TestWorkIsNotHeldUpByARedisThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	client, give := unanswering(t)
	f := feed.New(client)
	const many = 20_000
	for range many {
		commit(f, "table:12")
	}
	dropped := f.Dropped()
	require.Positive(t, dropped)
	require.Less(t, dropped, int64(many))

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, f.Close(ended), context.Canceled)
	give()
	require.NoError(t, f.Close(t.Context()))
	require.Equal(t, int64(many), f.Dropped())
}

func TestWhatHappensAfterCloseIsDropped(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	f := s.feed()
	commit(f, "table:12")
	require.NoError(t, f.Close(t.Context()))
	commit(f, "table:13")
	require.NoError(t, f.Close(t.Context()))
	require.Equal(t, int64(1), f.Dropped())
	require.Len(t, s.read("0", 1), 1)
}

// A user without the right to publish is how a recommended set-up once lost every event in silence.
func TestWhoRunsTheProcessLearnsThatEventsAreDropped(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	reports := make(chan error, 8)
	f := s.feed(feed.OnOutage(func(err error) { reports <- err }))
	require.NoError(t, s.client.Set(t.Context(), s.key(), "no stream", 0).Err())
	commit(f, "table:12")
	require.ErrorContains(t, <-reports, "WRONGTYPE")
	commit(f, "table:12") // reported already
	require.Eventually(t, func() bool { return f.Dropped() == 2 }, time.Minute, time.Millisecond)
	require.NoError(t, s.client.Del(t.Context(), s.key()).Err())
	commit(f, "table:13")
	require.NoError(t, <-reports)
	require.NoError(t, f.Close(t.Context()))
	require.Empty(t, reports)
	require.Len(t, s.read("0", 1), 1)
}

// The server is at its limit and refuses; the answer is that of each command.
func TestWhatRedisRefusesIsCounted(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	require.NoError(t, s.client.Set(t.Context(), s.key(), "no stream", 0).Err())
	f := s.feed()
	for range 3 {
		commit(f, "table:12")
	}
	require.NoError(t, f.Close(t.Context()))
	require.Equal(t, int64(3), f.Dropped())
}

// panicking is a hook with a fault of its own.
type panicking struct{}

func (panicking) DialHook(next redis.DialHook) redis.DialHook { return next }
func (panicking) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(context.Context, redis.Cmder) error { panic("a hook of the client") }
}
func (panicking) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(context.Context, []redis.Cmder) error { panic("a hook of the client") }
}

func TestAHookThatPanicsDropsEventsAndNotTheProcess(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(testenv.Redis(t).Options())
	t.Cleanup(func() { _ = client.Close() })
	client.AddHook(panicking{})
	f := feed.New(client)
	for range 3 {
		commit(f, "table:12")
	}
	require.NoError(t, f.Close(t.Context()))
	require.Equal(t, int64(3), f.Dropped())
}

func TestItTracesBothHalves(t *testing.T) {
	t.Parallel()
	var f any = newStream(t).feed()
	require.Implements(t, (*lease.Tracer)(nil), f)
	require.Implements(t, (*fencedb.Tracer)(nil), f)
}

// The kinds are the constants that event.go declares.
func TestTheDocumentationListsEveryKind(t *testing.T) {
	t.Parallel()
	read := func(file, from, pattern string) (names []string) {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		_, section, found := strings.Cut(string(text), from)
		require.True(t, found)
		for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(section, -1) {
			names = append(names, match[1])
		}
		return names
	}
	declared := read("event.go", "type Kind string", `Kind = "(\w+)"`)
	require.NotEmpty(t, declared)
	require.Equal(t, declared, read("../../docs/observing.md", "\n## Events\n", "(?m)^\\| `(\\w+)` \\|"))
}

func Example() {
	server, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	ctx := context.Background()

	events := feed.New(client, feed.Worker("kitchen-2"))
	write := fencedb.TraceStart{ // what a refused write tells its tracers
		Op:     fencedb.OpWrite,
		Grants: []fencedb.Grant{fencedb.NewGrant("table:12", 41, uuid.New(), fencedb.NoEnd)},
	}
	events.TraceWriteEnd(events.TraceWriteStart(ctx, write), fencedb.TraceEnd{
		TraceStart: write,
		Err:        &fencedb.StaleError{Resource: "table:12", Token: 41, Stored: 42},
	})
	if err := events.Close(ctx); err != nil {
		log.Fatal(err)
	}

	enough := errors.New("enough")
	err = feed.Follow(ctx, client, "0", func(e feed.Event) error {
		fmt.Printf("%s %s on %s: carried %d, stored %d\n", e.Worker, e.Kind, e.Resource, e.Token, e.Stored)
		return enough
	})
	fmt.Println(errors.Is(err, enough))
	// Output:
	// kitchen-2 refused on table:12: carried 41, stored 42
	// true
}
