package lease_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/lease"
)

// Acquisitions with one lease id are one holder. Whoever releases gives back for all, and all are
// told, however it was acquired and released, and whoever was first.
func TestALeaseThatAnotherAcquisitionReleasesIsOver(t *testing.T) {
	acquire := map[string]func(ctx context.Context, i *lease.Issuer, opt lease.Option) (*lease.Lease, error){
		"Acquire NoWait": func(ctx context.Context, i *lease.Issuer, opt lease.Option) (*lease.Lease, error) {
			return i.Acquire(ctx, "a", opt, lease.NoWait())
		},
		"Acquire": func(ctx context.Context, i *lease.Issuer, opt lease.Option) (*lease.Lease, error) {
			return i.Acquire(ctx, "a", opt)
		},
		"AcquireAll": func(ctx context.Context, i *lease.Issuer, opt lease.Option) (*lease.Lease, error) {
			ls, err := i.AcquireAll(ctx, []string{"a", "b"}, opt)
			if err != nil {
				return nil, err
			}
			return ls[0], nil
		},
		"With": func(ctx context.Context, i *lease.Issuer, opt lease.Option) (*lease.Lease, error) {
			return i.With(opt).Acquire(ctx, "a")
		},
	}
	for first, acquireFirst := range acquire {
		for second, acquireSecond := range acquire {
			for _, swapped := range []bool{false, true} {
				t.Run(first+", "+second, func(t *testing.T) {
					inBubble(t, func(t *testing.T, w *world) {
						i := w.issuer(t, lease.Config{TTL: time.Minute, RenewEvery: lease.Never})
						id := lease.LeaseID(uuid.New())
						one, err := acquireFirst(t.Context(), i, id)
						require.NoError(t, err)
						two, err := acquireSecond(t.Context(), i, id)
						require.NoError(t, err)
						require.Equal(t, one.Token(), two.Token())
						if swapped {
							one, two = two, one
						}
						require.NoError(t, two.Release(t.Context()))
						require.ErrorIs(t, one.Err(), lease.ErrReleased)
						require.ErrorContains(t, context.Cause(one.Context()), "another acquisition with its lease id")
						require.True(t, one.Released())
						require.False(t, time.Now().Before(one.ValidUntil()))
						require.NoError(t, one.Release(t.Context()), "that is done")
						require.NoError(t, try(t, i, "a").Err(), "it is free")
						require.NoError(t, i.Close(t.Context()))
					})
				})
			}
		}
	}
}

// Also where only the later of the two was acquired with an id, that of the other. What has another
// id is not theirs.
func TestWhoeverReleasesEndsWhatHasTheSameIDAndNothingElse(t *testing.T) {
	for kind, acquirer := range map[string]func(t *testing.T, w *world) func(opts ...lease.Option) *lease.Lease{
		"leases": func(t *testing.T, w *world) func(opts ...lease.Option) *lease.Lease {
			i := w.issuer(t, lease.Config{TTL: time.Minute, RenewEvery: lease.Never})
			return func(opts ...lease.Option) *lease.Lease { return try(t, i, "a", opts...) }
		},
		"permits": func(t *testing.T, w *world) func(opts ...lease.Option) *lease.Lease {
			s := w.semaphore(t, 2, lease.Config{TTL: time.Minute, RenewEvery: lease.Never})
			return func(opts ...lease.Option) *lease.Lease {
				p, err := s.Acquire(t.Context(), "a", append(slices.Clip(opts), lease.NoWait())...)
				require.NoError(t, err)
				return p
			}
		},
	} {
		for _, given := range []string{"the second", "both", "the first"} {
			if kind == "leases" && given == "the first" {
				continue // which refuses the second
			}
			for _, swapped := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, id given to %s, swapped %v", kind, given, swapped), func(t *testing.T) {
					inBubble(t, func(t *testing.T, w *world) {
						acquire := acquirer(t, w)
						var toFirst, toSecond []lease.Option
						if given != "the second" {
							toFirst = append(toFirst, lease.LeaseID(uuid.New()))
						}
						released := acquire(toFirst...)
						if given != "the first" {
							toSecond = append(toSecond, lease.LeaseID(released.LeaseID()))
						}
						other := acquire(toSecond...)
						if swapped {
							released, other = other, released
						}
						require.NoError(t, released.Release(t.Context()))
						if given == "the first" {
							require.NoError(t, other.Err(), "it is another permit")
							return
						}
						require.ErrorIs(t, other.Err(), lease.ErrReleased)
						require.ErrorContains(t, other.Err(), "another acquisition with its lease id")
						require.NoError(t, other.Release(t.Context()), "that is done")
					})
				})
			}
		}
	}
}

// Another issuer is another process: it learns at its next renewal.
func TestALeaseThatAnotherProcessReleasesIsOverAtItsNextRenewal(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		cfg := lease.Config{TTL: 9 * time.Second}
		id := lease.LeaseID(uuid.New())
		one, two := try(t, w.issuer(t, cfg), "a", id), try(t, w.issuer(t, cfg), "a", id)
		require.NoError(t, two.Release(t.Context()))
		<-one.Context().Done()
		require.ErrorIs(t, one.Err(), lease.ErrLost)
	})
}

// Do does not call work whole that went on when another had given its lease back.
func TestDoTellsThatAnotherAcquisitionHasReleasedItsLease(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: time.Minute})
		id := lease.LeaseID(uuid.New())
		other := try(t, i, "a", id)
		err := i.Do(t.Context(), "a", func(ctx context.Context, l *lease.Lease) error {
			require.NoError(t, other.Release(ctx))
			return l.Release(ctx)
		}, id)
		done, is := errors.AsType[*lease.WorkDoneError](err)
		require.True(t, is, "%v", err)
		require.ErrorIs(t, done.Cause, lease.ErrReleased)
		require.NoError(t, i.Close(t.Context()))
	})
}
