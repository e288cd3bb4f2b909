package otel_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
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
	cfg.TracerProvider = trace.NewTracerProvider(trace.WithSpanProcessor(spans))
	return &recorder{fenceotel.New(cfg), spans, cfg.TracerProvider.(*trace.TracerProvider)}
}

// span returns the one of that name that has ended, once it has.
func (r *recorder) span(t *testing.T, name string) trace.ReadOnlySpan {
	t.Helper()
	var found []trace.ReadOnlySpan
	require.Eventually(t, func() bool {
		found = r.named(name)
		return len(found) > 0
	}, time.Minute, time.Millisecond, "no span %q", name)
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
const table12 = "table:38ab6cd93feb"

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
	return fencedb.NewGrant(resource, token, id, fencedb.NoEnd)
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

func TestOutcomesOfLeases(t *testing.T) {
	t.Parallel()
	r := newRecorder(fenceotel.Config{})
	requireStatus(t, r.lease(t, lease.OpAcquire, nil), "granted", false)
	requireStatus(t, r.lease(t, lease.OpAcquire, &lease.HeldError{}), "held", false)
	requireStatus(t, r.lease(t, lease.OpAcquire, lease.ErrUnreachable), "unreachable", true)
	requireStatus(t, r.lease(t, lease.OpAcquire, context.Canceled), "cancelled", false)
	requireStatus(t, r.lease(t, lease.OpWait, &lease.HeldError{}), "held", false)
	requireStatus(t, r.lease(t, lease.OpRelease, nil), "released", false)
	requireStatus(t, r.lease(t, lease.OpRelease, lease.ErrLost), "gone", true)
	requireStatus(t, r.lease(t, lease.OpRevoke, nil), "done", false)
	requireStatus(t, r.lease(t, lease.OpRaise, lease.ErrUnreachable), "failed", true)
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

	plain := newRecorder(fenceotel.Config{Unredacted: true}).lease(t, lease.OpAcquire, secret)
	require.Equal(t, "table:12", said(plain)["fencedb.resource"])
	require.Equal(t, secret.Error(), events(plain)["exception"]["exception.message"])
}

// writeOps are all that there are.
var writeOps = []fencedb.Op{
	fencedb.OpWrite, fencedb.OpSeal, fencedb.OpCommit, fencedb.OpEnter, fencedb.OpOutcome,
}

func TestOutcomesOfWrites(t *testing.T) {
	t.Parallel()
	r := newRecorder(fenceotel.Config{})
	g := grant("table:12", 7)
	for _, op := range writeOps {
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

// One lease id for two holds, as when a program asks again for what it has: the end of one does not
// hide the other.
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

// Without a provider, or where it takes a sample, spans are not recorded. Such a span is a struct
// that cannot be compared.
func TestSpansThatAreNotRecorded(t *testing.T) {
	t.Parallel()
	for name, tracer := range map[string]*fenceotel.Tracer{
		"the global provider is the default, and there is none": fenceotel.New(fenceotel.Config{}),
		"sampled out": fenceotel.New(fenceotel.Config{TracerProvider: trace.NewTracerProvider(trace.WithSampler(trace.NeverSample()))}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hold := tracer.TraceLeaseStart(t.Context(), started(lease.OpHold))
			s := fencedb.TraceStart{Op: fencedb.OpEnter, Grants: []fencedb.Grant{grant("table:12", 7)}}
			tracer.TraceWriteEnd(tracer.TraceWriteStart(t.Context(), s), fencedb.TraceEnd{TraceStart: s, Err: fencedb.ErrStale})
			renewal := started(lease.OpExtend)
			tracer.TraceLeaseEnd(tracer.TraceLeaseStart(t.Context(), renewal),
				lease.TraceEnd{TraceStart: renewal, Err: lease.ErrUnreachable})
			tracer.TraceLeaseEnd(hold, lease.TraceEnd{TraceStart: started(lease.OpHold), Err: lease.ErrReleased})
		})
	}
}

func TestTheDocumentationListsEverySpan(t *testing.T) {
	t.Parallel()
	r := newRecorder(fenceotel.Config{})
	made := map[string]bool{}
	for _, op := range []lease.Op{
		lease.OpAcquire, lease.OpWait, lease.OpHold, lease.OpRelease, lease.OpRevoke, lease.OpRaise,
	} {
		made[r.lease(t, op, nil).Name()] = true
	}
	for _, op := range writeOps {
		made[r.wrote(t, op, nil, grant("table:12", 7)).Name()] = true
	}

	page, err := os.ReadFile("../../docs/observing.md")
	require.NoError(t, err)
	documented := map[string]bool{}
	for _, match := range regexp.MustCompile("(?m)^\\| `((?:lease|fenced|fence) \\w+)` \\|").FindAllStringSubmatch(string(page), -1) {
		documented[match[1]] = true
	}
	require.Equal(t, made, documented)
}

func Example() {
	server, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	ctx := context.Background()

	exporter := tracetest.NewInMemoryExporter() // in a program, one that sends
	provider := trace.NewTracerProvider(trace.WithSyncer(exporter))
	spans := fenceotel.New(fenceotel.Config{TracerProvider: provider})
	issuer, err := lease.New(client, lease.Config{TTL: 10 * time.Second, Tracers: []lease.Tracer{spans}})
	if err != nil {
		log.Fatal(err)
	}
	l, err := issuer.Acquire(ctx, "table:12", lease.NoWait())
	if err != nil {
		log.Fatal(err)
	}
	_ = l.Release(ctx)

	acquired := exporter.GetSpans()[0]
	fmt.Println(acquired.Name)
	for _, a := range acquired.Attributes {
		if a.Key == "fencedb.resource" || a.Key == "fencedb.outcome" {
			fmt.Println(a.Key, a.Value.AsString())
		}
	}
	// Output:
	// lease acquire
	// fencedb.resource table:38ab6cd93feb
	// fencedb.outcome granted
}
