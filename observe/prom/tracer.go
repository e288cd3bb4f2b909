package prom

import (
	"context"
	"errors"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
)

type holdKey struct{ *Metrics }

// TraceLeaseStart implements [lease.Tracer].
func (m *Metrics) TraceLeaseStart(ctx context.Context, s lease.TraceStart) context.Context {
	switch s.Op {
	case lease.OpWait:
		series := m.of(s)
		series.contended.Inc()
		series.waiters.Inc()
	case lease.OpHold:
		return context.WithValue(ctx, holdKey{m}, m.of(s).held.begin())
	}
	return ctx
}

// TraceLeaseEnd implements [lease.Tracer].
func (m *Metrics) TraceLeaseEnd(ctx context.Context, e lease.TraceEnd) {
	series := m.of(e.TraceStart)
	switch e.Op {
	case lease.OpAcquire:
		series.acquired[e.Outcome()].Inc()
		m.observe(ctx, series.acquireTook, e.Took)
		if by := (*lease.HeldError)(nil); errors.As(e.Err, &by) && by.Cause == nil { // without waiting
			series.contended.Inc()
		}
	case lease.OpWait:
		series.waiters.Dec()
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
	}
}

func (m *Metrics) of(s lease.TraceStart) *leaseSeries {
	return m.leases.row(m.namer.ofKind(s.Kind, s.Resource))
}

func (m *Metrics) over(ctx context.Context, series *leaseSeries, e lease.TraceEnd) {
	if h, ok := ctx.Value(holdKey{m}).(*hold); ok {
		series.held.end(h)
	}
	m.observe(ctx, series.holdTook, e.Took)
	if cause := e.Outcome(); cause != "released" {
		m.count(ctx, series.lost[cause])
	}
}

func (m *Metrics) extended(series *leaseSeries, e lease.TraceEnd) {
	result := e.Outcome()
	series.extended[result].Inc()
	if result == "lost" || result == "revoked" {
		m.notOwned.row(e.Namespace).Inc()
	}
}

func (m *Metrics) released(series *leaseSeries, e lease.TraceEnd) {
	result := e.Outcome()
	series.released[result].Inc()
	switch result {
	case "expired", "lost", "revoked":
		series.staleReleases.Inc()
		m.notOwned.row(e.Namespace).Inc()
	}
}

// TraceWriteStart implements [fencedb.Tracer].
func (m *Metrics) TraceWriteStart(ctx context.Context, _ fencedb.TraceStart) context.Context {
	return ctx
}

// TraceWriteEnd implements [fencedb.Tracer]. A transaction that was only entered
// ([fencedb.OpEnter]) is no write here, since whether it commits is unknown here; a refusal is
// counted.
func (m *Metrics) TraceWriteEnd(ctx context.Context, e fencedb.TraceEnd) {
	about, _ := e.Subject()
	series := m.writes.row(m.namer.of(about.Resource()))
	result := e.Outcome()
	switch e.Op {
	case fencedb.OpWrite:
		series.written[result].Inc()
		m.observe(ctx, series.writeTook(result), e.Took)
	case fencedb.OpCommit:
		m.observe(ctx, series.commitTook, e.Took)
		return
	}
	if result == "stale" {
		m.count(ctx, series.rejected)
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
	size := 0
	for name, value := range labels {
		size += utf8.RuneCountInString(name) + utf8.RuneCountInString(value)
	}
	if len(labels) == 0 || size > prometheus.ExemplarMaxRunes {
		return nil
	}
	return labels
}
