package worker

import (
	"context"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/fencedb/fencedb/internal/faulty"
)

// servers are a worker's own connections, with an ear on each.
type servers struct {
	db         *pgxpool.Pool
	beforeNext faulty.Breakpoint // in the driver of db
	redis      *redis.Client
	answers    answers // of the scripts that redis ran
}

func (s *servers) connect(ctx context.Context, cfg Config) error {
	if err := s.connectRedis(ctx, cfg); err != nil {
		return err
	}
	pool, err := pgxpool.ParseConfig(cfg.PostgresURL)
	if err != nil {
		return err
	}
	pool.ConnConfig.RuntimeParams["application_name"] = cfg.Name
	pool.ConnConfig.Tracer = &s.beforeNext
	if s.db, err = pgxpool.NewWithConfig(ctx, pool); err != nil {
		return err
	}
	return s.db.Ping(ctx)
}

func (s *servers) connectRedis(ctx context.Context, cfg Config) error {
	options, err := redis.ParseURL(cfg.RedisURL)
	if err != nil {
		return err
	}
	options.ClientName = cfg.Name
	// An extension of some hosted Redis that others refuse, loudly.
	options.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	s.redis = redis.NewClient(options)
	s.redis.AddHook(&s.answers)
	return s.redis.Ping(ctx).Err()
}

func (s *servers) disconnect() {
	s.db.Close()
	_ = s.redis.Close()
}

// answers listens to what Redis answers to scripts.
type answers struct {
	word atomic.Value // string
}

// last is the first word of the last answer, which says what happened: granted, held, released, taken.
func (a *answers) last() string {
	word, _ := a.word.Load().(string)
	return word
}

// ProcessHook implements [redis.Hook].
func (a *answers) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if script, ok := cmd.(interface{ Slice() ([]any, error) }); ok {
			if reply, err := script.Slice(); err == nil && len(reply) > 0 {
				a.word.Store(reply[0])
			}
		}
		return err
	}
}

// ProcessPipelineHook implements [redis.Hook].
func (*answers) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// DialHook implements [redis.Hook].
func (*answers) DialHook(next redis.DialHook) redis.DialHook { return next }
