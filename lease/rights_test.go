package lease_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/leasetest"
	"github.com/fencedb/fencedb/lease"
)

func TestRights(t *testing.T) {
	t.Parallel()
	leasetest.RunRights(t, "lease", func(t *testing.T, client, admin redis.UniversalClient, namespace string) (errs []error) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		try := func(err error) error {
			errs = append(errs, err)
			return err
		}
		cfg := lease.Config{TTL: 10 * time.Second, Namespace: namespace}
		i, err := lease.New(client, cfg)
		others, err2 := lease.New(admin, cfg)
		if try(err) != nil || try(err2) != nil {
			return errs
		}
		defer func() { try(i.Close(ctx)); try(others.Close(ctx)) }()

		_, err = i.Check(ctx)
		try(err)
		if l, err := i.Acquire(ctx, "a"); try(err) == nil {
			try(l.Extend(ctx))
			_, err = l.Verify(ctx)
			try(err)
			fresh, err := i.Heal(ctx, l, l.Token())
			if try(err) == nil {
				try(fresh.Release(ctx))
			}
		}
		_, err = i.Raise(ctx, "a", 1)
		try(err)
		_, err = i.Inspect(ctx, "a")
		try(err)
		_, err = i.Revoke(ctx, "a")
		try(err)
		if several, err := i.AcquireAll(ctx, []string{"b", "c"}); try(err) == nil {
			try(several.Release(ctx))
		}

		// One that waits, gets the lease from another, and hands it on to one that waits.
		held, err := others.Acquire(ctx, "d")
		if try(err) != nil {
			return errs
		}
		passOn := func(i *lease.Issuer, holder *lease.Lease) *lease.Lease {
			got := make(chan *lease.Lease, 1)
			failed := make(chan error, 1)
			go func() {
				l, err := i.Acquire(ctx, "d")
				failed <- err
				got <- l
			}()
			for waiting := 0; waiting == 0 && len(failed) == 0; {
				found, err := others.Inspect(ctx, "d")
				if err != nil {
					break
				}
				waiting = found.Waiters
			}
			try(holder.Release(ctx))
			try(<-failed)
			return <-got
		}
		mine := passOn(i, held)
		if mine == nil {
			return errs
		}
		theirs := passOn(others, mine)
		_, err = i.TryAcquire(ctx, "d", lease.Barge())
		if err == nil {
			t.Error("it is held")
		}
		if theirs != nil {
			try(theirs.Release(ctx))
		}

		// After a lost reply a call leaves a note.
		faults := new(faulty.Redis)
		client.AddHook(faults)
		faults.First(faulty.LoseReply)
		for range 2 {
			if l, err := i.Acquire(ctx, "e"); try(err) == nil {
				try(l.Release(ctx))
			}
		}
		faults.Always(faulty.None)
		return errs
	})
}
