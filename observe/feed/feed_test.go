package feed_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/observe/feed"
)

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
	wrote(f, fencedb.OpWrite, nil, fencedb.NewGrant(resource, 1, one, time.Time{}))
}

func TestTheWorkerIsHostAndProcessUnlessNamed(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	f := feed.New(s.client, feed.Namespace(s.namespace))
	commit(f, "table:12")
	host, err := os.Hostname()
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf("%s:%d", host, os.Getpid()), s.all(f)[0].Worker)
}

// The digits are those of printf table:12 | sha256sum.
func TestResourcesAreHashedOnRequest(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	f := s.feed(feed.HashResources())
	commit(f, "table:12")
	require.Equal(t, "38ab6cd93feb", s.all(f)[0].Resource)
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

func TestItTracesBothHalves(t *testing.T) {
	t.Parallel()
	var f any = newStream(t).feed()
	require.Implements(t, (*lease.Tracer)(nil), f)
	require.Implements(t, (*fencedb.Tracer)(nil), f)
}
