package lease_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/lease"
)

var allOps = []lease.Op{
	lease.OpAcquire, lease.OpWait, lease.OpHold, lease.OpExtend, lease.OpRelease, lease.OpRevoke, lease.OpRaise, lease.OpHeal,
}

// A metric has no series for a word that is not listed.
func TestOutcomesAreOnlyThoseListed(t *testing.T) {
	t.Parallel()
	causes := []error{
		lease.ErrInvalid, &lease.HeldError{Cause: context.DeadlineExceeded}, lease.ErrCorrupt, lease.ErrExhausted,
		lease.ErrOutOfMemory, lease.ErrReadOnly, lease.ErrLoading, lease.ErrClusterDown, lease.ErrTooFewReplicas, lease.ErrUnfit,
		lease.ErrProtocol, lease.ErrReleased, lease.ErrExpired, lease.ErrUnreachable, lease.ErrLost, lease.ErrRevoked,
		lease.ErrStale, context.Canceled, errors.New("the caller's own"),
	}
	errs := append([]error{nil}, causes...)
	for _, a := range causes {
		for _, b := range causes {
			errs = append(errs, fmt.Errorf("%w: %w", a, b))
		}
	}
	for _, op := range allOps {
		for _, err := range errs {
			e := lease.TraceEnd{TraceStart: lease.TraceStart{Op: op}, Err: err}
			require.Contains(t, op.Outcomes(), e.Outcome(), "%s: %v", op, err)
		}
	}
}

func TestOutcomes(t *testing.T) {
	t.Parallel()
	outcome := func(op lease.Op, err error) string {
		return lease.TraceEnd{TraceStart: lease.TraceStart{Op: op}, Err: err}.Outcome()
	}
	require.Equal(t, "granted", outcome(lease.OpAcquire, nil))
	require.Equal(t, "held", outcome(lease.OpAcquire, &lease.HeldError{Cause: context.DeadlineExceeded}))
	require.Equal(t, "error", outcome(lease.OpAcquire, lease.ErrReadOnly))
	require.Equal(t, "expired", outcome(lease.OpHold, fmt.Errorf("%w: %w", lease.ErrExpired, lease.ErrReadOnly)))
	require.Equal(t, "released", outcome(lease.OpHold, lease.ErrReleased))
	require.Equal(t, "lost", outcome(lease.OpExtend, lease.ErrExpired))
	require.Equal(t, "done", outcome(lease.OpRevoke, nil))
	require.Equal(t, []string{"extended", "revoked", "unreachable", "lost", "error"}, lease.OpExtend.Outcomes())
}
