package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/fencedb/fencedb/examples/inventory/api"
	"github.com/fencedb/fencedb/examples/inventory/bank"
	"github.com/fencedb/fencedb/examples/inventory/shop"
	"github.com/fencedb/fencedb/examples/inventory/store"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/observe/ready"
)

// The settings of the service, each a variable of the environment.
const (
	addrVar     = "INVENTORY_ADDR"         // where to listen; 127.0.0.1:8090
	postgresVar = "INVENTORY_POSTGRES_URL" // without it a Postgres is found or started, and what was sold is forgotten at the end
	redisVar    = "INVENTORY_REDIS_URL"    // without it a Redis is
	spaceVar    = "INVENTORY_NAMESPACE"    // of the leases, if several share the Redis; inventory
	ttlVar      = "INVENTORY_TTL"          // of the leases; 5s
	keepVar     = "INVENTORY_KEEP"         // how long a reservation lasts; 2m
)

const (
	turn        = 3 * time.Second // how long a request waits for its turn
	sweepEvery  = time.Second
	readTime    = 5 * time.Second  // for a request to arrive
	requestTime = 30 * time.Second // for all of it, with the bank
)

// serve sells until ctx is done, and lets requests under way finish.
func serve(ctx context.Context, log *slog.Logger) (err error) {
	ttl, ttlErr := duration(ttlVar, "5s")
	keep, keepErr := duration(keepVar, "2m")
	if err := errors.Join(ttlErr, keepErr); err != nil {
		return err
	}
	postgres, redis, done, err := servers(ctx, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	db, err := pgxpool.New(ctx, postgres)
	if err != nil {
		return fmt.Errorf("%s: %w", postgresVar, err)
	}
	defer db.Close()
	client, err := newClient(redis)
	if err != nil {
		return err
	}
	defer client.Close()
	leases, err := lease.New(client, lease.Config{TTL: ttl, Namespace: cmp.Or(os.Getenv(spaceVar), "inventory")})
	if err != nil {
		return fmt.Errorf("%s, %s: %w", ttlVar, spaceVar, err)
	}
	s, err := openShop(ctx, db, leases, keep)
	if err != nil {
		return err
	}
	return errors.Join(listen(ctx, s, log), closeLeases(ctx, leases))
}

// closeLeases gives back what is held still, so that the next who starts need not wait for it to run out.
func closeLeases(ctx context.Context, leases *lease.Issuer) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTime)
	defer cancel()
	return leases.Close(ctx)
}

// listen answers where the settings say.
func listen(ctx context.Context, s *shop.Shop, log *slog.Logger) error {
	handler, err := newHandler(s, log)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", cmp.Or(os.Getenv(addrVar), "127.0.0.1:8090"))
	if err != nil {
		return fmt.Errorf("%s: %w", addrVar, err)
	}
	return sell(ctx, listener, s, handler, log)
}

func duration(name, otherwise string) (time.Duration, error) {
	d, err := time.ParseDuration(cmp.Or(os.Getenv(name), otherwise))
	if err != nil || d < time.Millisecond {
		return 0, fmt.Errorf("%s is %q; it must be a duration of at least 1ms, such as %s", name, os.Getenv(name), otherwise)
	}
	return d, nil
}

// servers are those of the settings, or such as are found or started.
func servers(ctx context.Context, log *slog.Logger) (postgresURL, redisURL string, done func() error, err error) {
	postgresURL, redisURL = os.Getenv(postgresVar), os.Getenv(redisVar)
	if postgresURL != "" && redisURL != "" {
		return postgresURL, redisURL, func() error { return nil }, nil
	}
	env, err := testenv.Start(ctx, testenv.Options{AllowMiniredis: true})
	if err != nil {
		return "", "", nil, err
	}
	for _, note := range env.Notes {
		log.Info(note)
	}
	return cmp.Or(postgresURL, env.PostgresURL), cmp.Or(redisURL, env.RedisURL), env.Close, nil
}

func newClient(url string) (*redis.Client, error) {
	options, err := redis.ParseURL(url)
	if err != nil { // which repeats the URL, and with it a password
		return nil, fmt.Errorf("%s must be the URL of a Redis, such as redis://user:password@host:6379/0", redisVar)
	}
	options.ClientName = lease.ClientName("inventory")
	// An extension of some hosted Redis that others refuse, loudly.
	options.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return redis.NewClient(options), nil
}

// openShop opens the shop, with something to sell.
func openShop(ctx context.Context, db *pgxpool.Pool, leases *lease.Issuer, keep time.Duration) (*shop.Shop, error) {
	provider := bank.New(db, func() time.Duration { return time.Duration(100+rand.IntN(400)) * time.Millisecond })
	plain := stdlib.OpenDBFromPool(db)
	if err := errors.Join(store.Migrate(ctx, plain), plain.Close(), provider.Open(ctx)); err != nil {
		return nil, err
	}
	s, err := shop.New(shop.Config{DB: db, Leases: leases, Bank: provider, Keep: keep, Wait: turn})
	if err != nil {
		return nil, err
	}
	return s, s.Stock(ctx, []store.Level{
		{SKU: "sneaker", Start: 100, Cents: 8990},
		{SKU: "t-shirt", Start: 500, Cents: 1990},
		{SKU: "poster", Start: 3, Cents: 990},
	})
}

func newHandler(s *shop.Shop, log *slog.Logger) (http.Handler, error) {
	probe, err := ready.New(ready.Config{
		Checks: []ready.Check{ready.Leases(s.Leases), ready.Fences(stdlib.OpenDBFromPool(s.DB))},
		Failed: func(name string, err error) { log.Warn("not ready", "check", name, "error", err) },
	})
	if err != nil {
		return nil, err
	}
	return http.TimeoutHandler(api.New(s, probe, log), requestTime, "this takes too long\n"), nil
}

// sell answers requests and sweeps, until ctx is done and what was under way has ended.
func sell(ctx context.Context, listener net.Listener, s *shop.Shop, handler http.Handler, log *slog.Logger) error {
	var sweeper sync.WaitGroup
	defer sweeper.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	sweeper.Go(func() {
		s.SweepEvery(ctx, sweepEvery, func(err error) { log.Error("sweep", "error", err) })
	})

	server := &http.Server{Handler: handler, ReadTimeout: readTime, WriteTimeout: requestTime + readTime,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn)}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	log.Info("selling", "url", "http://"+listener.Addr().String())
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	log.Info("closing")
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTime)
	defer cancel()
	return server.Shutdown(ending)
}
