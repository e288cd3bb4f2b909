package feed

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
)

// acquisition collects what the end of an acquisition does not report. All its events have its
// lease id.
type acquisition struct {
	waited time.Duration
	leases []lease.TraceStart
}

// TraceLeaseStart implements [lease.Tracer].
func (f *Feed) TraceLeaseStart(ctx context.Context, s lease.TraceStart) context.Context {
	if s.Kind != "lease" {
		return ctx
	}
	switch s.Op {
	case lease.OpAcquire:
		f.mu.Lock()
		defer f.mu.Unlock()
		f.acquisitions[s.LeaseID] = new(acquisition)
	case lease.OpWait:
		f.publish(about(Waiting, s))
	case lease.OpHold:
		f.during(s.LeaseID, func(a *acquisition) { a.leases = append(a.leases, s) })
	}
	return ctx
}

// TraceLeaseEnd implements [lease.Tracer].
func (f *Feed) TraceLeaseEnd(_ context.Context, e lease.TraceEnd) {
	if e.Kind != "lease" {
		return
	}
	switch e.Op {
	case lease.OpAcquire:
		f.acquired(e)
	case lease.OpWait:
		f.during(e.LeaseID, func(a *acquisition) { a.waited += e.Took })
	case lease.OpHold:
		f.during(e.LeaseID, func(a *acquisition) { // it has given the lease back
			a.leases = slices.DeleteFunc(a.leases, func(s lease.TraceStart) bool {
				return s.Resource == e.Resource && s.Token == e.Token
			})
		})
		event := about(Released, e.TraceStart)
		if cause := e.Outcome(); cause != "released" {
			event.Kind, event.Cause = Lost, cause
		}
		event.Took = e.Took
		f.publish(event)
	case lease.OpExtend, lease.OpRevoke:
		if e.Err == nil {
			event := about(done[e.Op], e.TraceStart)
			event.TTL, event.Took = e.ValidFor, e.Took
			f.publish(event)
		}
	}
}

// done are the kinds that are published only after a success.
var done = map[lease.Op]Kind{lease.OpExtend: Extended, lease.OpRevoke: Revoked}

// during calls note, with mu held, if an acquisition with this id is under way.
func (f *Feed) during(id uuid.UUID, note func(*acquisition)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if a := f.acquisitions[id]; a != nil {
		note(a)
	}
}

// acquired publishes the leases at the end of the acquisition, when their remaining validity is
// known.
func (f *Feed) acquired(e lease.TraceEnd) {
	var a acquisition // stays empty if two callers used one lease id, which is not allowed
	f.during(e.LeaseID, func(mine *acquisition) {
		a = *mine
		delete(f.acquisitions, e.LeaseID)
	})
	if errors.Is(e.Err, lease.ErrHeld) {
		held := about(Held, e.TraceStart)
		held.Took = e.Took
		if by := (*lease.HeldError)(nil); errors.As(e.Err, &by) {
			held.Resource, held.Holder = by.Resource, by.Holder // the one of several that was busy
		}
		f.publish(held)
	}
	if e.Err != nil {
		return
	}
	for _, s := range a.leases {
		granted := about(Granted, s)
		granted.TTL, granted.Took = e.ValidFor, a.waited
		f.publish(granted)
	}
}

func about(kind Kind, s lease.TraceStart) Event {
	return Event{Kind: kind, Resource: s.Resource, Token: s.Token, LeaseID: Short(s.LeaseID)}
}

// TraceWriteStart implements [fencedb.Tracer].
func (f *Feed) TraceWriteStart(ctx context.Context, _ fencedb.TraceStart) context.Context { return ctx }

// TraceWriteEnd implements [fencedb.Tracer]. Of [fencedb.OpEnter], only refusals and failures are
// published, because it is not known whether the transaction commits; its outcome is published if
// the application asks for it ([fencedb.OpOutcome]).
func (f *Feed) TraceWriteEnd(_ context.Context, e fencedb.TraceEnd) {
	event, about := Event{Kind: Failed, Cause: e.Outcome(), Took: e.Took}, e.Grants
	switch {
	case e.Op == fencedb.OpCommit, e.Op == fencedb.OpEnter && event.Cause == "committed":
		return
	case event.Cause == "committed" && e.Op == fencedb.OpSeal:
		event.Kind, event.Cause = Sealed, ""
	case event.Cause == "committed":
		event.Kind, event.Cause = Committed, ""
	case event.Cause == "stale":
		grant, stored := e.Subject()
		event.Kind, event.Stored, about = Refused, stored, []fencedb.Grant{grant}
	}
	if e.Op == fencedb.OpSeal && event.Kind != Sealed {
		event.Kind = NotSealed
	}
	for _, g := range about {
		event.Resource, event.Token, event.LeaseID = g.Resource(), g.Token(), Short(g.LeaseID())
		f.publish(event)
	}
}
