package prom

import (
	"context"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/observe/internal/outcome"
)

// TraceWriteStart implements [fencedb.Tracer].
func (m *Metrics) TraceWriteStart(ctx context.Context, _ fencedb.TraceStart) context.Context {
	return ctx
}

// TraceWriteEnd implements [fencedb.Tracer]. A transaction that was only entered ([fencedb.OpEnter]) is no write here, since
// it is not known whether it commits; that it was refused is counted.
func (m *Metrics) TraceWriteEnd(ctx context.Context, e fencedb.TraceEnd) {
	about, _ := outcome.Subject(e)
	series := m.writes.row(m.namer.of(about.Resource()))
	result := outcome.Write(e.Err)
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
