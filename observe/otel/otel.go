// Package otel makes OpenTelemetry spans and metrics for leases and fenced writes. It is usually
// imported under another name:
//
//	import fenceotel "github.com/fencedb/fencedb/observe/otel"
//
//	telemetry := fenceotel.New(fenceotel.Config{})
//	issuer, err := lease.New(client, lease.Config{TTL: 10 * time.Second, Tracers: []lease.Tracer{telemetry}})
//	db := fencedb.With(pool, fencedb.Trace(telemetry))
//
// # Spans
//
//	lease acquire     a call that acquires, with its sealing
//	  lease wait      from when the resource was busy
//	lease hold        the life of a lease; what runs under its context is within
//	lease release, lease revoke, lease raise
//	fenced write      Tx, Exec, Query, QueryRow or SendBatch
//	  fenced commit   COMMIT, and what was done to find out its outcome
//	fence seal        Seal, mostly within lease acquire
//	fence enter       Enter or EnterSQL
//	fenced outcome    Entry.Outcome or Entry.OutcomeSQL, after what was entered
//
// The work within a span is within its context, so the spans of otelpgx and redisotel are its
// children.
//
// The span of a hold ends with the lease. Its events are renewals that fail (lease.not_extended),
// the loss of the lease (lease.lost, with the cause), and each write or seal that was refused under
// it (fence.refused, with the tokens). A refusal is also an event of its own span.
//
// # Metrics
//
// The metrics are those of observe/prom, except counters that a histogram makes redundant, with
// names and units by the semantic conventions: dotted, seconds, {lease}. docs/observing.md lists
// them. Their attributes are fencedb.resource_type, of a bounded number, and fencedb.outcome or
// fencedb.failure.
//
// # Attributes and status of spans
//
// Always fencedb.resource, fencedb.lease_id (8 characters), fencedb.token and fencedb.outcome;
// fencedb.resources, fencedb.kind, fencedb.namespace and fencedb.stored if they apply. The resource
// is its type and the first 12 hexadecimal digits of the SHA-256 of its name, as in
// "table:38ab6cd93feb", unless [Config.Unredacted] is set. docs/observing.md lists the outcomes.
// The status is unset for what is normal under contention: a busy resource, a caller that cancels,
// a release, an error of the caller's own function. It is an error for what needs attention.
package otel

import (
	"context"
	"sync"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/observe/feed"
)

// Config says how a [Tracer] makes spans and metrics. The zero value is usable.
type Config struct {
	// TracerProvider makes the spans. Defaults to the global one.
	TracerProvider trace.TracerProvider

	// MeterProvider makes the metrics. Defaults to the global one.
	MeterProvider metric.MeterProvider

	// Types are the resource types that metrics distinguish; all others are "other". Defaults to
	// the first 50.
	Types []string

	// Dropped returns the number of events that were lost, such as feed.Feed.Dropped. Defaults to 0.
	Dropped func() int64

	// Unredacted shows resources by name, and errors with their text, which names resources.
	// Defaults to false.
	Unredacted bool
}

// Tracer makes spans and metrics. It is a tracer of leases and of writes, and safe for concurrent
// use.
type Tracer struct {
	spans      trace.Tracer
	metrics    *metrics
	unredacted bool
	holds      sync.Map // of term to trace.Span: the leases that are held, whose spans are recorded
}

var (
	_ lease.Tracer   = (*Tracer)(nil)
	_ fencedb.Tracer = (*Tracer)(nil)
)

// term identifies a lease: leases that were acquired together share an id.
type term struct {
	id       uuid.UUID
	resource string
}

const scope = "github.com/fencedb/fencedb/observe/otel"

// New returns a tracer. The instrumentation scope of its spans and metrics is the path of this
// package. Make one for each MeterProvider, and give it to every issuer and pool: of the ages that
// two tracers report, such as fencedb.lease.oldest, OpenTelemetry keeps one only.
func New(cfg Config) *Tracer {
	if cfg.TracerProvider == nil {
		cfg.TracerProvider = otel.GetTracerProvider()
	}
	if cfg.MeterProvider == nil {
		cfg.MeterProvider = otel.GetMeterProvider()
	}
	if cfg.Dropped == nil {
		cfg.Dropped = func() int64 { return 0 }
	}
	return &Tracer{
		spans:      cfg.TracerProvider.Tracer(scope),
		metrics:    newMetrics(cfg.MeterProvider.Meter(scope), cfg.Types, cfg.Dropped),
		unredacted: cfg.Unredacted,
	}
}

const (
	keyResource  = attribute.Key("fencedb.resource")
	keyResources = attribute.Key("fencedb.resources")
	keyKind      = attribute.Key("fencedb.kind")
	keyNamespace = attribute.Key("fencedb.namespace")
	keyLeaseID   = attribute.Key("fencedb.lease_id")
	keyToken     = attribute.Key("fencedb.token")
	keyStored    = attribute.Key("fencedb.stored")
	keyOutcome   = attribute.Key("fencedb.outcome")
	keyCause     = attribute.Key("fencedb.cause")
)

func (t *Tracer) resource(name string) attribute.KeyValue {
	if !t.unredacted {
		name = feed.Hashed(name)
	}
	return keyResource.String(name)
}

