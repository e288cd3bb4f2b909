package main

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/lease"
)

// Kinds of what can be held. The first two are the first words of keys; a claim of package once is a lease.
const (
	leaseKind     = "lease"
	semaphoreKind = "semaphore"
	onceKind      = "once"
)

// owner is a key that says who holds a resource.
type owner struct{ kind, resource, key string }

// scanOwners returns them in the order of their resources.
func scanOwners(ctx context.Context, client redis.UniversalClient, wanted selection) ([]owner, error) {
	var mu sync.Mutex
	found := map[string]owner{} // SCAN may name a key twice
	scan := func(ctx context.Context, server redis.Cmdable) error {
		for _, kind := range []string{leaseKind, semaphoreKind} {
			names := lease.Key{Kind: kind, Namespace: wanted.namespace, Resource: wanted.prefix, Field: "owner"}
			keys := server.Scan(ctx, 0, names.Pattern(), 1000).Iterator()
			for keys.Next(ctx) {
				if k, ok := lease.ParseKey(keys.Val()); ok && k.Namespace == wanted.namespace { // a pattern cannot tell namespaces apart
					mu.Lock()
					found[keys.Val()] = owner{kind, k.Resource, keys.Val()}
					mu.Unlock()
				}
			}
			if err := keys.Err(); err != nil {
				return err
			}
		}
		return nil
	}
	var err error
	if cluster, ok := client.(*redis.ClusterClient); ok {
		err = cluster.ForEachMaster(ctx, func(ctx context.Context, master *redis.Client) error { return scan(ctx, master) })
	} else {
		err = scan(ctx, client)
	}
	owners := make([]owner, 0, len(found))
	for _, o := range found {
		owners = append(owners, o)
	}
	slices.SortFunc(owners, func(a, b owner) int {
		return cmp.Or(cmp.Compare(a.resource, b.resource), cmp.Compare(a.kind, b.kind))
	})
	return owners, err
}

// byAge leaves those that are old enough, by the oldest token of each. Whose token does not tell the time counts as new.
func byAge(ctx context.Context, client redis.UniversalClient, owners []owner, wanted selection) ([]owner, error) {
	ages := make(map[owner]time.Duration, len(owners))
	for some := range slices.Chunk(owners, 500) {
		tokens, err := oldestTokens(ctx, client, some)
		if err != nil {
			return nil, err
		}
		for i, o := range some {
			if at := issuedAt(tokens[i]); at != nil {
				ages[o] = time.Since(*at)
			}
		}
	}
	owners = slices.DeleteFunc(owners, func(o owner) bool { return wanted.olderThan > 0 && ages[o] <= wanted.olderThan })
	if wanted.oldest {
		slices.SortStableFunc(owners, func(a, b owner) int { return cmp.Compare(ages[b], ages[a]) })
	}
	return owners, nil
}

// oldestTokens reads only tokens, in one round trip; 0 where there is none, or none that can be read.
func oldestTokens(ctx context.Context, client redis.UniversalClient, owners []owner) ([]int64, error) {
	pipe := client.Pipeline()
	values := make([]redis.Cmder, len(owners))
	for i, o := range owners {
		if o.kind == semaphoreKind {
			values[i] = pipe.ZRange(ctx, o.key, 0, -1)
		} else {
			values[i] = pipe.Get(ctx, o.key)
		}
	}
	_, _ = pipe.Exec(ctx) // each has its own error
	tokens := make([]int64, len(owners))
	for i, value := range values {
		switch err := value.Err(); {
		case err == nil:
			tokens[i] = oldestToken(value)
		case !errors.Is(err, redis.Nil) && !redis.HasErrorPrefix(err, "WRONGTYPE"):
			return nil, err
		}
	}
	return tokens, nil
}

// oldestToken is the lowest of "<lease id>:<token>:<calls>".
func oldestToken(value redis.Cmder) (oldest int64) {
	var holders []string
	switch v := value.(type) {
	case *redis.StringCmd:
		holders = []string{v.Val()}
	case *redis.StringSliceCmd:
		holders = v.Val()
	}
	for _, h := range holders {
		_, rest, _ := strings.Cut(h, ":")
		number, _, _ := strings.Cut(rest, ":")
		token, err := strconv.ParseInt(number, 10, 64)
		if err == nil && (oldest == 0 || token < oldest) {
			oldest = token
		}
	}
	return oldest
}
