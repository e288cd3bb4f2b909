// Command inventory is a shop in a flash sale, over HTTP. See README.md. It serves until it is
// interrupted.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"

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
		return errors.New(postgresVar + " must be the URL of a database, such as postgres://user:password@host:5432/database")
	}
	defer db.Close()
	options, err := redis.ParseURL(os.Getenv(redisVar))
	if err != nil {
		return errors.New(redisVar + " must be the URL of a Redis, such as redis://user:password@host:6379/0")
	}
	options.ClientName = lease.ClientName("inventory")
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
	plain := stdlib.OpenDBFromPool(db)
	probe, err := ready.New(ready.Config{
		Checks: []ready.Check{ready.Leases(leases), ready.Fences(plain)},
		Failed: func(name string, err error) { log.Warn("not ready", "check", name, "error", err) },
	})
	s := shop.New(leases, fencedb.With(db, fencedb.Trace(metrics)), bank{}, keep, turn)
	if err := errors.Join(err, shop.Migrate(ctx, plain), s.Stock(ctx, goods)); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", cmp.Or(os.Getenv(addrVar), "127.0.0.1:8090"))
	if err != nil {
		return fmt.Errorf("%s: %w", addrVar, err)
	}
	mux := routes(s, log)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.Handle("GET /readyz", probe)
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	sweeping, stop := context.WithCancel(ctx)
	var sweeper sync.WaitGroup
	sweeper.Go(func() { sweep(sweeping, s, log) })
	sold := sell(ctx, listener, mux, log)
	stop()
	sweeper.Wait()
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTime)
	defer cancel()
	return errors.Join(sold, leases.Close(ending)) // so that the next who starts need not wait for leases to expire
}

var goods = []shop.Level{
	{SKU: "sneaker", Start: 100, Cents: 8990},
	{SKU: "t-shirt", Start: 500, Cents: 1990},
	{SKU: "poster", Start: 3, Cents: 990},
}

// bank stands for a payment provider, which takes its time.
type bank struct{}

func (bank) Charge(ctx context.Context, _ uuid.UUID, _ int64) error {
	select {
	case <-time.After(300 * time.Millisecond):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (bank) Refund(context.Context, uuid.UUID) error { return nil }

func sweep(ctx context.Context, s *shop.Shop, log *slog.Logger) {
	for again := time.NewTicker(sweepEvery); ctx.Err() == nil; {
		if err := s.Sweep(ctx); err != nil && ctx.Err() == nil {
			log.Error("sweep", "error", err)
		}
		select {
		case <-again.C:
		case <-ctx.Done():
		}
	}
}

// sell answers requests until ctx is done and what was under way has ended.
func sell(ctx context.Context, listener net.Listener, handler http.Handler, log *slog.Logger) error {
	server := &http.Server{Handler: handler, ReadTimeout: readTime,
		WriteTimeout: requestTime + 3*readTime, // the outcome of a lost COMMIT is asked for after requestTime
		ErrorLog:     slog.NewLogLogger(log.Handler(), slog.LevelWarn)}
	ended := make(chan error, 1)
	context.AfterFunc(ctx, func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTime+2*readTime)
		defer cancel()
		ended <- server.Shutdown(ending)
	})
	log.Info("selling", "url", "http://"+listener.Addr().String())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-ended
}
