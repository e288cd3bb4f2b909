package prom

import (
	"context"
	"errors"
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

// TraceLeaseEnd implements [lease.Tracer].
func (m *Metrics) TraceLeaseEnd(ctx context.Context, e lease.TraceEnd) {
	series := m.of(e.TraceStart)
	if a, ok := ctx.Value(ageKey{m, e.Op}).(*age); ok {
		a.end()
	}
	switch e.Op {
	case lease.OpAcquire:
		m.acquired(ctx, series, e)
	case lease.OpWait:
		m.observe(ctx, series.waitTook, e.Took)
	case lease.OpHold:
		m.over(ctx, series, e)
	case lease.OpExtend:
		m.extended(series, e)
	case lease.OpRelease:
		m.released(series, e)
	case lease.OpRevoke:
		if e.Err == nil {
			series.revoked.Inc()
		}
	case lease.OpHeal:
		series.healed[e.Outcome()].Inc()
		if e.Err == nil { // once for each resource is what a loss of data costs
			series.failing[failHealed].failed(place{e.Namespace, e.Resource}, 0)
		}
	}
}

func (m *Metrics) of(s lease.TraceStart) *leaseSeries {
	name := m.cfg.typeOf(s.Resource)
	if s.Kind != "lease" { // permits and other kinds are told apart
		name = s.Kind + "/" + name
	}
	return m.leases.row(name)
}

func (m *Metrics) acquired(ctx context.Context, series *leaseSeries, e lease.TraceEnd) {
	outcome, at := e.Outcome(), place{e.Namespace, e.Resource}
	series.acquired[outcome].Inc()
	m.observe(ctx, series.acquireTook, e.Took)
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
		series.failing[failHealed].succeeded(at)
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

func (m *Metrics) over(ctx context.Context, series *leaseSeries, e lease.TraceEnd) {
	m.observe(ctx, series.holdTook, e.Took)
	cause := e.Outcome()
	switch cause {
	case "released":
		series.failing[failLost].succeeded(place{e.Namespace, e.Resource})
		return
	case "expired", "unreachable", "lost":
		series.failing[failLost].failed(place{e.Namespace, e.Resource}, 0)
	}
	m.count(ctx, series.lost[cause])
}

func (m *Metrics) extended(series *leaseSeries, e lease.TraceEnd) {
	if errors.Is(e.Err, lease.ErrReleased) { // by the holder, while the renewal was under way: nothing was found gone
		return
	}
	result := e.Outcome()
	series.extended[result].Inc()
	switch result {
	case "extended":
		series.failing[failRenewal].succeeded(place{e.Namespace, e.Resource})
	case "unreachable", "error":
		series.failing[failRenewal].failed(place{e.Namespace, e.Resource}, 0)
	case "lost", "revoked":
		m.notOwned(series, e)
	}
}

func (m *Metrics) released(series *leaseSeries, e lease.TraceEnd) {
	result := e.Outcome()
	series.released[result].Inc()
	switch result {
	case "released":
		series.failing[failNotOwned].succeeded(place{e.Namespace, e.Resource})
	case "expired", "lost", "revoked":
		series.staleReleases.Inc()
		m.notOwned(series, e)
	}
}

func (m *Metrics) notOwned(series *leaseSeries, e lease.TraceEnd) {
	series.notOwned(m.namespaces.row(e.Namespace)).Inc()
	series.failing[failNotOwned].failed(place{e.Namespace, e.Resource}, 0)
}

// TraceWriteStart implements [fencedb.Tracer].
func (m *Metrics) TraceWriteStart(ctx context.Context, _ fencedb.TraceStart) context.Context {
	return ctx
}

// TraceWriteEnd implements [fencedb.Tracer]. A transaction that was only entered
// ([fencedb.OpEnter]) is no write here, since whether it commits is unknown here; a refusal is
// counted. It is one when the application has asked for its outcome ([fencedb.OpOutcome]).
func (m *Metrics) TraceWriteEnd(ctx context.Context, e fencedb.TraceEnd) {
	about, _ := e.Subject()
	series := m.writes.row(m.cfg.typeOf(about.Resource()))
	result := e.Outcome()
	switch e.Op {
	case fencedb.OpWrite:
		series.written[result].Inc()
		m.observe(ctx, series.writeTook(result), e.Took)
	case fencedb.OpOutcome: // what it took is not known here
		series.written[result].Inc()
	case fencedb.OpCommit:
		m.observe(ctx, series.commitTook, e.Took)
		return
	}
	m.followed(series, e, about, result)
	if result == "stale" {
		m.count(ctx, series.rejected)
	}
}

// followed keeps the failures that follow one another. A fence that was entered is a success too.
func (m *Metrics) followed(series *writeSeries, e fencedb.TraceEnd, about fencedb.Grant, result string) {
	if result != "committed" {
		series.failing[result].failed(place{resource: about.Resource()}, e.Took)
		if leases, known := m.leases.known(m.cfg.typeOf(about.Resource())); result == "stale" && known && leases.held.has(leaseName{about.LeaseID(), about.Token()}) {
			series.failing[failStaleHeld].failed(place{resource: about.Resource()}, e.Took)
		}
		return
	}
	for _, g := range e.Grants {
		for _, f := range m.writes.row(m.cfg.typeOf(g.Resource())).failing {
			f.succeeded(place{resource: g.Resource()})
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
