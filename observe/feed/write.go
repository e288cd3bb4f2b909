package feed

import (
	"context"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/observe/internal/outcome"
)

// TraceWriteStart implements [fencedb.Tracer].
func (f *Feed) TraceWriteStart(ctx context.Context, _ fencedb.TraceStart) context.Context { return ctx }

// TraceWriteEnd implements [fencedb.Tracer]. Of a transaction that was only entered ([fencedb.OpEnter]) it is not known
// whether it commits, so that only refusals and failures are published.
func (f *Feed) TraceWriteEnd(_ context.Context, e fencedb.TraceEnd) {
	result := outcome.Write(e.Err)
	switch {
	case e.Op == fencedb.OpCommit, e.Op == fencedb.OpEnter && result == "committed":
	case result == "committed":
		f.each(Committed, "", e)
	case result == "stale":
		f.refused(e)
	default:
		f.each(Failed, result, e)
	}
}

func (f *Feed) each(kind Kind, cause string, e fencedb.TraceEnd) {
	event := Event{Kind: kind, Cause: cause, Took: e.Took}
	for _, g := range e.Grants {
		f.publish(event.of(g))
	}
}

// refused is about the resource that was refused, of however many the transaction entered.
func (f *Feed) refused(e fencedb.TraceEnd) {
	grant, stored := outcome.Subject(e)
	f.publish(Event{Kind: Refused, Cause: "stale", Took: e.Took, Stored: stored}.of(grant))
}

func (e Event) of(g fencedb.Grant) Event {
	e.Resource, e.Token, e.LeaseID = g.Resource(), g.Token(), outcome.Short(g.LeaseID())
	return e
}