// spanKey is the key of the span of that tracer in a context. At the end of a pair, the current
// span of the context is that of the tracer whose start was called last.
type spanKey struct{ *Tracer }

// begin starts a span, which begun finds at the end of the pair.
func (t *Tracer) begin(ctx context.Context, name string, attrs []attribute.KeyValue) (context.Context, trace.Span) {
	ctx, span := t.spans.Start(ctx, name, trace.WithAttributes(attrs...))
	return context.WithValue(ctx, spanKey{t}, span), span
}

func (t *Tracer) begun(ctx context.Context) trace.Span {
	if span, ok := ctx.Value(spanKey{t}).(trace.Span); ok {
		return span
	}
	return trace.SpanFromContext(context.Background())
}

// end ends the span. failed: the outcome needs attention.
func (t *Tracer) end(span trace.Span, result string, failed bool, err error) {
	span.SetAttributes(keyOutcome.String(result))
	if err != nil && t.unredacted {
		span.RecordError(err)
	}
	if failed {
		span.SetStatus(codes.Error, result)
	}
	span.End()
}

// TraceLeaseStart implements [lease.Tracer].
func (t *Tracer) TraceLeaseStart(ctx context.Context, s lease.TraceStart) context.Context {
	if s.Op == lease.OpExtend { // frequent; only failures matter
		return ctx
	}
	ctx = t.metrics.tally.LeaseStart(ctx, s)
	ctx, span := t.begin(ctx, "lease "+string(s.Op), t.ofLease(s))
	if s.Op == lease.OpHold && span.IsRecording() { // other spans show nothing, and cannot be compared
		t.holds.Store(term{s.LeaseID, s.Resource}, span)
	}
	return ctx
}

func (t *Tracer) ofLease(s lease.TraceStart) []attribute.KeyValue {
	attrs := append(make([]attribute.KeyValue, 0, 6), t.resource(s.Resource), keyLeaseID.String(feed.Short(s.LeaseID)))
	add := func(there bool, a attribute.KeyValue) {
		if there {
			attrs = append(attrs, a)
		}
	}
	add(s.Token != 0, keyToken.Int64(s.Token))
	add(s.Resources > 1, keyResources.Int(s.Resources))
	add(s.Kind != "lease", keyKind.String(s.Kind))
	add(s.Namespace != "", keyNamespace.String(s.Namespace))
	return attrs
}

// TraceLeaseEnd implements [lease.Tracer].
func (t *Tracer) TraceLeaseEnd(ctx context.Context, e lease.TraceEnd) {
	t.metrics.leaseEnd(ctx, e)
	span, result := t.begun(ctx), e.Outcome()
	failed := e.Err != nil && result != "held" && result != "cancelled"
	switch e.Op {
	case lease.OpExtend:
		if e.Err != nil {
			t.hold(e.LeaseID, e.Resource).AddEvent("lease.not_extended", trace.WithAttributes(keyCause.String(result)))
		}
		return
	case lease.OpHold:
		if span.IsRecording() {
			t.holds.CompareAndDelete(term{e.LeaseID, e.Resource}, span)
		}
		if result == "released" {
			failed, e.Err = false, nil
		} else {
			span.AddEvent("lease.lost", trace.WithAttributes(keyCause.String(result)))
		}
	case lease.OpAcquire, lease.OpWait, lease.OpRevoke, lease.OpRaise: // not known at the start
		span.SetAttributes(keyLeaseID.String(feed.Short(e.LeaseID)), keyToken.Int64(e.Token))
	}
	t.end(span, result, failed, e.Err)
}

// TraceWriteStart implements [fencedb.Tracer].
func (t *Tracer) TraceWriteStart(ctx context.Context, s fencedb.TraceStart) context.Context {
	name := "fenced " + string(s.Op)
	if s.Op == fencedb.OpEnter || s.Op == fencedb.OpSeal {
		name = "fence " + string(s.Op)
	}
	first := s.Grants[0] // there is always one
	attrs := []attribute.KeyValue{t.resource(first.Resource()),
		keyLeaseID.String(feed.Short(first.LeaseID())), keyToken.Int64(first.Token())}
	if len(s.Grants) > 1 {
		attrs = append(attrs, keyResources.Int(len(s.Grants)))
	}
	ctx, _ = t.begin(ctx, name, attrs)
	return ctx
}

// TraceWriteEnd implements [fencedb.Tracer].
func (t *Tracer) TraceWriteEnd(ctx context.Context, e fencedb.TraceEnd) {
	t.metrics.writeEnd(ctx, e)
	span, result := t.begun(ctx), e.Outcome()
	if result == "stale" && e.Op != fencedb.OpCommit {
		g, stored := e.Subject()
		event := trace.WithAttributes(t.resource(g.Resource()), keyToken.Int64(g.Token()), keyStored.Int64(stored))
		span.AddEvent("fence.refused", event)
		t.hold(g.LeaseID(), g.Resource()).AddEvent("fence.refused", event)
	}
	t.end(span, result, result != "committed" && result != "error", e.Err)
}

// hold is the span of the life of a lease, or one that records nothing if this process does not
// hold the lease.
func (t *Tracer) hold(id uuid.UUID, resource string) trace.Span {
	if span, ok := t.holds.Load(term{id, resource}); ok {
		return span.(trace.Span)
	}
	return trace.SpanFromContext(context.Background())
}
