package admission_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/leasetest"
	"github.com/fencedb/fencedb/lease/admission"
)

func TestRights(t *testing.T) {
	t.Parallel()
	leasetest.RunRights(t, "lease/admission", func(t *testing.T, client, _ redis.UniversalClient, namespace string) (errs []error) {
		for _, sliding := range []bool{false, true} {
			l, err := admission.New(client, admission.Config{Limit: 50, Window: 50 * time.Millisecond, Sliding: sliding, Namespace: namespace,
				OnError: admission.FailClosed, Timeout: 10 * time.Second})
			errs = append(errs, err)
			if err != nil {
				return errs
			}
			for admitted := 0; admitted < 120; { // also those of the next windows
				d, err := l.Allow(t.Context(), "a")
				errs = append(errs, err, d.Err)
				if err != nil || d.Err != nil {
					break
				}
				if d.Allowed {
					admitted++
				}
			}
			l, err = admission.New(client, admission.Config{Limit: 1, Window: time.Hour, Sliding: sliding, Namespace: namespace,
				OnError: admission.FailClosed, Timeout: 10 * time.Second})
			errs = append(errs, err)
			for range 2 {
				d, err := l.Allow(t.Context(), "b") // the second is refused, however slow the machine is
				errs = append(errs, err, d.Err)
			}
		}
		return errs
	})
}

func TestWhyRedisHasNotJudgedHasOneErrorEach(t *testing.T) {
	t.Parallel()
	allow := func(sliding bool) leasetest.Request {
		return leasetest.Request{Effect: leasetest.Writes, Prepare: func(t *testing.T, client *redis.Client) func() error {
			l, err := admission.New(client, admission.Config{Limit: 2, Window: time.Hour, Sliding: sliding, OnError: admission.FailOpen, Timeout: time.Minute})
			require.NoError(t, err)
			return func() error {
				d, err := l.Allow(t.Context(), "tenant:7")
				require.NoError(t, err)
				require.True(t, d.Allowed)
				return d.Err
			}
		}}
	}
	leasetest.Refusals(t, map[string]leasetest.Request{"fixed": allow(false), "sliding": allow(true)})
}
