package otel_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
	fenceotel "github.com/fencedb/fencedb/observe/otel"
)

// own is a tracer of the application that makes a span for each pair.
type own struct{ trace.Tracer }

func (o own) TraceWriteStart(ctx context.Context, _ fencedb.TraceStart) context.Context {
	ctx, _ = o.Start(ctx, "own")
	return ctx
}

func (o own) TraceWriteEnd(context.Context, fencedb.TraceEnd) {}

func (o own) TraceLeaseStart(ctx context.Context, _ lease.TraceStart) context.Context {
	ctx, _ = o.Start(ctx, "own")
	return ctx
}

func (o own) TraceLeaseEnd(context.Context, lease.TraceEnd) {}

// The contexts are those of packages lease and fencedb: each start gets that of the one before, and
// all ends get the last.
func TestASecondTracerThatMakesSpans(t *testing.T) {
	t.Parallel()
	type both interface {
		lease.Tracer
		fencedb.Tracer
	}
	recorder := tracetest.NewSpanRecorder()
	provider := sdk.NewTracerProvider(sdk.WithSpanProcessor(recorder))
	ours := fenceotel.New(fenceotel.Config{TracerProvider: provider})
	theirs := own{provider.Tracer("app")}
	for name, tc := range map[string]struct {
		tracers []both
		ended   int // spans of each pair
	}{
		"before ours": {[]both{theirs, ours}, 1},
		"after ours":  {[]both{ours, theirs}, 1},
		"also ours":   {[]both{ours, fenceotel.New(fenceotel.Config{TracerProvider: provider})}, 2},
	} {
		recorder.Reset()
		l := lease.TraceStart{Op: lease.OpAcquire, Resource: "table:12"}
		w := fencedb.TraceStart{Op: fencedb.OpWrite,
			Grants: []fencedb.Grant{fencedb.NewGrant("table:12", 1, uuid.New(), time.Now().Add(time.Minute))}}
		leased, written := t.Context(), t.Context()
		for _, tracer := range tc.tracers {
			leased, written = tracer.TraceLeaseStart(leased, l), tracer.TraceWriteStart(written, w)
		}
		for _, tracer := range tc.tracers {
			tracer.TraceLeaseEnd(leased, lease.TraceEnd{TraceStart: l})
			tracer.TraceWriteEnd(written, fencedb.TraceEnd{TraceStart: w})
		}
		ended := make(map[trace.SpanID]bool)
		for _, span := range recorder.Ended() {
			require.NotEqual(t, "own", span.Name(), name)
			ended[span.SpanContext().SpanID()] = true
		}
		require.Len(t, ended, 2*tc.ended, name)
	}
}
