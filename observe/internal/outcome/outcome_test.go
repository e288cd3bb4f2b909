package outcome_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/observe/internal/outcome"
)

// all errors that there are, also two at a time.
func all() []error {
	one := []error{
		lease.ErrInvalid, &lease.HeldError{Cause: context.DeadlineExceeded}, &lease.CorruptError{}, lease.ErrExhausted, lease.ErrOutOfMemory,
		lease.ErrReadOnly, lease.ErrLoading, lease.ErrClusterDown, lease.ErrTooFewReplicas, lease.ErrUnfit, lease.ErrProtocol, lease.ErrReleased,
		lease.ErrExpired, lease.ErrUnreachable, lease.ErrLost, lease.ErrRevoked, lease.ErrStale,
		&fencedb.StaleError{}, fencedb.ErrNoToken, &fencedb.WrongResourceError{}, fencedb.ErrLeaseOver, &fencedb.BusyError{},
		fencedb.ErrInvalidGrant, fencedb.ErrKeyReused, &fencedb.CommitUnknownError{}, fencedb.ErrCommitted,
		context.Canceled, errors.New("the caller's own"),
	}
	errs := append([]error{nil}, one...)
	for _, a := range one {
		for _, b := range one {
			errs = append(errs, fmt.Errorf("%w: %w", a, b))
		}
	}
	return errs
}

// A word that is not listed would be one that a metric has no place for.
func TestOnlyWhatIsListedIsAnswered(t *testing.T) {
	t.Parallel()
	for _, err := range all() {
		require.Contains(t, outcome.Acquires, outcome.Acquire(err), "%v", err)
		require.Contains(t, outcome.Releases, outcome.Release(err), "%v", err)
		require.Contains(t, outcome.Extends, outcome.Extend(err), "%v", err)
		require.Contains(t, outcome.Heals, outcome.Heal(err), "%v", err)
		require.Contains(t, outcome.Writes, outcome.Write(err), "%v", err)
		if cause := outcome.Loss(err); cause != "" {
			require.Contains(t, outcome.Losses, cause, "%v", err)
		}
	}
}

func TestOutcomes(t *testing.T) {
	t.Parallel()
	require.Equal(t, "granted", outcome.Acquire(nil))
	require.Equal(t, "held", outcome.Acquire(&lease.HeldError{Cause: context.DeadlineExceeded}))
	require.Equal(t, "error", outcome.Acquire(lease.ErrReadOnly))
	require.Equal(t, "expired", outcome.Loss(fmt.Errorf("%w: %w", lease.ErrExpired, lease.ErrReadOnly)))
	require.Empty(t, outcome.Loss(lease.ErrReleased))
	require.Equal(t, "lost", outcome.Extend(lease.ErrExpired))
	require.Equal(t, "committed", outcome.Write(fencedb.ErrCommitted))
	require.Equal(t, "error", outcome.Write(fencedb.ErrKeyReused))
}

func TestNames(t *testing.T) {
	t.Parallel()
	require.Equal(t, "38ab6cd93feb", outcome.Hashed("table:12")) // printf table:12 | sha256sum
	require.Equal(t, "11111111", outcome.Short(uuid.MustParse("11111111-0000-4000-8000-000000000000")))
	require.Empty(t, outcome.Short(uuid.Nil))
}
