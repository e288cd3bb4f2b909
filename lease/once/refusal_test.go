package once_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/leasetest"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/lease/once"
)

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
