package feed_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/observe/feed"
)

var (
	one = uuid.MustParse("11111111-0000-4000-8000-000000000000")
	two = uuid.MustParse("22222222-0000-4000-8000-000000000000")
)

func start(op lease.Op, resource string, token int64, id uuid.UUID) lease.TraceStart {
	return lease.TraceStart{Op: op, Kind: "lease", Resource: resource, Resources: 1, Token: token, LeaseID: id}
}

// told is one pair of calls with nothing in between.
func told(f *feed.Feed, s lease.TraceStart, took, validFor time.Duration, err error) {
	ctx := f.TraceLeaseStart(context.Background(), s)
	f.TraceLeaseEnd(ctx, lease.TraceEnd{TraceStart: s, Took: took, ValidFor: validFor, Err: err})
}

func TestALeaseThatWasWaitedFor(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	f := s.feed()

	asked := start(lease.OpAcquire, "table:12", 0, one)
	acquiring := f.TraceLeaseStart(t.Context(), asked)
	waiting := f.TraceLeaseStart(acquiring, start(lease.OpWait, "table:12", 0, one))
	f.TraceLeaseEnd(waiting, lease.TraceEnd{TraceStart: start(lease.OpWait, "table:12", 0, one), Took: 40 * time.Millisecond})
	held := start(lease.OpHold, "table:12", 7, one)
	holding := f.TraceLeaseStart(t.Context(), held)
	asked.Token = 7
	f.TraceLeaseEnd(acquiring, lease.TraceEnd{TraceStart: asked, Took: 50 * time.Millisecond, ValidFor: 9 * time.Second})
	told(f, start(lease.OpExtend, "table:12", 7, one), time.Millisecond, 8*time.Second, nil)
	f.TraceLeaseEnd(holding, lease.TraceEnd{TraceStart: held, Took: time.Minute, Err: lease.ErrReleased})

	event := feed.Event{Worker: "w", Resource: "table:12", Token: 7, LeaseID: "11111111"}
	require.Equal(t, []feed.Event{
		{Kind: feed.Waiting, Worker: "w", Resource: "table:12", LeaseID: "11111111"},
		with(event, feed.Granted, 40*time.Millisecond, 9*time.Second, ""),
		with(event, feed.Extended, time.Millisecond, 8*time.Second, ""),
		with(event, feed.Released, time.Minute, 0, ""),
	}, s.all(f))
}

func with(e feed.Event, kind feed.Kind, took, ttl time.Duration, cause string) feed.Event {
	e.Kind, e.Took, e.TTL, e.Cause = kind, took, ttl, cause
	return e
}

func TestEachLeaseOfSeveralIsGranted(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	f := s.feed()
	asked := start(lease.OpAcquire, "sku:1", 0, one)
	asked.Resources = 2
	acquiring := f.TraceLeaseStart(t.Context(), asked)
	f.TraceLeaseStart(t.Context(), start(lease.OpHold, "sku:1", 7, one))
	f.TraceLeaseStart(t.Context(), start(lease.OpHold, "sku:2", 8, one))
	f.TraceLeaseEnd(acquiring, lease.TraceEnd{TraceStart: asked, ValidFor: time.Second})
	require.Equal(t, []feed.Event{
		{Kind: feed.Granted, Worker: "w", Resource: "sku:1", Token: 7, LeaseID: "11111111", TTL: time.Second},
		{Kind: feed.Granted, Worker: "w", Resource: "sku:2", Token: 8, LeaseID: "11111111", TTL: time.Second},
	}, s.all(f))
}

// Redis has gone back: what the first token was for is given back, and the acquisition begins anew
// with its lease id.
func TestWhatAnAcquisitionGivesBackIsNotGranted(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	f := s.feed()
	acquiring := f.TraceLeaseStart(t.Context(), start(lease.OpAcquire, "a", 0, one))
	told(f, start(lease.OpHold, "a", 7, one), time.Second, 0, lease.ErrReleased)
	f.TraceLeaseStart(t.Context(), start(lease.OpHold, "a", 9, one))
	f.TraceLeaseEnd(acquiring, lease.TraceEnd{TraceStart: start(lease.OpAcquire, "a", 9, one), ValidFor: time.Second})
	require.Equal(t, []feed.Event{
		{Kind: feed.Released, Worker: "w", Resource: "a", Token: 7, LeaseID: "11111111", Took: time.Second},
		{Kind: feed.Granted, Worker: "w", Resource: "a", Token: 9, LeaseID: "11111111", TTL: time.Second},
	}, s.all(f))
}

