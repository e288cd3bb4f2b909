package lease_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/lease"
)

// Nothing that was not made as the package says panics, nor asks Redis.
func TestZeroValuesAreRefused(t *testing.T) {
	ctx := t.Context()
	for name, i := range map[string]*lease.Issuer{"zero": new(lease.Issuer), "nil": nil} {
		for call, err := range map[string]error{
			"TryAcquire":    second(i.TryAcquire(ctx, "a")),
			"Acquire":       second(i.Acquire(ctx, "a")),
			"TryAcquireAll": second(i.TryAcquireAll(ctx, []string{"a"})),
			"AcquireAll":    second(i.AcquireAll(ctx, []string{"a"})),
			"Do":            i.Do(ctx, "a", nil),
			"DoAll":         i.DoAll(ctx, []string{"a"}, nil),
			"Revoke":        second(i.Revoke(ctx, "a")),
			"TakeOver":      second(i.TakeOver(ctx, "a", 1)),
			"Raise":         second(i.Raise(ctx, "a", 1)),
			"Heal":          second(i.Heal(ctx, new(lease.Lease), 1)),
			"Inspect":       second(i.Inspect(ctx, "a")),
			"Check":         second(i.Check(ctx)),
		} {
			require.ErrorIs(t, err, lease.ErrInvalid, "%s %s", name, call)
		}
	}

	l := new(lease.Lease)
	for call, err := range map[string]error{
		"Err":     l.Err(),
		"Extend":  l.Extend(ctx),
		"Release": l.Release(ctx),
		"Verify":  second(l.Verify(ctx)),
		"Context": context.Cause(l.Context()),
	} {
		require.ErrorIs(t, err, lease.ErrInvalid, call)
	}
	work, stop := l.Bind(ctx)
	defer stop()
	require.ErrorIs(t, context.Cause(work), lease.ErrInvalid)
	require.Zero(t, l.ValidUntil())
	require.Zero(t, l.Token())
	require.Empty(t, l.Resource())
	require.Nil(t, l.Expiring())
	i, err := lease.New(newWorld(t).client, lease.Config{TTL: time.Second})
	require.NoError(t, err)
	for _, l := range []*lease.Lease{new(lease.Lease), nil} {
		_, err = i.Heal(ctx, l, 1)
		require.ErrorIs(t, err, lease.ErrInvalid)
	}
}

func second[T any](_ T, err error) error { return err }

func TestNeverAndUnlimitedAreNotTheSame(t *testing.T) {
	client := newWorld(t).client
	for _, cfg := range []lease.Config{
		{TTL: time.Second, RenewEvery: lease.Unlimited},
		{TTL: time.Second, MaxHold: lease.Never},
	} {
		_, err := lease.New(client, cfg)
		require.ErrorIs(t, err, lease.ErrInvalid)
	}
	_, err := lease.New(client, lease.Config{TTL: time.Second, RenewEvery: lease.Never, MaxHold: lease.Unlimited})
	require.NoError(t, err)
}
