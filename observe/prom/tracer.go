package prom

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/observe/internal/tally"
)

// TraceLeaseStart implements [lease.Tracer].
func (m *Metrics) TraceLeaseStart(ctx context.Context, s lease.TraceStart) context.Context {
	if s.Op == lease.OpWait {
		m.tally.Lease(s).Series.contended.Inc()
	}
	return m.tally.LeaseStart(ctx, s)
}

// TraceLeaseEnd implements [lease.Tracer].
func (m *Metrics) TraceLeaseEnd(ctx context.Context, e lease.TraceEnd) {
	if !m.tally.LeaseEnd(ctx, e) {
		return
	}
	series := m.tally.Lease(e.TraceStart).Series
	if counter, ok := series.ended[e.Op][e.Outcome()]; ok {
		m.count(ctx, counter)
	}
	if histogram, ok := series.took[e.Op]; ok {
		m.observe(ctx, histogram, e.Took)
	}
	if tally.FoundTaken(e) {
		series.contended.Inc()
	}
	if e.Op == lease.OpRevoke && e.Err == nil {
		series.revoked.Inc()
	}
	if tally.FoundNotOwned(e) {
		series.notOwned(m.namespaces.Row(e.Namespace)).Inc()
		if e.Op == lease.OpRelease {
			series.staleReleases.Inc()
		}
	}
}

// TraceWriteStart implements [fencedb.Tracer].
func (m *Metrics) TraceWriteStart(ctx context.Context, _ fencedb.TraceStart) context.Context {
	return ctx
}

// TraceWriteEnd implements [fencedb.Tracer]. A transaction of the application ([fencedb.OpEnter])
// counts as entered, because it is unknown whether it commits, and once more if the application
// asks for its outcome ([fencedb.OpOutcome]) and it has not committed. A seal counts only as a part
// of its acquisition.
func (m *Metrics) TraceWriteEnd(ctx context.Context, e fencedb.TraceEnd) {
	if e.Op == fencedb.OpSeal {
		return
	}
	if overtaken := m.tally.WriteEnd(e); overtaken != nil {
		m.count(ctx, overtaken.Series.overtaken)
	}
	about, _ := e.Subject()
	series, result := m.tally.Write(about.Resource()).Series, e.Outcome()
	switch {
	case e.Op == fencedb.OpCommit:
		m.observe(ctx, series.commitTook, e.Took)
		return
	case e.Op == fencedb.OpWrite:
		series.written[result].Inc()
		m.observe(ctx, series.writeTook(result), e.Took)
	case result != "committed":
		series.written[result].Inc()
	case e.Op == fencedb.OpEnter:
		series.written[tally.Entered].Inc()
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
	_, err := prometheus.NewMetricWithExemplars(nil, prometheus.Exemplar{Labels: labels})
	if len(labels) == 0 || err != nil {
		return nil
	}
	return labels
}
