package sale

import (
	"context"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
)

// breakpoint holds one buyer who has read the stock, has made up its mind, and is about to write:
// in the driver, when everything that can be checked before has been checked. Then the process can
// be stopped at the worst point instead of at any.
type breakpoint struct {
	reached func(skus []string) // that are about to be written
	goOn    chan struct{}
	armed   atomic.Bool
}

// attempt is one buyer at one cart.
type attempt struct{ held bool }

type attemptKey struct{}

// watch makes what happens under the context something to be held.
func (b *breakpoint) watch(ctx context.Context) (context.Context, *attempt) {
	a := &attempt{}
	return context.WithValue(ctx, attemptKey{}, a), a
}

// arm holds the next one. A word to go on that came too late for the last one does not count.
func (b *breakpoint) arm() {
	select {
	case <-b.goOn:
	default:
	}
	b.armed.Store(true)
}

// TraceBatchStart implements [pgx.BatchTracer].
func (b *breakpoint) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	a, watched := ctx.Value(attemptKey{}).(*attempt)
	if !watched || !strings.HasPrefix(data.Batch.QueuedQueries[0].SQL, "UPDATE stock") {
		return ctx
	}
	if b.armed.CompareAndSwap(true, false) {
		a.held = true
		var skus []string
		for _, q := range data.Batch.QueuedQueries {
			skus = append(skus, q.Arguments[0].(string))
		}
		b.reached(skus)
		select {
		case <-b.goOn:
		case <-ctx.Done():
		}
	}
	return ctx
}

// TraceBatchQuery implements [pgx.BatchTracer].
func (*breakpoint) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd implements [pgx.BatchTracer].
func (*breakpoint) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// TraceQueryStart implements [pgx.QueryTracer].
func (*breakpoint) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

// TraceQueryEnd implements [pgx.QueryTracer].
func (*breakpoint) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
