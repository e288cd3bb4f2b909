package otel_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
	fenceotel "github.com/fencedb/fencedb/observe/otel"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// recorder is a tracer and the spans that have ended.
type recorder struct {
	*fenceotel.Tracer
	*tracetest.SpanRecorder
	provider *trace.TracerProvider
}

func newRecorder(cfg fenceotel.Config) *recorder {
	spans := tracetest.NewSpanRecorder()
	cfg.Provider = trace.NewTracerProvider(trace.WithSpanProcessor(spans))
	return &recorder{fenceotel.New(cfg), spans, cfg.Provider.(*trace.TracerProvider)}
}

// span returns the one of that name that has ended, once it has.
func (r *recorder) span(t *testing.T, name string) trace.ReadOnlySpan {
	t.Helper()
	var found []trace.ReadOnlySpan
	require.Eventually(t, func() bool {
		found = r.named(name)
		return len(found) > 0
	}, 10*time.Second, time.Millisecond, "no span %q", name)
	require.Len(t, found, 1, name)
	return found[0]
}

func (r *recorder) named(name string) (found []trace.ReadOnlySpan) {
	for _, s := range r.Ended() {
		if s.Name() == name {
			found = append(found, s)
		}
	}
	return found
}

// said is what a span tells, by attribute.
func said(s trace.ReadOnlySpan) map[string]any {
	all := map[string]any{}
	for _, a := range s.Attributes() {
		all[string(a.Key)] = a.Value.AsInterface()
	}
	return all
}

// events are those of a span, each with what it says.
func events(s trace.ReadOnlySpan) map[string]map[string]any {
	all := map[string]map[string]any{}
	for _, e := range s.Events() {
		all[e.Name] = map[string]any{}
		for _, a := range e.Attributes {
			all[e.Name][string(a.Key)] = a.Value.AsInterface()
		}
	}
	return all
}

func requireChild(t *testing.T, parent, child trace.ReadOnlySpan) {
	t.Helper()
	require.Equal(t, parent.SpanContext().SpanID(), child.Parent().SpanID(), "%s is not within %s", child.Name(), parent.Name())
}

var id = uuid.MustParse("11111111-0000-4000-8000-000000000000")

// table12 is how table:12 is shown.
const table12 = "38ab6cd93feb"

func started(op lease.Op) lease.TraceStart {
	return lease.TraceStart{Op: op, Kind: "lease", Resource: "table:12", Resources: 1, LeaseID: id, Token: 7}
}

// lease tells of one pair with nothing in between, and returns its span.
func (r *recorder) lease(t *testing.T, op lease.Op, err error) trace.ReadOnlySpan {
	t.Helper()
	r.Reset()
	ctx := r.TraceLeaseStart(context.Background(), started(op))
	r.TraceLeaseEnd(ctx, lease.TraceEnd{TraceStart: started(op), Err: err})
	return r.span(t, "lease "+string(op))
}

func (r *recorder) wrote(t *testing.T, op fencedb.Op, err error, grants ...fencedb.Grant) trace.ReadOnlySpan {
	t.Helper()
	r.Reset()
	s := fencedb.TraceStart{Op: op, Grants: grants}
	r.TraceWriteEnd(r.TraceWriteStart(context.Background(), s), fencedb.TraceEnd{TraceStart: s, Err: err})
	require.Len(t, r.Ended(), 1)
	return r.Ended()[0]
}

func grant(resource string, token int64) fencedb.Grant {
	return fencedb.NewGrant(resource, token, id, time.Time{})
}

func requireStatus(t *testing.T, s trace.ReadOnlySpan, outcome string, worth bool) {
	t.Helper()
	require.Equal(t, outcome, said(s)["fencedb.outcome"], s.Name())
	if worth {
		require.Equal(t, trace.Status{Code: codes.Error, Description: outcome}, s.Status(), "%s: %s", s.Name(), outcome)
		return
	}
	require.Equal(t, codes.Unset, s.Status().Code, "%s: %s", s.Name(), outcome)
}
