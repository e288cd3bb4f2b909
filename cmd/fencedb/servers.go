package main

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/lease"
)

// servers are both halves, connected.
type servers struct {
	client redis.UniversalClient
	names  names
	issuer *lease.Issuer
	pool   *pgxpool.Pool
}

// names are how the programs name things in Redis.
type names struct {
	namespace string
	hashed    bool
}

func namesOf(cmd *cli.Command) names {
	return names{cmd.String(flagNamespace), cmd.Bool(flagHashed)}
}

func (a *app) onServers(ctx context.Context, cmd *cli.Command, fn func(*servers) error) error {
	connecting, cancel, err := bounded(ctx, cmd)
	if err != nil {
		return err
	}
	defer cancel()
	client, err := redisClient(connecting, cmd)
	if err != nil {
		return err
	}
	defer client.Close()
	pool, err := postgres(connecting, cmd)
	if err != nil {
		return err
	}
	defer pool.Close()
	i, err := issuer(client, namesOf(cmd))
	if err != nil {
		return usage("%w", err)
	}
	return fn(&servers{client, namesOf(cmd), i, pool})
}
