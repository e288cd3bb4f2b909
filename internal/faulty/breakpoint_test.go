package faulty_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
)

func TestABreakpointIsReachedOnce(t *testing.T) {
	t.Parallel()
	var b faulty.Breakpoint
	times := 0
	b.Arm(func() { times++ })

	b.TraceBatchStart(t.Context(), nil, pgx.TraceBatchStartData{})
	b.TraceQueryStart(t.Context(), nil, pgx.TraceQueryStartData{})

	require.Equal(t, 1, times)
}
