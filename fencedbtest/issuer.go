package fencedbtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/internal/protocol"
	"github.com/fencedb/fencedb/lease"
)

// Issuer is a lease.Issuer with its client and configuration, with which code under test can make
// an issuer of its own that shares the resources.
type Issuer struct {
	*lease.Issuer
	Client redis.UniversalClient
	Config lease.Config
}

// NewIssuer returns an issuer on a Redis of its own, within the process. It ends with the test.
// Config.TTL defaults to a minute, so no lease expires unless the test means it to.
func NewIssuer(t testing.TB, cfg lease.Config) *Issuer {
	t.Helper()
	server := miniredis.NewMiniRedis()
	server.ClockTTL(true)
	if err := server.Start(); err != nil {
		t.Fatal("fencedbtest: ", err)
	}
	t.Cleanup(server.Close)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	cfg.Namespace = cmp.Or(cfg.Namespace, "test")
	return IssuerOn(t, client, cfg)
}

// IssuerOn is NewIssuer on your Redis. Config.Namespace defaults to one for this test alone, whose
// keys are deleted at its end, unless the test has closed the client by then.
//
// An issuer excludes only the work under leases of its own namespace. Tests that run in parallel
// and write to one database under the same resources are stale to each other: give each test a
// database or resources of its own.
func IssuerOn(t testing.TB, client redis.UniversalClient, cfg lease.Config) *Issuer {
	t.Helper()
	cfg.TTL = cmp.Or(cfg.TTL, time.Minute)
	own := cfg.Namespace == ""
	if own {
		cfg.Namespace = fmt.Sprintf("fencedbtest_%x", rand.Uint64())
	}
	leases, err := lease.New(client, cfg)
	if err != nil {
		t.Fatal("fencedbtest: ", err)
	}
	i := &Issuer{leases, client, cfg}
	if own {
		t.Cleanup(func() {
			if err := flush(t, i); err != nil && !errors.Is(err, redis.ErrClosed) {
				t.Fatal("fencedbtest: ", err)
			}
		})
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Second)
		defer cancel()
		_ = leases.Close(ctx) // a lease that is not released expires
	})
	return i
}

// Expire ends the lease on the resource in Redis, as if its time were over. Its holder trusts it
// until its next renewal, like a holder that was stopped. Others can acquire the resource. The test
// fails if there is no lease, or if Config.HashResources is set.
func Expire(t testing.TB, i *Issuer, resource string) {
	t.Helper()
	key := lease.Key{Namespace: i.Config.Namespace, Resource: resource, Field: "owner"}
	if i.Config.HashResources {
		t.Fatal("fencedbtest: Expire needs resources that are not hashed")
	}
	n, err := i.Client.Del(t.Context(), key.String()).Result()
	if err != nil || n == 0 {
		t.Fatalf("fencedbtest: there is no lease on %q that could expire (%v)", resource, err)
	}
}

// Flush makes Redis forget everything in the issuer's namespace, as FLUSHALL or a restart without
// persistence does: holders, waiters, the last tokens, and what packages once and admission keep.
func Flush(t testing.TB, i *Issuer) {
	t.Helper()
	if err := flush(t, i); err != nil {
		t.Fatal("fencedbtest: ", err)
	}
}

func flush(t testing.TB, i *Issuer) (err error) {
	ctx := context.WithoutCancel(t.Context()) // also at the end of the test
	for _, kind := range []string{protocol.LeaseKind, protocol.SemaphoreKind, protocol.OnceKind, protocol.AdmissionKind} {
		pattern := lease.Key{Kind: kind, Namespace: i.Config.Namespace, Field: "*"}.Pattern()
		if cluster, ok := i.Client.(*redis.ClusterClient); ok {
			err = errors.Join(err, cluster.ForEachMaster(ctx, func(ctx context.Context, master *redis.Client) error {
				return deleteMatching(ctx, master, pattern)
			}))
			continue
		}
		err = errors.Join(err, deleteMatching(ctx, i.Client, pattern))
	}
	return err
}

func deleteMatching(ctx context.Context, client redis.Cmdable, pattern string) error {
	keys := client.Scan(ctx, 0, pattern, 1000).Iterator()
	for keys.Next(ctx) {
		if err := client.Del(ctx, keys.Val()).Err(); err != nil {
			return err
		}
	}
	return keys.Err()
}
