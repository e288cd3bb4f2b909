// Command booking is a restaurant's table service over HTTP. See README.md.
//
//	booking            # serves until it is interrupted
//	booking migrate    # brings its database up, as the owner of the database; the service needs no more than to use it
//
// It starts whether or not its stores answer, and migrates nothing itself: GET /readyz says what is
// missing.
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
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

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
	switch {
	case len(args) > 1 || len(args) == 1 && args[0] != "migrate":
		return fmt.Errorf("unknown argument %q; there is migrate, and the settings are variables, such as %s",
			args[len(args)-1], addrVar)
	case err != nil:
		return err
	case len(args) == 1:
		return migrate(ctx, s)
	}
	anyCard := func(context.Context, string) error { return nil } // where a restaurant would call its bank
	return serve(ctx, config{settings: s, CheckCard: anyCard, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
}

// The variables of the environment that the settings are read from, each with its default. The two
// URLs have none.
const (
	postgresVar  = "FENCEDB_POSTGRES_URL" // postgres://user:password@host:5432/database
	redisVar     = "FENCEDB_REDIS_URL"    // redis://host:6379/0
	addrVar      = "BOOKING_ADDR"         // where to listen; 127.0.0.1:8080
	namespaceVar = "BOOKING_NAMESPACE"    // of the leases, where several environments share a Redis; booking
	ttlVar       = "BOOKING_TTL"          // of a lease; a table stays blocked for that long after a crash; 10s
)

type settings struct {
	Addr      string
	Postgres  *pgxpool.Config
	Redis     *redis.Options
	Namespace string
	TTL       time.Duration
	Wait      time.Duration // how long a request may wait for the lease on a table
	Shutdown  time.Duration // how long running requests may take when the service ends
}

// settingsFrom reads settings with a function such as os.Getenv. The error names every variable
// that is wrong. A wrong URL is not repeated in it, since it may hold a password.
func settingsFrom(getenv func(string) string) (s settings, err error) {
	const program = "booking" // shows in pg_stat_activity and in Redis's CLIENT LIST
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	if s.Postgres, err = pgxpool.ParseConfig(getenv(postgresVar)); err != nil || getenv(postgresVar) == "" {
		wrong("%s must be the URL of a database, such as postgres://user:password@host:5432/database", postgresVar)
	} else if params := s.Postgres.ConnConfig.RuntimeParams; params["application_name"] == "" {
		params["application_name"] = program
	}
	if s.Redis, err = redis.ParseURL(getenv(redisVar)); err != nil {
		wrong("%s must be the URL of a Redis, such as redis://user:password@host:6379/0", redisVar)
	} else {
		s.Redis.ClientName = cmp.Or(s.Redis.ClientName, lease.ClientName(program))
		// An extension of some hosted Redis. Others refuse it, and the client logs that.
		s.Redis.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	}
	s.Addr = cmp.Or(getenv(addrVar), "127.0.0.1:8080")
	s.Namespace = cmp.Or(getenv(namespaceVar), "booking")
	if s.TTL, err = time.ParseDuration(cmp.Or(getenv(ttlVar), "10s")); err != nil {
		wrong("%s: %w", ttlVar, err)
	}
	s.Wait, s.Shutdown = 2*time.Second, 15*time.Second
	return s, errors.Join(errs...)
}

func migrate(ctx context.Context, s settings) error {
	db := stdlib.OpenDB(*s.Postgres.ConnConfig)
	return errors.Join(booking.Migrate(ctx, db), db.Close())
}

// config is what serve runs with.
type config struct {
	settings
	CheckCard booking.CardCheck
	Log       *slog.Logger // of requests, and of leases and writes with the ID of their request
}

// undoTime bounds what requests that were cancelled still do: roll back, and release.
const undoTime = 5 * time.Second

// serve runs the service until ctx ends. Then it takes no more requests, and those that are running
// may end within settings.Shutdown; what is left is cancelled, which undoes its work and gives its
// lease back. Nil means that all of them could end.
func serve(ctx context.Context, cfg config) error {
	pool, err := pgxpool.NewWithConfig(ctx, cfg.Postgres)
	if err != nil {
		return err
	}
	defer pool.Close()
	client := redis.NewClient(cfg.Redis)
	defer client.Close()

	logs := fencelog.New(cfg.Log, fencelog.Config{
		Attrs: func(ctx context.Context) []slog.Attr { return []slog.Attr{slog.String("request_id", requestID(ctx))} },
	})
	metrics, registry := prom.New(prom.Config{}), prometheus.NewRegistry()
	registry.MustRegister(metrics)
	service, err := booking.New(client, booking.Config{
		Lease: lease.Config{
			TTL: cfg.TTL, Namespace: cfg.Namespace, Tracers: []lease.Tracer{logs, metrics}, Clock: fencedb.Clock(pool),
		},
		Wait:      cfg.Wait,
		Store:     booking.NewPostgres(pool, logs, metrics),
		CheckCard: cfg.CheckCard,
	})
	if err != nil {
		return fmt.Errorf("%s or %s: %w", ttlVar, namespaceVar, err)
	}
	probe, err := readiness(service, pool, cfg.Log)
	if err != nil {
		return err
	}
	requestTime := cfg.Wait + 10*time.Second // the wait for the lease, and then the card check and the write
	exported := promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	routes := &api{Desk: service, Ready: probe, Metrics: exported, Timeout: requestTime, Log: cfg.Log}
	const readTime = 5 * time.Second
	server := &http.Server{ // with bounds on what a client can make us wait for, and keep
		Handler:        routes.handler(),
		ReadTimeout:    readTime,
		WriteTimeout:   readTime + requestTime + 5*time.Second, // since the header was read, with the answer
		IdleTimeout:    time.Minute,
		MaxHeaderBytes: 16 << 10,
		ErrorLog:       slog.NewLogLogger(cfg.Log.Handler(), slog.LevelWarn),
	}
	listener, err := net.Listen("tcp", cfg.Addr)
	if err != nil {
		return fmt.Errorf("%s: %w", addrVar, err)
	}
	cfg.Log.Info("listening", "url", "http://"+listener.Addr().String())
	defer context.AfterFunc(ctx, func() { cfg.Log.Info("stopping", "within", cfg.Shutdown) })()
	served := serveUntil(ctx, server, listener, cfg.Shutdown)
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	return errors.Join(served, service.Leases().Close(ending)) // so that no table stays blocked
}

func serveUntil(ctx context.Context, s *http.Server, listener net.Listener, grace time.Duration) error {
	// Requests do not end with ctx, but after grace.
	work, cancelWork := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancelWork(nil)
	s.BaseContext = func(net.Listener) context.Context { return work }
	failed := make(chan error, 1)
	go func() { failed <- s.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	defer time.AfterFunc(grace, func() {
		cancelWork(fmt.Errorf("%w: requests took longer than %v", context.Canceled, grace))
	}).Stop()
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace+undoTime)
	defer cancel()
	return errors.Join(s.Shutdown(ending), context.Cause(work))
}

// readiness answers whether tables can be booked now: Redis gives leases, Postgres takes fenced
// writes, and the bookings are there.
func readiness(service *booking.Service, pool *pgxpool.Pool, log *slog.Logger) (http.Handler, error) {
	bookings := ready.Check{Name: "bookings", Run: func(ctx context.Context) error {
		if _, err := service.List(ctx, 1, time.Now()); err != nil {
			return fmt.Errorf("the bookings cannot be read; was this program run with the argument migrate? %w", err)
		}
		return nil
	}}
	return ready.New(ready.Config{
		Checks: []ready.Check{ready.Leases(service.Leases()), ready.Fences(stdlib.OpenDBFromPool(pool)), bookings},
		Failed: func(name string, err error) { log.Warn("not ready", "check", name, "error", err) },
	})
}
