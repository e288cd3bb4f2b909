package worker

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/observe/feed"
)

// servers are a worker's own connections.
type servers struct {
	redis      *redis.Client
	feed       *feed.Feed
	db         *pgxpool.Pool
	beforeNext faulty.Breakpoint // in the driver
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
