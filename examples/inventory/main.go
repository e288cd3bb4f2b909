// Command inventory is a shop in a flash sale, over HTTP. See README.md. It serves until it is
// interrupted.
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
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/fencedb/fencedb/examples/inventory/shop"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/observe/prom"
	"github.com/fencedb/fencedb/observe/ready"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := serve(ctx, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "inventory:", err)
		os.Exit(1)
	}
}

// The variables of the environment that the settings are read from, each with its default. The two
// URLs have none.
const (
	addrVar     = "INVENTORY_ADDR"       // where to listen; 127.0.0.1:8090
	postgresVar = "FENCEDB_POSTGRES_URL" // postgres://user:password@host:5432/database
	redisVar    = "FENCEDB_REDIS_URL"    // redis://host:6379/0
	spaceVar    = "INVENTORY_NAMESPACE"  // of the leases, if several share the Redis; inventory
	ttlVar      = "INVENTORY_TTL"        // of the leases; 5s
)

const (
	keep        = 2 * time.Minute // how long a reservation lasts
	turn        = 3 * time.Second // how long a request waits for its turn
	sweepEvery  = time.Second
	readTime    = 5 * time.Second  // for a request to arrive
	requestTime = 30 * time.Second // for all of it, with the bank
)

// serve sells until ctx is done, and lets requests under way finish.
func serve(ctx context.Context, log *slog.Logger) error {
	ttl, err := time.ParseDuration(cmp.Or(os.Getenv(ttlVar), "5s"))
	if err != nil {
		return fmt.Errorf("%s: %w", ttlVar, err)
	}
	// A wrong URL is not repeated in the error: it may hold a password.
	db, err := pgxpool.New(ctx, os.Getenv(postgresVar))
	if err != nil || os.Getenv(postgresVar) == "" {
		return fmt.Errorf("%s must be the URL of a database, such as postgres://user:password@host:5432/database", postgresVar)
	}
	defer db.Close()
	options, err := redis.ParseURL(os.Getenv(redisVar))
	if err != nil {
		return fmt.Errorf("%s must be the URL of a Redis, such as redis://user:password@host:6379/0", redisVar)
	}
	options.ClientName = lease.ClientName("inventory")
	// An extension of some hosted Redis. Others refuse it, and the client logs that.
	options.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	client := redis.NewClient(options)
	defer client.Close()
	metrics, registry := prom.New(prom.Config{}), prometheus.NewRegistry()
	registry.MustRegister(metrics)
	leases, err := lease.New(client, lease.Config{
		TTL: ttl, Namespace: cmp.Or(os.Getenv(spaceVar), "inventory"), Tracers: []lease.Tracer{metrics},
	})
	if err != nil {
		return fmt.Errorf("%s, %s: %w", ttlVar, spaceVar, err)
	}
	s, err := openShop(ctx, db, leases, metrics)
	if err != nil {
		return err
	}
	probe, err := ready.New(ready.Config{
		Checks: []ready.Check{ready.Leases(leases), ready.Fences(stdlib.OpenDBFromPool(db))},
		Failed: func(name string, err error) { log.Warn("not ready", "check", name, "error", err) },
	})
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", cmp.Or(os.Getenv(addrVar), "127.0.0.1:8090"))
	if err != nil {
		return fmt.Errorf("%s: %w", addrVar, err)
	}
	handler := newAPI(s, probe, promhttp.HandlerFor(registry, promhttp.HandlerOpts{}), log)
	sold := sell(ctx, listener, s, handler, log)
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTime)
	defer cancel()
	return errors.Join(sold, leases.Close(ending)) // so that the next who starts need not wait for leases to expire
}

// openShop opens the shop, with something to sell.
func openShop(ctx context.Context, db *pgxpool.Pool, leases *lease.Issuer,
	tracers ...fencedb.Tracer) (*shop.Shop, error) {
	bank := shop.NewPretendBank(db, func() time.Duration { return time.Duration(100+rand.IntN(400)) * time.Millisecond })
	plain := stdlib.OpenDBFromPool(db)
	if err := errors.Join(shop.Migrate(ctx, plain), plain.Close()); err != nil {
		return nil, err
	}
	s, err := shop.New(shop.Config{DB: db, Leases: leases, Bank: bank, Keep: keep, Wait: turn, Tracers: tracers})
	if err != nil {
		return nil, err
	}
	return s, s.Stock(ctx, []shop.Level{
		{SKU: "sneaker", Start: 100, Cents: 8990},
		{SKU: "t-shirt", Start: 500, Cents: 1990},
		{SKU: "poster", Start: 3, Cents: 990},
	})
}

// sell answers requests and sweeps, until ctx is done and what was under way has ended.
func sell(ctx context.Context, listener net.Listener, s *shop.Shop, handler http.Handler, log *slog.Logger) error {
	var sweeper sync.WaitGroup
	defer sweeper.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	sweeper.Go(func() {
		for again := time.NewTicker(sweepEvery); ctx.Err() == nil; {
			if err := s.Sweep(ctx); err != nil && ctx.Err() == nil {
				log.Error("sweep", "error", err)
			}
			select {
			case <-again.C:
			case <-ctx.Done():
			}
		}
	})

	server := &http.Server{Handler: handler, ReadTimeout: readTime,
		WriteTimeout: requestTime + 3*readTime, // the outcome of a lost COMMIT is asked for after requestTime
		ErrorLog:     slog.NewLogLogger(log.Handler(), slog.LevelWarn)}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	log.Info("selling", "url", "http://"+listener.Addr().String())
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	log.Info("closing")
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTime+2*readTime)
	defer cancel()
	return server.Shutdown(ending)
}
