package faulty

import (
	"context"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
)

// Breakpoint, as a tracer of pgx, runs a function when a statement or batch is about to be sent. What the caller has checked
// before, it cannot check again. Safe for concurrent use.
type Breakpoint struct {
	armed atomic.Pointer[func()]
}

// Arm has f run before the next statement or batch, once.
func (b *Breakpoint) Arm(f func()) { b.armed.Store(&f) }

func (b *Breakpoint) reached() {
	if f := b.armed.Swap(nil); f != nil {
		(*f)()
	}
}

// TraceQueryStart implements [pgx.QueryTracer].
func (b *Breakpoint) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	b.reached()
	return ctx
}

// TraceBatchStart implements [pgx.BatchTracer].
func (b *Breakpoint) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	b.reached()
	return ctx
}

// TraceQueryEnd implements [pgx.QueryTracer].
func (*Breakpoint) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchQuery implements [pgx.BatchTracer].
func (*Breakpoint) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd implements [pgx.BatchTracer].
func (*Breakpoint) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}
