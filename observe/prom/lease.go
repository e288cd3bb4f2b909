package prom

import (
	"context"
	"errors"

	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/observe/internal/outcome"
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
		series.acquired[outcome.Acquire(e.Err)].Inc()
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
		series.healed[outcome.Heal(e.Err)].Inc()
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
	if cause := outcome.Loss(e.Err); cause != "" {
		m.count(ctx, series.lost[cause])
	}
}

func (m *Metrics) extended(series *leaseSeries, e lease.TraceEnd) {
	result := outcome.Extend(e.Err)
	series.extended[result].Inc()
	if result == "lost" || result == "revoked" {
		m.notOwned.row(e.Namespace).Inc()
	}
}

func (m *Metrics) released(series *leaseSeries, e lease.TraceEnd) {
	result := outcome.Release(e.Err)
	series.released[result].Inc()
	switch result {
	case "expired", "lost", "revoked":
		series.staleReleases.Inc()
		m.notOwned.row(e.Namespace).Inc()
	}
}
