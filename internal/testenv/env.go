package testenv

import (
	"context"
	"errors"
	"sync"
	"syscall"
)

// Options for [Start].
type Options struct {
	// PrivateRedis starts a Redis whatever the environment names, for demos that flush it and call
	// [Env.StopRedis].
	PrivateRedis bool
}

// Env is what a demo or an example runs on. Both URLs can be handed to other processes.
type Env struct {
	PostgresURL string   // an empty database of its own, dropped by Close
	RedisURL    string   // shared with others if it came from the environment: use a namespace
	Notes       []string // what was found or started, one sentence each, for the user to read

	private *redisNode // nil if the Redis is that of the environment
	close   func() error
}

// Start finds or starts a Postgres and a Redis. They end with Close or with this program, however
// it ends; cancelling ctx stops the search but not what has been started. On error nothing is left
// running.
func Start(ctx context.Context, opts Options) (*Env, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return start(ctx, thisHost(), opts)
}

func start(ctx context.Context, h host, opts Options) (*Env, error) {
	// Before anything is started, so that the error names both servers when both are missing.
	_, _, noPostgres := postgresService.locate(ctx, h, false)
	_, _, noRedis := redisService.locate(ctx, h, opts.PrivateRedis)
	if err := errors.Join(noPostgres, noRedis); err != nil {
		return nil, err
	}
	postgres, err := obtainPostgres(ctx, h)
	if err != nil {
		return nil, err
	}
	redis, err := obtainRedis(ctx, h, opts.PrivateRedis)
	if err != nil {
		return nil, errors.Join(err, postgres.stop())
	}
	database := "fencedb_demo_" + random()
	env := &Env{RedisURL: redis.url, Notes: []string{postgres.source, redis.source}, private: redis.node}
	env.close = sync.OnceValue(func() error {
		return errors.Join(postgres.dropDatabase(database), postgres.stop(), redis.stop())
	})
	if env.PostgresURL, err = postgres.createDatabase(ctx, database, ""); err != nil {
		return nil, errors.Join(err, env.Close())
	}
	// Main closes what the examples of a package leave open. Until then this keeps the pipes to the
	// supervisors from being garbage collected, which would end the servers of a program that only
	// remembered their addresses.
	atEnd(env.Close)
	return env, nil
}

// StopRedis ends the Redis of [Options].PrivateRedis, which keeps nothing on disk. One call of this
// and StartRedis at a time, and none after Close.
func (e *Env) StopRedis() error { return e.private.end(syscall.SIGTERM) }

// StartRedis starts it again, on its port, and returns once it answers.
func (e *Env) StartRedis(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return e.private.start(ctx)
}

// Close stops what was started and drops the database. Calling it again does nothing.
func (e *Env) Close() error { return e.close() }
