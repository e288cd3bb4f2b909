package feed_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/observe/feed"
)

// The story that all this is about, on real servers: a holder is overtaken without noticing, writes, and is refused.
func TestAZombieAsTheFeedSeesIt(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	f := s.feed()
	issuer, err := lease.New(s.client, lease.Config{TTL: time.Minute, Namespace: s.namespace, Tracers: []lease.Tracer{f}})
	require.NoError(t, err)
	db := fencedb.Traced(testenv.Postgres(t), f)
	nothing := func(pgx.Tx) error { return nil }

	zombie, err := issuer.TryAcquire(t.Context(), "table:12")
	require.NoError(t, err)
	require.NoError(t, s.client.Del(t.Context(), "lease:v1:{"+s.namespace+"/table:12}:owner").Err()) // as if it had run out
	holder, err := issuer.TryAcquire(t.Context(), "table:12")
	require.NoError(t, err)
	require.NoError(t, fencedb.Tx(t.Context(), db, holder, nothing))
	require.ErrorIs(t, fencedb.Tx(t.Context(), db, zombie, nothing), fencedb.ErrStale)

	event := func(kind feed.Kind, l *lease.Lease) feed.Event {
		return feed.Event{Kind: kind, Worker: "w", Resource: "table:12", Token: l.Token(), LeaseID: l.LeaseID().String()[:8]}
	}
	refused := event(feed.Refused, zombie)
	refused.Stored, refused.Cause = holder.Token(), "stale"
	events := s.all(f)
	for i := range events {
		events[i].Took, events[i].TTL = 0, 0
	}
	require.Equal(t, []feed.Event{
		event(feed.Granted, zombie), event(feed.Granted, holder), event(feed.Committed, holder), refused,
	}, events)
}
