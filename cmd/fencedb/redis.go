package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/lease"
)

// openRedis does not connect yet.
func openRedis(cmd *cli.Command) (redis.UniversalClient, error) {
	address := cmd.String(flagRedis)
	if address == "" {
		return nil, usage("no Redis: set --%s or FENCEDB_REDIS_URL", flagRedis)
	}
	client, err := newRedis(address)
	if err != nil {
		return nil, usage("--%s: %w; it takes\n%s", flagRedis, withoutURL(err), redisForms)
	}
	return client, nil
}

// redisClient connects, so that a server that is away is reported as that and before anything is changed.
func redisClient(ctx context.Context, cmd *cli.Command) (redis.UniversalClient, error) {
	client, err := openRedis(cmd)
	if err != nil {
		return nil, err
	}
	if err := client.Ping(ctx).Err(); err != nil {
		_ = client.Close()
		return nil, fmt.Errorf("redis: %w", err)
	}
	return client, nil
}

// withoutURL keeps the password out of the message.
func withoutURL(err error) error {
	if broken := new(url.Error); errors.As(err, &broken) {
		return broken.Err
	}
	return err
}

// fenceRetention is how long a token that revoke has issued is remembered. Longer than the programs' own setting does no harm;
// shorter would take from theirs.
const fenceRetention = 30 * 24 * time.Hour

// issuer never acquires; its TTL is only required.
func issuer(client redis.UniversalClient, n names, tracers ...lease.Tracer) (*lease.Issuer, error) {
	return lease.New(client, lease.Config{
		TTL:            time.Minute,
		Namespace:      n.namespace,
		HashResources:  n.hashed,
		FenceRetention: fenceRetention,
		Tracers:        tracers,
	})
}

// issuedAt reads the time out of a token: tokens are Redis's clock in microseconds, unless the last one was ahead of the clock.
func issuedAt(token int64) *time.Time {
	at := time.UnixMicro(token).UTC()
	if at.Year() < 2020 || at.After(time.Now().Add(time.Hour)) {
		return nil // counted on from a number that somebody chose
	}
	return &at
}
