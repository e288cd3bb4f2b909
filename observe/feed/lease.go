package feed

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/observe/internal/outcome"
)

// acquisition gathers, in the context of one, what its end does not tell: how long it waited, and all its leases.
type acquisition struct {
	waited time.Duration
	leases []lease.TraceStart
}

type acquisitionKey struct{}

func acquisitionIn(ctx context.Context) *acquisition {
	a, _ := ctx.Value(acquisitionKey{}).(*acquisition)
	return a
}

// TraceLeaseStart implements [lease.Tracer].
func (f *Feed) TraceLeaseStart(ctx context.Context, s lease.TraceStart) context.Context {
	if s.Kind != "lease" {
		return ctx
	}
	switch s.Op {
	case lease.OpAcquire:
		return context.WithValue(ctx, acquisitionKey{}, new(acquisition))
	case lease.OpWait:
		f.publish(about(Waiting, s))
	case lease.OpHold:
		if a := acquisitionIn(ctx); a != nil {
			a.leases = append(a.leases, s)
		}
		// What is done under the lease is not part of the acquisition.
		return context.WithValue(ctx, acquisitionKey{}, (*acquisition)(nil))
	}
	return ctx
}

// TraceLeaseEnd implements [lease.Tracer].
func (f *Feed) TraceLeaseEnd(ctx context.Context, e lease.TraceEnd) {
	if e.Kind != "lease" {
		return
	}
	switch e.Op {
	case lease.OpAcquire:
		f.acquired(acquisitionIn(ctx), e)
	case lease.OpWait:
		if a := acquisitionIn(ctx); a != nil {
			a.waited += e.Took
		}
	case lease.OpHold:
		f.over(e)
	case lease.OpExtend:
		f.ifDone(Extended, e)
	case lease.OpRevoke:
		f.ifDone(Revoked, e)
	case lease.OpHeal:
		f.ifDone(Healed, e)
	}
}

// acquired tells of each lease only now: before, it may still be given back, because it cannot be sealed.
func (f *Feed) acquired(a *acquisition, e lease.TraceEnd) {
	switch {
	case errors.Is(e.Err, lease.ErrHeld):
		held := about(Held, e.TraceStart)
		held.Took = e.Took
		if by := (*lease.HeldError)(nil); errors.As(e.Err, &by) {
			held.Resource = by.Resource // of several the one that was taken
		}
		f.publish(held)
	case e.Err == nil && a != nil:
		for _, s := range a.leases {
			granted := about(Granted, s)
			granted.TTL, granted.Took = e.ValidFor, a.waited
			f.publish(granted)
		}
	}
}

func (f *Feed) over(e lease.TraceEnd) {
	event := about(Released, e.TraceStart)
	if cause := outcome.Loss(e.Err); cause != "" {
		event.Kind, event.Cause = Lost, cause
	}
	event.Took = e.Took
	f.publish(event)
}

func (f *Feed) ifDone(kind Kind, e lease.TraceEnd) {
	if e.Err != nil {
		return
	}
	event := about(kind, e.TraceStart)
	event.TTL, event.Took = e.ValidFor, e.Took
	f.publish(event)
}

func about(kind Kind, s lease.TraceStart) Event {
	return Event{Kind: kind, Resource: s.Resource, Token: s.Token, LeaseID: short(s.LeaseID)}
}

func short(id uuid.UUID) string {
	if id == uuid.Nil {
		return ""
	}
	return id.String()[:8]
}
