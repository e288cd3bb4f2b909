package worker

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/fencedb/fencedb/observe/feed"
)

// servers are a worker's own connections.
type servers struct {
	redis      *redis.Client
	feed       *feed.Feed
	db         *pgxpool.Pool
	beforeNext breakpoint // in the driver
}

func (s *servers) connect(ctx context.Context, cfg Config) error {
	options, err := redis.ParseURL(cfg.RedisURL)
	if err != nil {
		return err
	}
	options.ClientName = clientName(cfg.Name)
	// An extension of some hosted Redis that others refuse, loudly.
	options.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	s.redis = redis.NewClient(options)
	s.feed = feed.New(s.redis, feed.Worker(cfg.Name))

	pool, err := pgxpool.ParseConfig(cfg.PostgresURL)
	if err != nil {
		return err
	}
	pool.ConnConfig.RuntimeParams["application_name"] = clientName(cfg.Name)
	pool.ConnConfig.Tracer = &s.beforeNext
	if s.db, err = pgxpool.NewWithConfig(ctx, pool); err != nil {
		return err
	}
	return s.db.Ping(ctx)
}

// clientName shows in Redis's CLIENT LIST and in pg_stat_activity.
func clientName(worker string) string { return "booking-" + worker }

func (s *servers) disconnect() {
	s.db.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = s.feed.Close(ctx) // what is not published in time, nobody waits for
	_ = s.redis.Close()
}

// breakpoint runs a function when pgx is about to send the next statement or batch. What the caller has checked before,
// it cannot check again.
type breakpoint struct {
	armed atomic.Pointer[func()]
}

func (b *breakpoint) arm(f func()) { b.armed.Store(&f) }

func (b *breakpoint) reached() {
	if f := b.armed.Swap(nil); f != nil {
		(*f)()
	}
}

// TraceQueryStart implements [pgx.QueryTracer].
func (b *breakpoint) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	b.reached()
	return ctx
}

// TraceBatchStart implements [pgx.BatchTracer].
func (b *breakpoint) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	b.reached()
	return ctx
}

// TraceQueryEnd implements [pgx.QueryTracer].
func (*breakpoint) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchQuery implements [pgx.BatchTracer].
func (*breakpoint) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd implements [pgx.BatchTracer].
func (*breakpoint) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}
