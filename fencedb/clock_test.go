package fencedb_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
)

func TestClock(t *testing.T) {
	t.Parallel()
	now := fencedb.Clock(testenv.Postgres(t))
	first, err := now(t.Context())
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), first, time.Minute)
	second, err := now(t.Context())
	require.NoError(t, err)
	require.Less(t, first, second)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = now(ctx)
	require.ErrorIs(t, err, context.Canceled)
}
