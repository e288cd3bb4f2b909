package otel

import (
	"context"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/observe/internal/outcome"
)

// TraceWriteStart implements [fencedb.Tracer].
func (t *Tracer) TraceWriteStart(ctx context.Context, s fencedb.TraceStart) context.Context {
	name := "fenced " + string(s.Op)
	if s.Op == fencedb.OpEnter {
		name = "fence enter"
	}
	ctx, _ = t.spans.Start(ctx, name, trace.WithAttributes(t.ofWrite(s.Grants)...))
	return ctx
}

func (t *Tracer) ofWrite(grants []fencedb.Grant) []attribute.KeyValue {
	first := grants[0] // there is one, or nothing would be told
	attrs := []attribute.KeyValue{t.resource(first.Resource()), keyLeaseID.String(outcome.Short(first.LeaseID())), keyToken.Int64(first.Token())}
	if len(grants) > 1 {
		attrs = append(attrs, keyResources.Int(len(grants)))
	}
	return attrs
}

// TraceWriteEnd implements [fencedb.Tracer].
func (t *Tracer) TraceWriteEnd(ctx context.Context, e fencedb.TraceEnd) {
	result := outcome.Write(e.Err)
	if result == "stale" && e.Op != fencedb.OpCommit {
		t.refused(ctx, e)
	}
	t.end(ctx, result, result != "committed" && result != "error", e.Err)
}

// refused tells of it in the span of the write, and in that of the lease's life if the lease is this process's.
func (t *Tracer) refused(ctx context.Context, e fencedb.TraceEnd) {
	g, stored := outcome.Subject(e)
	event := trace.WithAttributes(t.resource(g.Resource()), keyToken.Int64(g.Token()), keyStored.Int64(stored))
	trace.SpanFromContext(ctx).AddEvent("fence.refused", event)
	if span, ok := t.hold(g.LeaseID(), g.Resource()); ok {
		span.AddEvent("fence.refused", event)
	}
}

func (t *Tracer) hold(id uuid.UUID, resource string) (trace.Span, bool) {
	span, ok := t.holds.Load(term{id, resource})
	if !ok {
		return nil, false
	}
	return span.(trace.Span), true
}
