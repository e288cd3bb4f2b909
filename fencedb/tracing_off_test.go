package fencedb

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTracingThatIsOffAllocatesNothing(t *testing.T) {
	require.Zero(t, testing.AllocsPerRun(100, untracedWrite(t.Context())))
}

// What a write pays for tracers that are not there. A round trip takes a thousand times as long.
func BenchmarkTracingThatIsOff(b *testing.B) {
	write := untracedWrite(b.Context())
	b.ReportAllocs()
	for b.Loop() {
		write()
	}
}

// untracedWrite does all that is done for tracers in Tx.
func untracedWrite(ctx context.Context) func() {
	e := &entry{}
	tx := &fencedTx{caller: ctx, entry: e}
	return func() {
		write := e.trace(ctx, OpWrite)
		tx.ctx = write.ctx
		_ = tx.within(ctx)
		commit := e.trace(tx.ctx, OpCommit)
		_ = commit.is(nil)
		commit.end()
		_ = write.is(nil)
		write.end()
	}
}
