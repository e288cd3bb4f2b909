package lease_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/leasetest"
	"github.com/fencedb/fencedb/lease"
	protocol "github.com/fencedb/fencedb/lease/internal/redis"
)

func TestSemaphoreRights(t *testing.T) {
	t.Parallel()
	leasetest.RunRights(t, "lease.Semaphore", func(t *testing.T, client, admin redis.UniversalClient, namespace string) (errs []error) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		try := func(err error) error {
			errs = append(errs, err)
			return err
		}
		cfg := lease.SemaphoreConfig{Limit: 1, Lease: lease.Config{TTL: 10 * time.Second, Namespace: namespace}}
		s, err := lease.NewSemaphore(client, cfg)
		others, err2 := lease.NewSemaphore(admin, cfg)
		if try(err) != nil || try(err2) != nil {
			return errs
		}
		defer func() { try(s.Close(ctx)); try(others.Close(ctx)) }()

		if l, err := s.Acquire(ctx, "a"); try(err) == nil {
			try(l.Extend(ctx))
			_, err = l.Verify(ctx)
			try(err)
			try(l.Release(ctx))
		}
		_, err = s.Inspect(ctx, "a")
		try(err)
		try(s.SetLimit(ctx, "a", 1))
		try(s.ResetLimit(ctx, "a"))
		_, err = s.Revoke(ctx, "a", uuid.New())
		try(err)
		if l, err := others.Acquire(ctx, "a"); try(err) == nil {
			_, err = s.Revoke(ctx, "a", l.LeaseID())
			try(err)
		}
		// A place that its holder has left behind.
		brief, err := lease.NewSemaphore(admin, lease.SemaphoreConfig{Limit: 1, Lease: lease.Config{TTL: time.Millisecond, Namespace: namespace, RenewEvery: lease.Never}})
		if try(err) != nil {
			return errs
		}
		_, _ = brief.TryAcquire(ctx, "b")
		if l, err := s.Acquire(ctx, "b"); try(err) == nil {
			try(l.Release(ctx))
		}

		// One that waits, gets the place from another, and hands it on to one that waits.
		passOn := func(s *lease.Semaphore, holder *lease.Lease) *lease.Lease {
			got, failed := make(chan *lease.Lease, 1), make(chan error, 1)
			go func() {
				l, err := s.Acquire(ctx, "d")
				failed <- err
				got <- l
			}()
			keys := protocol.KeysOf(protocol.SemaphoreKind, namespace, "d", false)
			leasetest.AwaitListener(ctx, admin, keys.Queue, keys.Channel, func() bool { return len(failed) > 0 })
			try(holder.Release(ctx))
			try(<-failed)
			return <-got
		}
		held, err := others.Acquire(ctx, "d")
		if try(err) != nil {
			return errs
		}
		mine := passOn(s, held)
		if mine == nil {
			return errs
		}
		if theirs := passOn(others, mine); theirs != nil {
			try(theirs.Release(ctx))
		}

		// After a lost reply a call leaves a note.
		faults := new(faulty.Redis)
		client.AddHook(faults)
		faults.First(faulty.LoseReply)
		for range 2 {
			if l, err := s.Acquire(ctx, "e"); try(err) == nil {
				try(l.Release(ctx))
			}
		}
		faults.Always(faulty.None)
		return errs
	})
}

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
