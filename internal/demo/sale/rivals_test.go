package sale

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/examples/inventory/shop"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

// The control does all that a lock alone can do.
func TestWhoLooksAtItsLeaseInTimeDoesNotWrite(t *testing.T) {
	t.Parallel()
	issuer, err := lease.New(testenv.Redis(t), lease.Config{TTL: time.Minute, Namespace: testenv.Namespace(t)})
	require.NoError(t, err)
	leases, err := issuer.AcquireAll(t.Context(), []string{"sku:a", "sku:b"})
	require.NoError(t, err)
	require.NoError(t, leases[1].Release(t.Context()))

	err = locked{nil, leases}.setLevels(t.Context(), []shop.Level{{SKU: "a"}})

	require.ErrorIs(t, err, lease.ErrReleased)
	require.NoError(t, leases[0].Release(t.Context()))
}
