package once_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/leasetest"
	"github.com/fencedb/fencedb/lease"
	protocol "github.com/fencedb/fencedb/lease/internal/redis"
	"github.com/fencedb/fencedb/lease/once"
)

func TestRights(t *testing.T) {
	t.Parallel()
	leasetest.RunRights(t, "lease/once", func(t *testing.T, client, admin redis.UniversalClient, namespace string) (errs []error) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		bounded := ctx
		try := func(err error) error {
			errs = append(errs, err)
			return err
		}
		cfg := once.Config{Namespace: namespace}
		o, err := once.New(client, cfg)
		others, err2 := once.New(admin, cfg)
		if try(err) != nil || try(err2) != nil {
			return errs
		}
		defer func() { try(o.Close(ctx)); try(others.Close(ctx)) }()
		paid := func(context.Context, *lease.Lease) ([]byte, error) { return []byte("paid"), nil }
		for range 2 { // run, and replayed
			_, _, err = o.Do(ctx, "a", nil, paid)
			try(err)
		}
		_, _, err = o.Do(ctx, "a", nil, paid, once.NoWait())
		try(err)
		_, err = o.State(ctx, "a")
		try(err)
		try(o.Forget(ctx, "a"))

		// A runner whose claim another waits for, first theirs and then ours.
		for n, pair := range [][2]*once.Once{{others, o}, {o, others}} {
			key := []string{"b", "c"}[n]
			running, waited := make(chan struct{}), make(chan error, 1)
			_, _, err = pair[0].Do(ctx, key, nil, func(ctx context.Context, claim *lease.Lease) ([]byte, error) {
				try(claim.Extend(ctx))
				close(running)
				go func() {
					_, _, err := pair[1].Do(bounded, key, nil, paid)
					waited <- err
				}()
				keys := protocol.KeysOf(protocol.LeaseKind, namespace, "once:"+key, false)
				leasetest.AwaitListener(ctx, admin, keys.Queue, keys.Channel, func() bool { return len(waited) > 0 })
				return []byte("paid"), nil
			})
			try(err)
			select {
			case <-running:
				try(<-waited)
			default:
			}
		}

		// After a lost reply a run leaves a note of its call.
		faults := new(faulty.Redis)
		client.AddHook(faults)
		faults.First(faulty.LoseReply)
		for range 2 {
			_, _, err = o.Do(ctx, "d", nil, paid)
			try(err)
			try(o.Forget(ctx, "d"))
		}
		faults.Always(faulty.None)
		return errs
	})
}

func TestRefusalsHaveOneErrorEach(t *testing.T) {
	t.Parallel()
	keys := func(t *testing.T, client *redis.Client) *once.Once {
		o, err := once.New(client, once.Config{InFlight: time.Minute})
		require.NoError(t, err)
		return o
	}
	paid := func(context.Context, *lease.Lease) ([]byte, error) { return []byte("paid"), nil }
	leasetest.Refusals(t, map[string]leasetest.Request{
		"run": {Effect: leasetest.Writes, Prepare: func(t *testing.T, client *redis.Client) func() error {
			o := keys(t, client)
			return func() error { _, _, err := o.Do(t.Context(), "run", nil, paid, once.NoWait()); return err }
		}},
		"record": {Effect: leasetest.Writes, Prepare: func(t *testing.T, client *redis.Client) func() error {
			o, begun, end, done := keys(t, client), make(chan struct{}), make(chan struct{}), make(chan error, 1)
			go func() {
				_, _, err := o.Do(t.Context(), "record", nil, func(ctx context.Context, l *lease.Lease) ([]byte, error) {
					close(begun)
					<-end
					return paid(ctx, l)
				})
				done <- err
			}()
			<-begun
			return func() error {
				close(end)
				err := <-done
				require.ErrorIs(t, err, once.ErrNotRecorded)
				return err
			}
		}},
		"forget": {Effect: leasetest.Frees, Prepare: func(t *testing.T, client *redis.Client) func() error {
			o := keys(t, client)
			_, _, err := o.Do(t.Context(), "forget", nil, paid)
			require.NoError(t, err)
			return func() error { return o.Forget(t.Context(), "forget") }
		}},
		"state": {Effect: leasetest.Reads, Prepare: func(t *testing.T, client *redis.Client) func() error {
			o := keys(t, client)
			return func() error { _, err := o.State(t.Context(), "state"); return err }
		}},
	})
}
