package otel

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/observe/internal/outcome"
)

// TraceLeaseStart implements [lease.Tracer].
func (t *Tracer) TraceLeaseStart(ctx context.Context, s lease.TraceStart) context.Context {
	if s.Op == lease.OpExtend { // many, and of no interest while they succeed
		return ctx
	}
	ctx, span := t.spans.Start(ctx, "lease "+string(s.Op), trace.WithAttributes(t.ofLease(s)...))
	if s.Op == lease.OpHold {
		t.holds.Store(term{s.LeaseID, s.Resource}, span)
	}
	return ctx
}

func (t *Tracer) ofLease(s lease.TraceStart) []attribute.KeyValue {
	attrs := append(make([]attribute.KeyValue, 0, 6), t.resource(s.Resource), keyLeaseID.String(outcome.Short(s.LeaseID)))
	if s.Token != 0 {
		attrs = append(attrs, keyToken.Int64(s.Token))
	}
	if s.Resources > 1 {
		attrs = append(attrs, keyResources.Int(s.Resources))
	}
	if s.Kind != "lease" {
		attrs = append(attrs, keyKind.String(s.Kind))
	}
	if s.Namespace != "" {
		attrs = append(attrs, keyNamespace.String(s.Namespace))
	}
	return attrs
}

// TraceLeaseEnd implements [lease.Tracer].
func (t *Tracer) TraceLeaseEnd(ctx context.Context, e lease.TraceEnd) {
	switch e.Op {
	case lease.OpExtend:
		t.extended(e)
		return
	case lease.OpHold:
		t.over(ctx, e)
		return
	case lease.OpAcquire, lease.OpWait, lease.OpRevoke, lease.OpRaise, lease.OpHeal: // what was not known at the start
		trace.SpanFromContext(ctx).SetAttributes(keyLeaseID.String(outcome.Short(e.LeaseID)), keyToken.Int64(e.Token))
	}
	result := outcome.Lease(e.Op, e.Err)
	t.end(ctx, result, e.Err != nil && result != "held", e.Err)
}

// extended tells of a failure where the lease's life is told.
func (t *Tracer) extended(e lease.TraceEnd) {
	span, ok := t.hold(e.LeaseID, e.Resource)
	if e.Err == nil || !ok {
		return
	}
	span.AddEvent("lease.not_extended", trace.WithAttributes(keyCause.String(outcome.Extend(e.Err))))
}

func (t *Tracer) over(ctx context.Context, e lease.TraceEnd) {
	t.holds.CompareAndDelete(term{e.LeaseID, e.Resource}, trace.SpanFromContext(ctx))
	cause := outcome.Loss(e.Err)
	if cause == "" {
		t.end(ctx, "released", false, nil)
		return
	}
	trace.SpanFromContext(ctx).AddEvent("lease.lost", trace.WithAttributes(keyCause.String(cause)))
	t.end(ctx, cause, true, e.Err)
}
