package lease_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/leasetest"
	"github.com/fencedb/fencedb/lease"
)

func TestSemaphoreRefusalsHaveOneErrorEach(t *testing.T) {
	t.Parallel()
	places := func(t *testing.T, client *redis.Client) *lease.Semaphore {
		s, err := lease.NewSemaphore(client, lease.SemaphoreConfig{Limit: 3, Lease: lease.Config{TTL: time.Minute, RenewEvery: lease.Never}})
		require.NoError(t, err)
		return s
	}
	leasetest.Refusals(t, map[string]leasetest.Request{
		"acquire": {Effect: leasetest.Writes, Prepare: func(t *testing.T, client *redis.Client) func() error {
			s := places(t, client)
			return func() error { _, err := s.TryAcquire(t.Context(), "acquire"); return err }
		}},
		"set limit": {Effect: leasetest.Writes, Prepare: func(t *testing.T, client *redis.Client) func() error {
			s := places(t, client)
			return func() error { return s.SetLimit(t.Context(), "limit", 5) }
		}},
		"extend": {Effect: leasetest.Frees, Prepare: func(t *testing.T, client *redis.Client) func() error {
			l, err := places(t, client).TryAcquire(t.Context(), "extend")
			require.NoError(t, err)
			return func() error { return l.Extend(t.Context()) }
		}},
		"release": {Effect: leasetest.Frees, Prepare: func(t *testing.T, client *redis.Client) func() error {
			l, err := places(t, client).TryAcquire(t.Context(), "release")
			require.NoError(t, err)
			return func() error { return l.Release(t.Context()) }
		}},
		"revoke": {Effect: leasetest.Frees, Prepare: func(t *testing.T, client *redis.Client) func() error {
			s := places(t, client)
			l, err := s.TryAcquire(t.Context(), "revoke")
			require.NoError(t, err)
			return func() error { _, err := s.Revoke(t.Context(), "revoke", l.LeaseID()); return err }
		}},
		"inspect": {Effect: leasetest.Reads, Prepare: func(t *testing.T, client *redis.Client) func() error {
			s := places(t, client)
			return func() error { _, err := s.Inspect(t.Context(), "inspect"); return err }
		}},
	})
}
