package prom

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
)

// ageKey is for the age of what the operation has begun.
type ageKey struct {
	*Metrics
	op lease.Op
}

// TraceLeaseStart implements [lease.Tracer].
func (m *Metrics) TraceLeaseStart(ctx context.Context, s lease.TraceStart) context.Context {
	switch s.Op {
	case lease.OpWait:
		series := m.of(s)
		series.contended.Inc()
		return context.WithValue(ctx, ageKey{m, s.Op}, series.waiting.begin(leaseName{}))
	case lease.OpHold:
		series := m.of(s)
		series.failing[failHeld].succeeded(place{s.Namespace, s.Resource})
		return context.WithValue(ctx, ageKey{m, s.Op}, series.held.begin(leaseName{s.LeaseID, s.Token}))
	}
	return ctx
}

// notOwned are the outcomes of renewals and releases that came when the lease was not the holder's
// any more.
var notOwned = []string{"over", "lost", "gone", "taken", "revoked"}

// TraceLeaseEnd implements [lease.Tracer].
func (m *Metrics) TraceLeaseEnd(ctx context.Context, e lease.TraceEnd) {
	if e.Op == lease.OpExtend && (errors.Is(e.Err, lease.ErrReleased) || errors.Is(e.Err, lease.ErrStale)) {
		return // by the holder, while the renewal was under way: nothing was found gone
	}
	series, outcome, at := m.of(e.TraceStart), e.Outcome(), place{e.Namespace, e.Resource}
	if a, ok := ctx.Value(ageKey{m, e.Op}).(*age); ok {
		a.end()
	}
	if counter, ok := series.ended[e.Op][outcome]; ok {
		m.count(ctx, counter)
	}
	if histogram, ok := series.took[e.Op]; ok {
		m.observe(ctx, histogram, e.Took)
	}
	switch e.Op {
	case lease.OpAcquire:
		m.acquired(series, outcome, e)
	case lease.OpHold:
		switch outcome {
		case "released":
			series.failing[failLost].succeeded(at)
		case "expired", "unreachable", "lost":
			series.failing[failLost].failed(at, e.Took) // the next one may come after as long a hold
		}
	case lease.OpExtend:
		series.failing[failRenewal].follow(at, outcome, "extended", "unreachable", "error")
		series.failing[failNotOwned].follow(at, outcome, "", notOwned...)
	case lease.OpRelease:
		series.failing[failNotOwned].follow(at, outcome, "released", notOwned...)
		if slices.Contains(notOwned, outcome) {
			series.staleReleases.Inc()
		}
	case lease.OpRevoke:
		if e.Err == nil {
			series.revoked.Inc()
		}
	case lease.OpRaise: // once for each resource is what a loss of data costs
		series.failing[failRaised].follow(at, outcome, "", "done")
	}
	if (e.Op == lease.OpExtend || e.Op == lease.OpRelease) && slices.Contains(notOwned, outcome) {
		series.notOwned(m.namespaces.row(e.Namespace)).Inc()
	}
}

func (m *Metrics) of(s lease.TraceStart) *leaseSeries {
	name := m.cfg.typeOf(s.Resource)
	if s.Kind != "lease" { // permits and other kinds are told apart
		name = s.Kind + "/" + name
	}
	return m.leases.row(name)
}

func (m *Metrics) acquired(series *leaseSeries, outcome string, e lease.TraceEnd) {
	at := place{e.Namespace, e.Resource}
	switch outcome {
	case failUnreachable, failError:
		series.failing[outcome].failed(at, e.Took)
		return
	case "cancelled": // which says nothing about the resource
		return
	}
	series.failing[failUnreachable].succeeded(at)
	series.failing[failError].succeeded(at)
	by := (*lease.HeldError)(nil)
	if !errors.As(e.Err, &by) {
		series.failing[failRaised].succeeded(at)
		return
	}
	if by.Cause == nil { // without waiting
		series.contended.Inc()
	}
	if !e.Lead { // followers are refused for as long as somebody leads
		held := e.TraceStart
		held.Resource = by.Resource // of several
		m.of(held).failing[failHeld].failed(place{held.Namespace, by.Resource}, e.Took)
	}
}

// TraceWriteStart implements [fencedb.Tracer].
func (m *Metrics) TraceWriteStart(ctx context.Context, _ fencedb.TraceStart) context.Context {
	return ctx
}

// TraceWriteEnd implements [fencedb.Tracer]. Whether a transaction that was only entered
// ([fencedb.OpEnter]) commits is unknown here. It counts as entered, and once more if the
// application asks for its outcome ([fencedb.OpOutcome]) and it has not committed.
func (m *Metrics) TraceWriteEnd(ctx context.Context, e fencedb.TraceEnd) {
	about, _ := e.Subject()
	series := m.writes.row(m.cfg.typeOf(about.Resource()))
	result := e.Outcome()
	switch e.Op {
	case fencedb.OpWrite:
		series.written[result].Inc()
		m.observe(ctx, series.writeTook(result), e.Took)
	case fencedb.OpEnter:
		if result == "committed" {
			series.written[entered].Inc()
			m.entered(e.Grants)
			return
		}
		series.written[result].Inc() // and nothing was
	case fencedb.OpOutcome: // what it took is not known here
		if result != "committed" {
			series.written[result].Inc()
		}
	case fencedb.OpCommit:
		m.observe(ctx, series.commitTook, e.Took)
		return
	}
	if result == "committed" {
		for _, g := range e.Grants {
			for _, f := range m.writes.row(m.cfg.typeOf(g.Resource())).failing {
				f.succeeded(place{resource: g.Resource()})
			}
		}
		return
	}
	at := place{resource: about.Resource()}
	series.failing[result].failed(at, e.Took)
	if result == "stale" {
		m.count(ctx, series.rejected)
		leases, known := m.leases.known(m.cfg.typeOf(at.resource))
		if !known {
			leases, known = m.leases.known(other)
		}
		if known && leases.held.has(leaseName{about.LeaseID(), about.Token()}) {
			series.failing[failStaleHeld].failed(at, e.Took)
		}
	}
}

// entered notes that fences were entered. That is a success for what keeps others from entering.
// What goes wrong behind it has not, if it is entered again without a failure in between.
func (m *Metrics) entered(grants []fencedb.Grant) {
	for _, g := range grants {
		for word, f := range m.writes.row(m.cfg.typeOf(g.Resource())).failing {
			needed := 2
			if slices.Contains([]string{"stale", failStaleHeld, "busy", "unsealed", "invalid_grant"}, word) {
				needed = 1
			}
			f.success(place{resource: g.Resource()}, needed)
		}
	}
}

func (m *Metrics) observe(ctx context.Context, o prometheus.Observer, took time.Duration) {
	if labels := m.exemplar(ctx); labels != nil {
		o.(prometheus.ExemplarObserver).ObserveWithExemplar(took.Seconds(), labels)
		return
	}
	o.Observe(took.Seconds())
}

func (m *Metrics) count(ctx context.Context, c prometheus.Counter) {
	if labels := m.exemplar(ctx); labels != nil {
		c.(prometheus.ExemplarAdder).AddWithExemplar(1, labels)
		return
	}
	c.Inc()
}

// exemplar is nil if there is none, or one that client_golang would panic over.
func (m *Metrics) exemplar(ctx context.Context) prometheus.Labels {
	if m.cfg.Exemplar == nil {
		return nil
	}
	labels := m.cfg.Exemplar(ctx)
	_, err := prometheus.NewMetricWithExemplars(nil, prometheus.Exemplar{Labels: labels})
	if len(labels) == 0 || err != nil {
		return nil
	}
	return labels
}
