package look

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/conn"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/term"
	"github.com/fencedb/fencedb/internal/protocol"
	"github.com/fencedb/fencedb/lease"
)

// Survey reads the names of all keys in Redis, once, and returns those of leases and semaphores
// that are wanted, of all namespaces and in both forms, each once, in no order; with an error those
// that were found until then.
func Survey(ctx context.Context, s *conn.Servers, wanted func(lease.Key) bool) ([]lease.Key, error) {
	var mu sync.Mutex
	var read atomic.Int64
	found, began := map[lease.Key]bool{}, time.Now() // SCAN may name a key twice
	scan := func(ctx context.Context, server redis.Cmdable) error {
		names := server.Scan(ctx, 0, "*:v1:{*", 1000).Iterator()
		for ; names.Next(ctx); read.Add(1) {
			k, ok := lease.ParseKey(names.Val())
			if ok && (k.Kind == protocol.LeaseKind || k.Kind == protocol.SemaphoreKind) && wanted(k) {
				mu.Lock()
				found[k] = true
				mu.Unlock()
			}
		}
		return names.Err()
	}
	var err error
	if cluster, ok := s.Client.(*redis.ClusterClient); ok {
		err = cluster.ForEachMaster(ctx, func(ctx context.Context, master *redis.Client) error { return scan(ctx, master) })
	} else {
		err = scan(ctx, s.Client)
	}
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		err = app.InShort(fmt.Sprintf("redis: SCAN was not done in %s: Redis is slow, or has many keys; until then it named %d of fencedb",
			term.Span(time.Since(began)), read.Load()), cmp.Or(err, ctx.Err()))
	case err != nil:
		err = fmt.Errorf("redis: scan: %w", err)
	}
	return slices.Collect(maps.Keys(found)), err
}

// IsCounter tells whether a key is the last token of a lease, and not of a trial, which lasts for
// seconds and guards nothing.
func IsCounter(k lease.Key) bool {
	return k.Field == "fence" && k.Kind == protocol.LeaseKind && !strings.HasPrefix(k.Resource, protocol.Trial)
}

// IsHashed tells whether Redis knows only the digest of the resource.
func IsHashed(k lease.Key) bool { return strings.HasPrefix(k.Resource, "sha256:") }

// Digest is what two keys of one resource have in common, whatever their forms are.
func Digest(k lease.Key) string {
	if IsHashed(k) {
		return k.Resource
	}
	return protocol.Digest(k.Resource)
}

// LastTokens are the tokens in the keys, in their order; 0 where it has gone, or is none.
func LastTokens(ctx context.Context, s *conn.Servers, keys []lease.Key) ([]int64, error) {
	var tokens []int64
	for batch := range slices.Chunk(keys, BatchSize) {
		answers := make([]*redis.StringCmd, len(batch))
		_, err := s.Client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for n, k := range batch {
				answers[n] = pipe.Get(ctx, k.String())
			}
			return nil
		})
		if err != nil && !errors.Is(err, redis.Nil) && !redis.HasErrorPrefix(err, "WRONGTYPE") {
			return nil, fmt.Errorf("redis: %w", err)
		}
		for _, answer := range answers {
			token, _ := answer.Int64()
			tokens = append(tokens, token)
		}
	}
	return tokens, nil
}

// BatchSize is how many keys or resources one request is about.
const BatchSize = 1000
