package lease_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

const ms = time.Millisecond

func TestNewRefuses(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // never dialled
	defer client.Close()
	for _, none := range []redis.UniversalClient{nil, (*redis.Client)(nil), (*redis.ClusterClient)(nil)} {
		_, err := lease.New(none, lease.Config{TTL: time.Second})
		require.ErrorIs(t, err, lease.ErrInvalid)
		_, err = lease.NewSemaphore(none, lease.SemaphoreConfig{Limit: 1, Lease: lease.Config{TTL: time.Second}})
		require.ErrorIs(t, err, lease.ErrInvalid)
	}

	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	defer ring.Close()
	_, err := lease.New(ring, lease.Config{TTL: time.Second})
	require.ErrorIs(t, err, lease.ErrInvalid, "it cannot subscribe before it knows a channel, and spreads resources that are acquired together")

	pipeliner, err := client.AutoPipeline()
	require.NoError(t, err)
	defer pipeliner.Close()
	_, err = lease.New(pipeliner, lease.Config{TTL: time.Second})
	require.ErrorIs(t, err, lease.ErrInvalid, "it may be that of a Cluster, which cannot be seen")

	wrapped := struct{ *redis.ClusterClient }{redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})}
	defer wrapped.Close()
	for _, hidden := range []redis.UniversalClient{wrapped, &wrapped, struct{ redis.UniversalClient }{client}} {
		_, err = lease.New(hidden, lease.Config{TTL: time.Second})
		require.ErrorIs(t, err, lease.ErrInvalid, "it may be a Cluster, where waiters listen elsewhere: %T", hidden)
	}

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
		"RenewTimeout negative, unused":  {TTL: time.Second, RenewEvery: lease.Never, RenewTimeout: -1},
		"renewal as long as the lease":   {TTL: time.Second, Margin: 10 * ms, RenewEvery: 500 * ms, RenewTimeout: 490 * ms},
		"RenewEvery longer than the TTL": {TTL: time.Second, RenewEvery: 2 * time.Second},
		"RenewEvery the longest":         {TTL: time.Second, RenewEvery: math.MaxInt64},
		"RenewTimeout the longest":       {TTL: time.Second, RenewTimeout: math.MaxInt64},
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
	nothing := func(context.Context, *lease.Lease) error { return nil }
	for _, resource := range []string{"", "a\x00b", "\xff", strings.Repeat("x", 513)} {
		_, err := i.Acquire(t.Context(), resource, lease.NoWait())
		require.ErrorIs(t, err, lease.ErrInvalid, "%q", resource)
		_, err = i.Acquire(t.Context(), resource)
		require.ErrorIs(t, err, lease.ErrInvalid, "%q", resource)
		require.ErrorIs(t, i.Do(t.Context(), resource, nothing), lease.ErrInvalid, "%q", resource)
	}
	require.ErrorIs(t, i.Do(t.Context(), "table:12", nil), lease.ErrInvalid)
	require.ErrorIs(t, i.DoAll(t.Context(), []string{"table:12"}, nil), lease.ErrInvalid)
}

func TestConnectionsTellWhoseTheyAre(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	name := lease.ClientName("booking of tables")
	require.Regexp(t, fmt.Sprintf(`^booking_of_tables@[!-~]+:%d$`, os.Getpid()), name)
	require.Regexp(t, `^[!-~]+$`, lease.ClientName("lä\nßt"))

	client := redis.NewClient(&redis.Options{Addr: server.Addr(), ClientName: name})
	t.Cleanup(func() { _ = client.Close() })
	w := &world{client: client}
	holder := try(t, w.issuer(t, lease.Config{TTL: time.Minute}), "a")
	grants := make(chan grant)
	wait(t.Context(), w.issuer(t, lease.Config{TTL: time.Minute}), 0, grants)
	named := func(also string) (n int) {
		for line := range strings.Lines(server.Client().ClientList(t.Context()).Val()) {
			if strings.Contains(line, " name="+name+" ") && strings.Contains(line, also) {
				n++
			}
		}
		return n
	}
	require.Eventually(t, func() bool { return named(" sub=1 ") == 1 && named(" sub=0 ") > 0 }, time.Minute, ms)
	require.NoError(t, holder.Release(t.Context()))
	g := <-grants
	require.NoError(t, g.err)
	require.NoError(t, g.lease.Release(t.Context()))
}

func TestResource(t *testing.T) {
	require.Equal(t, "table:12", lease.Resource("table", 12))
	require.Equal(t, "user:ada", lease.Resource("user", "ada"))
}

// Nothing that was not made as the package says panics, nor asks Redis.
func TestZeroValuesAreRefused(t *testing.T) {
	ctx := t.Context()
	for name, i := range map[string]*lease.Issuer{"zero": new(lease.Issuer), "nil": nil} {
		calls := 0
		for call, err := range map[string]error{
			"Acquire":    second(i.Acquire(ctx, "a")),
			"AcquireAll": second(i.AcquireAll(ctx, []string{"a"})),
			"Do":         i.Do(ctx, "a", func(context.Context, *lease.Lease) error { return nil }),
			"DoAll":      i.DoAll(ctx, []string{"a"}, func(context.Context, lease.Leases) error { return nil }),
			"Revoke":     second(i.Revoke(ctx, "a")),
			"TakeOver":   second(i.TakeOver(ctx, "a", 1)),
			"Raise":      second(i.Raise(ctx, "a", 1)),
			"Inspect":    second(i.Inspect(ctx, "a")),
			"Check":      second(i.Check(ctx)),
			"Lead":       i.Lead(ctx, "a", func(context.Context, *lease.Lease) error { return nil }),
			"Close":      i.Close(ctx),
			"With":       second(i.With(lease.NoWait()).Acquire(ctx, "a")),
			"Sealed":     second(i.Sealed(nil).Acquire(ctx, "a")),
		} {
			require.ErrorIs(t, err, lease.ErrInvalid, "%s %s", name, call)
			calls++
		}
		require.Equal(t, reflect.TypeFor[*lease.Issuer]().NumMethod(), calls, "every method")
	}

	for name, l := range map[string]*lease.Lease{"zero": new(lease.Lease), "nil": nil} {
		work, stop := l.Bind(ctx)
		defer stop()
		for call, err := range map[string]error{
			"Err":     l.Err(),
			"Extend":  l.Extend(ctx),
			"Release": l.Release(ctx),
			"Verify":  second(l.Verify(ctx)),
			"Eval":    second(l.Eval(ctx, "return 1", nil)),
			"Context": context.Cause(l.Context()),
			"Bind":    context.Cause(work),
			"Leases":  lease.Leases{l, l}.Release(ctx),
		} {
			require.ErrorIs(t, err, lease.ErrInvalid, "%s %s", name, call)
		}
		require.Zero(t, l.ValidUntil())
		require.Zero(t, l.Token())
		require.Zero(t, l.LeaseID())
		require.Empty(t, l.Resource())
		require.Nil(t, l.Expiring())
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
