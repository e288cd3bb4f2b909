package lease_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

func TestCheckComparesClocks(t *testing.T) {
	t.Parallel()
	away := errors.New("postgres is away")
	for name, test := range map[string]struct {
		ahead  time.Duration
		err    error
		warned bool
	}{
		"alike":       {},
		"ahead":       {ahead: time.Hour, warned: true},
		"behind":      {ahead: -time.Hour, warned: true},
		"not to know": {err: away, warned: true},
	} {
		clock := func(context.Context) (time.Time, error) {
			if test.err != nil {
				return time.Time{}, test.err
			}
			return time.Now().Add(test.ahead), nil
		}
		i, err := lease.New(testenv.Redis(t), lease.Config{TTL: time.Second, Clock: clock})
		require.NoError(t, err)
		h, err := i.Check(t.Context())
		require.NoError(t, err, "no reason not to grant")
		require.Equal(t, test.warned, slices.Contains(codes(h), lease.WarnClock), name)
		require.InDelta(t, -test.ahead, h.Servers[0].Clock, float64(time.Minute), name)
	}
}
