package feed

import (
	"errors"
	"testing"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/lease"
)

func TestNothingIsKeptOfAnAcquisitionThatIsOver(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(&redis.Options{})
	defer client.Close()
	f := New(client)
	for _, err := range []error{nil, &lease.HeldError{}, errors.New("sealing")} {
		s := lease.TraceStart{Op: lease.OpAcquire, Kind: "lease", Resource: "table:12", LeaseID: uuid.New()}
		ctx := f.TraceLeaseStart(t.Context(), s)
		require.Len(t, f.acquisitions, 1)
		f.TraceLeaseEnd(ctx, lease.TraceEnd{TraceStart: s, Err: err})
		require.Empty(t, f.acquisitions)
	}
}
