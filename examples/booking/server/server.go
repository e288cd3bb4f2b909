// Package server runs the booking service: it opens what the service needs, listens, and ends in good order.
//
// It starts whether or not its stores answer, and migrates nothing: GET /readyz says what is missing. [Migrate] is for
// whoever deploys, as the owner of the database; the service itself needs no more than to use it.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/examples/booking/api"
	"github.com/fencedb/fencedb/examples/booking/booking"
	"github.com/fencedb/fencedb/examples/booking/store"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
	fencelog "github.com/fencedb/fencedb/observe/slog"
)

// Config is what Run runs with.
type Config struct {
	Settings
	CheckCard booking.CardCheck
	Log       *slog.Logger   // of requests, leases and writes; what belongs to a request carries its ID
	Listening func(net.Addr) // called when requests are taken; defaults to nothing
}

// Migrate brings the database of the settings up.
func Migrate(ctx context.Context, s Settings) error {
	db := stdlib.OpenDB(*s.Postgres.ConnConfig)
	return errors.Join(store.Migrate(ctx, db), db.Close())
}

// Run serves until ctx ends. Then it takes no more requests, and those that are running may end within Settings.Shutdown; what
// is left is cancelled, which undoes its work and gives its lease back. Nil means that all of them could end.
func Run(ctx context.Context, cfg Config) error {
	pool, err := pgxpool.NewWithConfig(ctx, cfg.Postgres)
	if err != nil {
		return err
	}
	defer pool.Close()
	client := redis.NewClient(cfg.Redis)
	defer client.Close()
	cfg.Log = slog.New(api.LogRequestID(cfg.Log.Handler()))

	handler, leases, err := newHandler(pool, client, cfg)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", cfg.Addr)
	if err != nil {
		return fmt.Errorf("%s: %w", AddrVar, err)
	}
	cfg.Log.Info("listening", "url", "http://"+listener.Addr().String())
	defer context.AfterFunc(ctx, func() { cfg.Log.Info("stopping", "within", cfg.Shutdown) })()
	if cfg.Listening != nil {
		cfg.Listening(listener.Addr())
	}
	return errors.Join(serve(ctx, newServer(handler, cfg), listener, cfg.Shutdown), closeLeases(ctx, leases))
}

// closeLeases waits until what requests have left behind is given back, so that no table stays blocked.
func closeLeases(ctx context.Context, leases *lease.Issuer) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	return leases.Close(ctx)
}

func newHandler(pool *pgxpool.Pool, client *redis.Client, cfg Config) (http.Handler, *lease.Issuer, error) {
	logs := fencelog.New(cfg.Log, fencelog.Config{})
	service, err := booking.New(client, booking.Config{
		Lease: lease.Config{
			TTL: cfg.TTL, Namespace: cfg.Namespace, Tracers: []lease.Tracer{logs}, Clock: fencedb.Clock(pool),
		},
		Wait:      cfg.Wait,
		Store:     store.New(pool, logs),
		CheckCard: cfg.CheckCard,
	})
	if err != nil {
		return nil, nil, fmt.Errorf("%s or %s: %w", TTLVar, NamespaceVar, err)
	}
	ready, err := readiness(service, stdlib.OpenDBFromPool(pool), cfg.Log)
	if err != nil {
		return nil, nil, err
	}
	return api.New(api.Config{Desk: service, Ready: ready, Timeout: cfg.requestTime(), Log: cfg.Log}), service.Leases(), nil
}

// requestTime bounds a request: the waiting for its turn, and what it may take from then on, with the card check in it.
func (c Config) requestTime() time.Duration { return c.Wait + 10*time.Second }

// newServer bounds what a client can make us wait for, and keep.
func newServer(handler http.Handler, cfg Config) *http.Server {
	const toRead = 5 * time.Second
	return &http.Server{
		Handler:        handler,
		ReadTimeout:    toRead,
		WriteTimeout:   toRead + cfg.requestTime() + 5*time.Second, // since the header was read; the last part is for the answer
		IdleTimeout:    time.Minute,
		MaxHeaderBytes: 16 << 10,
		ErrorLog:       slog.NewLogLogger(cfg.Log.Handler(), slog.LevelWarn),
	}
}

// undoTime bounds what requests that were cancelled still do: roll back, and release.
const undoTime = 5 * time.Second

func serve(ctx context.Context, s *http.Server, listener net.Listener, grace time.Duration) error {
	work, cancelWork := context.WithCancel(context.WithoutCancel(ctx)) // requests do not end with ctx, but after grace
	defer cancelWork()
	s.BaseContext = func(net.Listener) context.Context { return work }
	failed := make(chan error, 1)
	go func() { failed <- s.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	if shutdown(s, grace) == nil {
		return nil
	}
	cancelWork()
	if err := shutdown(s, undoTime); err != nil {
		return errors.Join(fmt.Errorf("requests were cut off: %w", err), s.Close())
	}
	return fmt.Errorf("requests were cancelled: they took longer than %v", grace)
}

func shutdown(s *http.Server, within time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	return s.Shutdown(ctx)
}
