package otel_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
	fenceotel "github.com/fencedb/fencedb/observe/otel"
)

func TestOutcomesOfLeases(t *testing.T) {
	t.Parallel()
	r := newRecorder(fenceotel.Config{})
	requireStatus(t, r.lease(t, lease.OpAcquire, nil), "granted", false)
	requireStatus(t, r.lease(t, lease.OpAcquire, &lease.HeldError{}), "held", false)
	requireStatus(t, r.lease(t, lease.OpAcquire, lease.ErrUnreachable), "unreachable", true)
	requireStatus(t, r.lease(t, lease.OpWait, &lease.HeldError{}), "held", false)
	requireStatus(t, r.lease(t, lease.OpRelease, nil), "released", false)
	requireStatus(t, r.lease(t, lease.OpRelease, lease.ErrLost), "lost", true)
	requireStatus(t, r.lease(t, lease.OpRevoke, nil), "done", false)
	requireStatus(t, r.lease(t, lease.OpRaise, lease.ErrUnreachable), "failed", true)
	requireStatus(t, r.lease(t, lease.OpHeal, nil), "healed", false)
	requireStatus(t, r.lease(t, lease.OpHeal, lease.ErrLost), "failed", true)
	requireStatus(t, r.lease(t, lease.OpHold, lease.ErrReleased), "released", false)

	lost := r.lease(t, lease.OpHold, lease.ErrExpired)
	requireStatus(t, lost, "expired", true)
	require.Equal(t, map[string]map[string]any{"lease.lost": {"fencedb.cause": "expired"}}, events(lost))
}

func TestWhatASpanOfALeaseSays(t *testing.T) {
	t.Parallel()
	r := newRecorder(fenceotel.Config{})
	s := started(lease.OpAcquire)
	s.Namespace, s.Kind, s.Resources, s.Token = "eu", "semaphore", 2, 0
	ctx := r.TraceLeaseStart(t.Context(), s)
	s.Token = 7
	r.TraceLeaseEnd(ctx, lease.TraceEnd{TraceStart: s})
	require.Equal(t, map[string]any{
		"fencedb.resource": table12, "fencedb.resources": int64(2), "fencedb.kind": "semaphore", "fencedb.namespace": "eu",
		"fencedb.lease_id": "11111111", "fencedb.token": int64(7), "fencedb.outcome": "granted",
	}, said(r.span(t, "lease acquire")))
}

func TestNamesAndTextsOnRequest(t *testing.T) {
	t.Parallel()
	secret := errors.New("table:12 is the director's")
	require.Empty(t, events(newRecorder(fenceotel.Config{}).lease(t, lease.OpAcquire, secret)))

	plain := newRecorder(fenceotel.Config{Plain: true}).lease(t, lease.OpAcquire, secret)
	require.Equal(t, "table:12", said(plain)["fencedb.resource"])
	require.Equal(t, secret.Error(), events(plain)["exception"]["exception.message"])
}

func TestOutcomesOfWrites(t *testing.T) {
	t.Parallel()
	r := newRecorder(fenceotel.Config{})
	g := grant("table:12", 7)
	for _, op := range []fencedb.Op{fencedb.OpWrite, fencedb.OpCommit, fencedb.OpEnter} {
		requireStatus(t, r.wrote(t, op, nil, g), "committed", false)
		requireStatus(t, r.wrote(t, op, errors.New("the caller's"), g), "error", false)
		requireStatus(t, r.wrote(t, op, fencedb.ErrStale, g), "stale", true)
		requireStatus(t, r.wrote(t, op, fencedb.ErrCommitUnknown, g), "commit_unknown", true)
	}
	require.Equal(t, map[string]any{
		"fencedb.resource": table12, "fencedb.resources": int64(2), "fencedb.lease_id": "11111111", "fencedb.token": int64(7),
		"fencedb.outcome": "committed",
	}, said(r.wrote(t, fencedb.OpWrite, nil, g, grant("sku:1", 8))))
}