func TestAcquisitionsSideBySideAreToldApart(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	f := s.feed()
	a := f.TraceLeaseStart(t.Context(), start(lease.OpAcquire, "a", 0, one))
	b := f.TraceLeaseStart(t.Context(), start(lease.OpAcquire, "b", 0, two))
	f.TraceLeaseStart(t.Context(), start(lease.OpHold, "a", 1, one))
	f.TraceLeaseStart(t.Context(), start(lease.OpHold, "b", 2, two))
	f.TraceLeaseEnd(b, lease.TraceEnd{TraceStart: start(lease.OpAcquire, "b", 2, two), ValidFor: time.Second})
	f.TraceLeaseEnd(a, lease.TraceEnd{TraceStart: start(lease.OpAcquire, "a", 1, one), ValidFor: time.Second})
	require.Equal(t, []feed.Event{
		{Kind: feed.Granted, Worker: "w", Resource: "b", Token: 2, LeaseID: "22222222", TTL: time.Second},
		{Kind: feed.Granted, Worker: "w", Resource: "a", Token: 1, LeaseID: "11111111", TTL: time.Second},
	}, s.all(f))
}

// With the real thing: what leases of an issuer go through.
func TestAnIssuerAsTheFeedSeesIt(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	f := s.feed()
	issuer, err := lease.New(s.client, lease.Config{TTL: time.Minute, Namespace: s.namespace, Tracers: []lease.Tracer{f}})
	require.NoError(t, err)
	leases, err := issuer.AcquireAll(t.Context(), []string{"sku:1", "sku:2"})
	require.NoError(t, err)
	_, err = issuer.Acquire(t.Context(), "sku:2", lease.NoWait())
	require.ErrorIs(t, err, lease.ErrHeld)
	require.NoError(t, leases[0].Extend(t.Context()))
	require.NoError(t, leases.Release(t.Context()))

	events := s.read("0", 6)
	kinds := map[string]int{}
	for _, e := range events {
		kinds[string(e.Kind)+" "+e.Resource]++
	}
	require.Equal(t, map[string]int{
		"granted sku:1": 1, "granted sku:2": 1, "held sku:2": 1, "extended sku:1": 1, "released sku:1": 1, "released sku:2": 1,
	}, kinds)
	require.Equal(t, leases[1].Token(), events[1].Token)
	require.Equal(t, leases[1].LeaseID().String()[:8], events[1].LeaseID)
	require.InDelta(t, time.Minute, events[1].TTL, float64(20*time.Second))
}

func TestHowLeasesEnd(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	f := s.feed()
	var wanted []feed.Event
	for cause, word := range map[error]string{
		lease.ErrExpired: "expired", lease.ErrUnreachable: "unreachable", lease.ErrLost: "lost",
		lease.ErrRevoked: "revoked", errors.New("another"): "lost",
	} {
		told(f, start(lease.OpHold, word, 7, one), time.Second, 0, fmt.Errorf("wrapped: %w", cause))
		wanted = append(wanted, feed.Event{
			Kind: feed.Lost, Worker: "w", Resource: word, Token: 7, LeaseID: "11111111", Took: time.Second, Cause: word,
		})
	}
	require.Equal(t, wanted, s.all(f))
}

func TestWhatElseHappensToLeases(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	f := s.feed()
	told(f, start(lease.OpAcquire, "sku:1", 0, uuid.Nil), time.Second, 0, &lease.HeldError{Resource: "sku:2"})
	told(f, start(lease.OpRevoke, "table:12", 9, one), time.Second, 0, nil)
	require.Equal(t, []feed.Event{
		{Kind: feed.Held, Worker: "w", Resource: "sku:2", Took: time.Second},
		{Kind: feed.Revoked, Worker: "w", Resource: "table:12", Token: 9, LeaseID: "11111111", Took: time.Second},
	}, s.all(f))
}

func TestWhatIsNoNewsIsNotPublished(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	f := s.feed()
	for _, op := range []lease.Op{lease.OpAcquire, lease.OpExtend, lease.OpRevoke} {
		told(f, start(op, "table:12", 0, uuid.Nil), 0, 0, lease.ErrUnreachable)
	}
	told(f, start(lease.OpRelease, "table:12", 1, one), 0, 0, nil) // told by the end of its OpHold
	told(f, start(lease.OpRaise, "table:12", 1, one), 0, 0, nil)
	semaphore := start(lease.OpWait, "table:12", 1, one)
	semaphore.Kind = "semaphore"
	told(f, semaphore, 0, 0, nil)
	semaphore.Op = lease.OpHold
	told(f, semaphore, 0, 0, lease.ErrLost)
	require.Empty(t, s.all(f))
}

