package otel

import (
	"context"
	"sync"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/observe/internal/outcome"
)

// Config is how a [Tracer] makes spans. The zero value is a good one.
type Config struct {
	// Provider makes the spans. Defaults to the global one.
	Provider trace.TracerProvider

	// Plain shows resources by name, and the text of errors, which name resources. Defaults to false.
	Plain bool
}

// Tracer makes spans. It is a tracer of leases and of writes, and safe for concurrent use.
type Tracer struct {
	spans trace.Tracer
	plain bool
	holds sync.Map // of term to trace.Span: the leases that are held
}

var (
	_ lease.Tracer   = (*Tracer)(nil)
	_ fencedb.Tracer = (*Tracer)(nil)
)

// term tells leases apart; several that were acquired together share an id.
type term struct {
	id       uuid.UUID
	resource string
}

// New returns a tracer. Its spans belong to the instrumentation scope that is named like this package.
func New(cfg Config) *Tracer {
	if cfg.Provider == nil {
		cfg.Provider = otel.GetTracerProvider()
	}
	return &Tracer{spans: cfg.Provider.Tracer("github.com/fencedb/fencedb/observe/otel"), plain: cfg.Plain}
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
	if !t.plain {
		name = outcome.Hashed(name)
	}
	return keyResource.String(name)
}

// end ends the span in ctx. worth says whether the outcome is worth somebody's look.
func (t *Tracer) end(ctx context.Context, result string, worth bool, err error) {
	span := trace.SpanFromContext(ctx)
	span.SetAttributes(keyOutcome.String(result))
	if err != nil && t.plain {
		span.RecordError(err)
	}
	if worth {
		span.SetStatus(codes.Error, result)
	}
	span.End()
}