// The write is not under the context of the lease, only with its grant.
func TestARefusalIsToldInTheWriteAndInTheLifeOfTheLease(t *testing.T) {
	t.Parallel()
	r := newRecorder(fenceotel.Config{})
	hold := r.TraceLeaseStart(t.Context(), started(lease.OpHold))
	another := started(lease.OpHold)
	another.Resource = "sku:1" // of the same acquisition
	other := r.TraceLeaseStart(t.Context(), another)

	refused := map[string]map[string]any{
		"fence.refused": {"fencedb.resource": table12, "fencedb.token": int64(7), "fencedb.stored": int64(9)},
	}
	write := r.wrote(t, fencedb.OpWrite, &fencedb.StaleError{Resource: "table:12", Token: 7, Stored: 9}, grant("sku:1", 8), grant("table:12", 7))
	require.Equal(t, refused, events(write))
	commit := r.wrote(t, fencedb.OpCommit, fencedb.ErrStale, grant("table:12", 7))
	require.Empty(t, events(commit), "told by its write")

	r.TraceLeaseEnd(other, lease.TraceEnd{TraceStart: another, Err: lease.ErrReleased})
	r.TraceLeaseEnd(hold, lease.TraceEnd{TraceStart: started(lease.OpHold), Err: lease.ErrReleased})
	ended := r.named("lease hold")
	require.Empty(t, events(ended[0]))
	require.Equal(t, refused, events(ended[1]))
}

func TestARenewalIsToldIfItFails(t *testing.T) {
	t.Parallel()
	r := newRecorder(fenceotel.Config{})
	renew := func(err error) {
		s := started(lease.OpExtend)
		r.TraceLeaseEnd(r.TraceLeaseStart(t.Context(), s), lease.TraceEnd{TraceStart: s, Err: err})
	}
	hold := r.TraceLeaseStart(t.Context(), started(lease.OpHold))
	renew(nil)
	renew(lease.ErrUnreachable)
	r.TraceLeaseEnd(hold, lease.TraceEnd{TraceStart: started(lease.OpHold), Err: lease.ErrReleased})
	renew(lease.ErrLost) // of one that is over: nowhere to tell it
	require.Len(t, r.Ended(), 1)
	require.Len(t, r.Ended()[0].Events(), 1)
	require.Equal(t, map[string]map[string]any{"lease.not_extended": {"fencedb.cause": "unreachable"}}, events(r.Ended()[0]))
}

// One lease id for two holds, as when a program asks again for what it has: the end of one does not hide the other.
func TestHoldsOfOneLeaseID(t *testing.T) {
	t.Parallel()
	r := newRecorder(fenceotel.Config{})
	first := r.TraceLeaseStart(t.Context(), started(lease.OpHold))
	second := r.TraceLeaseStart(t.Context(), started(lease.OpHold))
	r.TraceLeaseEnd(first, lease.TraceEnd{TraceStart: started(lease.OpHold), Err: lease.ErrReleased})
	s := fencedb.TraceStart{Op: fencedb.OpEnter, Grants: []fencedb.Grant{grant("table:12", 7)}}
	r.TraceWriteEnd(r.TraceWriteStart(t.Context(), s), fencedb.TraceEnd{TraceStart: s, Err: fencedb.ErrStale})
	r.TraceLeaseEnd(second, lease.TraceEnd{TraceStart: started(lease.OpHold), Err: lease.ErrReleased})
	require.Contains(t, events(r.named("lease hold")[1]), "fence.refused")
}

func TestTheGlobalProviderIsTheDefault(t *testing.T) {
	t.Parallel()
	tracer := fenceotel.New(fenceotel.Config{})
	s := fencedb.TraceStart{Op: fencedb.OpWrite, Grants: []fencedb.Grant{fencedb.NewGrant("table:12", 7, uuid.New(), time.Time{})}}
	tracer.TraceWriteEnd(tracer.TraceWriteStart(t.Context(), s), fencedb.TraceEnd{TraceStart: s}) // without one, nowhere
}
