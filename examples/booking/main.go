// Command booking is a restaurant's table service over HTTP. See README.md.
//
//	booking            # serves until it is interrupted
//	booking migrate    # brings its database up, as the owner of the database; the service needs no more than to use it
//
// It starts whether or not its stores answer, and migrates nothing itself: GET /readyz says whether
// both are fit, and the fences migrated.
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
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/examples/booking/booking"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/observe/prom"
	"github.com/fencedb/fencedb/observe/ready"
	fencelog "github.com/fencedb/fencedb/observe/slog"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "booking:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	s, err := settingsFrom(os.Getenv)
	if err != nil {
		return err
	}
	switch strings.Join(args, " ") {
	case "migrate":
		db := stdlib.OpenDB(*s.Postgres.ConnConfig)
		return errors.Join(booking.Migrate(ctx, db), db.Close())
	case "":
		anyCard := func(context.Context, string) error { return nil } // where a restaurant would call its bank
		return serve(ctx, s, anyCard, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	}
	return fmt.Errorf("unknown arguments %q; there is migrate, and the settings are variables, such as %s", args, addrVar)
}

// The variables of the environment that the settings are read from, each with its default. The two
// URLs have none.
const (
	postgresVar  = "FENCEDB_POSTGRES_URL" // postgres://user:password@host:5432/database
	redisVar     = "FENCEDB_REDIS_URL"    // redis://host:6379/0
	addrVar      = "BOOKING_ADDR"         // where to listen; 127.0.0.1:8080
	namespaceVar = "BOOKING_NAMESPACE"    // of the leases, where several environments share a Redis; booking
)

type settings struct {
	Addr, Namespace string
	Postgres        *pgxpool.Config
	Redis           *redis.Options
	Wait            time.Duration // how long a request may wait for the lease on a table
}

// settingsFrom reads settings with a function such as os.Getenv. The error names the variable that
// is wrong. A wrong URL is not repeated in it, since it may hold a password.
func settingsFrom(getenv func(string) string) (s settings, err error) {
	s.Addr, s.Namespace, s.Wait = cmp.Or(getenv(addrVar), "127.0.0.1:8080"), cmp.Or(getenv(namespaceVar), "booking"), 2*time.Second
	if s.Postgres, err = pgxpool.ParseConfig(getenv(postgresVar)); err != nil || getenv(postgresVar) == "" {
		return s, errors.New(postgresVar + " must be the URL of a database, such as postgres://user:password@host:5432/database")
	}
	if s.Redis, err = redis.ParseURL(getenv(redisVar)); err != nil {
		return s, errors.New(redisVar + " must be the URL of a Redis, such as redis://user:password@host:6379/0")
	}
	s.Redis.ClientName = cmp.Or(s.Redis.ClientName, lease.ClientName("booking")) // in CLIENT LIST
	return s, nil
}

const (
	ttl      = 10 * time.Second // of a lease; after a crash a table stays blocked for that long
	workTime = 10 * time.Second // of a request: for the card check and the write, behind the wait
	readTime = 5 * time.Second  // for a request to arrive, and for an answer to leave
)

// serve runs the service until ctx ends. Then it takes no more requests, and those that are running
// may end, which takes no longer than the time they are given. Nil means that all of them have.
func serve(ctx context.Context, s settings, check booking.CardCheck, log *slog.Logger) error {
	pool, err := pgxpool.NewWithConfig(ctx, s.Postgres)
	if err != nil {
		return err
	}
	defer pool.Close()
	client := redis.NewClient(s.Redis)
	defer client.Close()

	logs := fencelog.New(log, fencelog.Config{ // of leases and writes, with the ID of their request
		Attrs: func(ctx context.Context) []slog.Attr { return []slog.Attr{slog.String("request_id", requestID(ctx))} },
	})
	metrics, registry := prom.New(prom.Config{}), prometheus.NewRegistry()
	registry.MustRegister(metrics)
	leases, err := lease.New(client, lease.Config{
		TTL: ttl, Namespace: s.Namespace, Tracers: []lease.Tracer{logs, metrics},
	})
	if err != nil {
		return fmt.Errorf("%s: %w", namespaceVar, err)
	}
	service := booking.New(leases.With(lease.WaitAtMost(s.Wait)), fencedb.With(pool, fencedb.Trace(logs, metrics)), check)
	probe, err := ready.New(ready.Config{
		Checks:    []ready.Check{ready.Leases(leases), ready.Fences(stdlib.OpenDBFromPool(pool))},
		OnFailure: func(name string, err error) { log.Warn("not ready", "check", name, "error", err) },
	})
	if err != nil {
		return err
	}
	api := &api{Desk: service, Timeout: s.Wait + workTime, Log: log}
	routes := api.routes()
	routes.Handle("GET /readyz", probe)
	routes.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	// The process runs. Whether it can work is for /readyz to say: a restart does not bring a store
	// back.
	routes.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	listener, err := net.Listen("tcp", s.Addr)
	if err != nil {
		return fmt.Errorf("%s: %w", addrVar, err)
	}
	log.Info("listening", "url", "http://"+listener.Addr().String())
	server := &http.Server{ // with bounds on what a client can make us wait for, and keep
		Handler: routes, ReadTimeout: readTime, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		WriteTimeout: readTime + api.Timeout + readTime, // since the header was read, with the answer
		ErrorLog:     slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	ended := make(chan error, 1)
	context.AfterFunc(ctx, func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), server.WriteTimeout)
		defer cancel()
		ended <- server.Shutdown(ending)
	})
	if err = server.Serve(listener); errors.Is(err, http.ErrServerClosed) {
		err = <-ended
	}
	return errors.Join(err, leases.Close(context.WithoutCancel(ctx))) // so that no table stays blocked
}
