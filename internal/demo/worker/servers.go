package worker

import (
	"context"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Redis returns a client that shows under that name in CLIENT LIST.
func Redis(url, name string) (*redis.Client, error) {
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	options.ClientName = name
	// An extension of some hosted Redis. Others refuse it, and the client logs that.
	options.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return redis.NewClient(options), nil
}

// ClientName is how a booking worker shows in Redis's CLIENT LIST and in pg_stat_activity.
func ClientName(worker string) string { return "booking-" + worker }

// Postgres returns a pool that shows under that name in pg_stat_activity.
func Postgres(ctx context.Context, url, name string, change ...func(*pgxpool.Config)) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.ConnConfig.RuntimeParams["application_name"] = name
	for _, f := range change {
		f(config)
	}
	return pgxpool.NewWithConfig(ctx, config)
}

// answers remembers what Redis answers to scripts.
type answers struct {
	word atomic.Value // string
}

// last is the first word of the last answer, which says what happened: granted, held, released,
// taken.
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
