package lease_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/lease"
)

const ms = time.Millisecond

func TestNewRefuses(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // never dialled
	defer client.Close()
	_, err := lease.New(nil, lease.Config{TTL: time.Second})
	require.ErrorIs(t, err, lease.ErrInvalid)

	_, err = lease.New(client, lease.Config{TTL: 10})
	require.ErrorContains(t, err, "10ns", "what was given, so that a missing unit shows")

	for name, cfg := range map[string]lease.Config{
		"TTL missing":                    {},
		"TTL negative":                   {TTL: -time.Second},
		"TTL 500µs":                      {TTL: 500 * time.Microsecond},
		"TTL 999.999µs":                  {TTL: ms - 1},
		"Margin negative":                {TTL: time.Second, Margin: -1},
		"Margin all of TTL":              {TTL: time.Second, Margin: time.Second, RenewEvery: lease.Never},
		"WarnBefore negative":            {TTL: time.Second, WarnBefore: -1},
		"WarnBefore all of it":           {TTL: time.Second, Margin: 10 * ms, WarnBefore: 990 * ms},
		"Replicas negative":              {TTL: time.Second, Replicas: -1},
		"ReplicaTimeout negative":        {TTL: time.Second, Replicas: 1, ReplicaTimeout: -1},
		"ReplicaTimeout for ever":        {TTL: time.Second, Replicas: 1, ReplicaTimeout: ms - 1},
		"ReplicaTimeout all of it":       {TTL: time.Second, Margin: 10 * ms, Replicas: 1, ReplicaTimeout: 990 * ms},
		"MaxHold less than TTL":          {TTL: time.Second, MaxHold: 999 * ms},
		"MaxHold negative":               {TTL: time.Second, MaxHold: -2},
		"FenceRetention less than TTL":   {TTL: time.Second, FenceRetention: 999 * ms},
		"RenewEvery negative":            {TTL: time.Second, RenewEvery: -3},
		"RenewTimeout negative":          {TTL: time.Second, RenewTimeout: -1},
		"renewal as long as the lease":   {TTL: time.Second, Margin: 10 * ms, RenewEvery: 500 * ms, RenewTimeout: 490 * ms},
		"RenewEvery longer than the TTL": {TTL: time.Second, RenewEvery: 2 * time.Second},
		"Namespace too long":             {TTL: time.Second, Namespace: strings.Repeat("x", 129)},
		"Namespace with NUL":             {TTL: time.Second, Namespace: "\x00"},
		"Namespace not UTF-8":            {TTL: time.Second, Namespace: "\xff"},
	} {
		_, err := lease.New(client, cfg)
		require.ErrorIs(t, err, lease.ErrInvalid, name)
	}
	for name, cfg := range map[string]lease.Config{
		"the shortest":             {TTL: ms},
		"long":                     {TTL: 48 * time.Hour},
		"renewal just in time":     {TTL: time.Second, Margin: 10 * ms, RenewEvery: 500 * ms, RenewTimeout: 489 * ms},
		"no renewal, no matter":    {TTL: time.Second, RenewEvery: lease.Never, RenewTimeout: time.Hour},
		"no replicas, no matter":   {TTL: time.Second, ReplicaTimeout: time.Hour},
		"replicas":                 {TTL: time.Second, Replicas: 2},
		"no bound on hold":         {TTL: time.Second, MaxHold: lease.Unlimited},
		"the longest namespace":    {TTL: time.Second, Namespace: strings.Repeat("x", 128)},
		"a namespace with a slash": {TTL: time.Second, Namespace: "a/{b}"},
	} {
		_, err := lease.New(client, cfg)
		require.NoError(t, err, name)
	}
}

func TestAcquireRefusesBadNames(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // never dialled
	defer client.Close()
	i, err := lease.New(client, lease.Config{TTL: time.Second})
	require.NoError(t, err)
	for _, resource := range []string{"", "a\x00b", "\xff", strings.Repeat("x", 513)} {
		_, err := i.TryAcquire(t.Context(), resource)
		require.ErrorIs(t, err, lease.ErrInvalid, "%q", resource)
		_, err = i.Acquire(t.Context(), resource)
		require.ErrorIs(t, err, lease.ErrInvalid, "%q", resource)
		require.ErrorIs(t, i.Do(t.Context(), resource, nil), lease.ErrInvalid, "%q", resource)
	}
	_, err = i.TryAcquire(t.Context(), "table:12", lease.WithLeaseID(uuid.Nil))
	require.ErrorIs(t, err, lease.ErrInvalid)
}
