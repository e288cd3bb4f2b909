package admission_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/leasetest"
	"github.com/fencedb/fencedb/lease/admission"
)

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
