package lease_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/lease"
)

// Whoever wants ids alike makes them so, as docs/production.md says.
func TestIdsAreComparedByTheirBytes(t *testing.T) {
	t.Parallel()
	i := newWorld(t).issuer(t, lease.Config{TTL: time.Minute})

	for _, id := range []string{"user:ann", "user:Ann", "user:ann ", "user: ann", "user:jos\u00e9", "user:jose\u0301"} {
		_, err := i.Acquire(t.Context(), id, lease.NoWait())
		require.NoError(t, err, "%q", id)
		_, err = i.Acquire(t.Context(), id, lease.NoWait())
		require.ErrorIs(t, err, lease.ErrHeld, "%q", id)
	}
}