func wrote(f *feed.Feed, op fencedb.Op, err error, grants ...fencedb.Grant) {
	s := fencedb.TraceStart{Op: op, Grants: grants}
	ctx := f.TraceWriteStart(context.Background(), s)
	f.TraceWriteEnd(ctx, fencedb.TraceEnd{TraceStart: s, Took: time.Second, Err: err})
}

func TestWrites(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	f := s.feed()
	a := fencedb.NewGrant("sku:1", 7, one, fencedb.NoEnd)
	b := fencedb.NewGrant("sku:2", 8, two, fencedb.NoEnd)

	wrote(f, fencedb.OpWrite, nil, a, b)
	wrote(f, fencedb.OpWrite, fencedb.ErrCommitted, a)
	wrote(f, fencedb.OpCommit, nil, a)
	wrote(f, fencedb.OpEnter, nil, a)
	wrote(f, fencedb.OpWrite, &fencedb.StaleError{Resource: "sku:2", Token: 8, Stored: 9}, a, b)
	wrote(f, fencedb.OpEnter, fencedb.ErrStale, a)
	wrote(f, fencedb.OpWrite, &fencedb.BusyError{}, a)
	wrote(f, fencedb.OpWrite, errors.New("the caller's"), b)
	wrote(f, fencedb.OpSeal, nil, a)
	wrote(f, fencedb.OpSeal, &fencedb.StaleError{Resource: "sku:1", Token: 7, Stored: 9}, a)
	wrote(f, fencedb.OpSeal, &fencedb.BusyError{}, a)
	wrote(f, fencedb.OpOutcome, nil, a)
	wrote(f, fencedb.OpOutcome, fencedb.ErrCommitUnknown, a)

	first := feed.Event{Worker: "w", Resource: "sku:1", Token: 7, LeaseID: "11111111"}
	second := feed.Event{Worker: "w", Resource: "sku:2", Token: 8, LeaseID: "22222222"}
	refused := with(second, feed.Refused, time.Second, 0, "stale")
	refused.Stored = 9
	passed := with(first, feed.NotSealed, time.Second, 0, "stale")
	passed.Stored = 9
	require.Equal(t, []feed.Event{
		with(first, feed.Committed, time.Second, 0, ""),
		with(second, feed.Committed, time.Second, 0, ""),
		with(first, feed.Committed, time.Second, 0, ""),
		refused,
		with(first, feed.Refused, time.Second, 0, "stale"),
		with(first, feed.Failed, time.Second, 0, "busy"),
		with(second, feed.Failed, time.Second, 0, "error"),
		with(first, feed.Sealed, time.Second, 0, ""),
		passed,
		with(first, feed.NotSealed, time.Second, 0, "busy"),
		with(first, feed.Committed, time.Second, 0, ""),
		with(first, feed.Failed, time.Second, 0, "commit_unknown"),
	}, s.all(f))
}

// The lease was sealed, which is no write.
func TestAHolderThatWritesNothingHasCommittedNothing(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	f := s.feed()
	issuer, err := lease.New(s.client, lease.Config{TTL: time.Minute, Namespace: s.namespace, Tracers: []lease.Tracer{f}})
	require.NoError(t, err)
	desk := guard.New(issuer, fencedb.With(testenv.Postgres(t), fencedb.Trace(f)))
	require.NoError(t, desk.Do(t.Context(), "slot:1", func(context.Context, *guard.Holder) error { return nil }))

	var kinds []feed.Kind
	for _, e := range s.all(f) {
		kinds = append(kinds, e.Kind)
	}
	require.Equal(t, []feed.Kind{feed.Sealed, feed.Granted, feed.Released}, kinds)
}

// The story that all this is about, on real servers: a holder is overtaken without noticing,
// writes, and is refused.
func TestAZombieAsTheFeedSeesIt(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	f := s.feed()
	issuer, err := lease.New(s.client, lease.Config{TTL: time.Minute, Namespace: s.namespace, Tracers: []lease.Tracer{f}})
	require.NoError(t, err)
	db := fencedb.With(testenv.Postgres(t), fencedb.Trace(f))
	nothing := func(pgx.Tx) error { return nil }

	zombie, err := issuer.Acquire(t.Context(), "table:12", lease.NoWait())
	require.NoError(t, err)
	require.NoError(t, s.client.Del(t.Context(), "lease:v1:{"+s.namespace+"/table:12}:owner").Err()) // as if it had run out
	holder, err := issuer.Acquire(t.Context(), "table:12", lease.NoWait())
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
