package worker

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/fencedb/fencedb/lease"
)

// Servers are where it happens.
type Servers struct {
	PostgresURL string // an empty database
	RedisURL    string
	Namespace   string // of the leases
}

// View is what a worker, or whoever directs workers, sees of both servers.
type View struct {
	DB     *pgxpool.Pool
	Redis  *redis.Client
	Leases *lease.Issuer
}

// Connect connects to both servers, under a name that they show.
func (s Servers) Connect(ctx context.Context, name string, ttl time.Duration, change ...func(*pgxpool.Config)) (*View, error) {
	client, err := Redis(s.RedisURL, name)
	if err != nil {
		return nil, err
	}
	v := &View{Redis: client}
	config, err := pgxpool.ParseConfig(s.PostgresURL)
	if err == nil {
		config.ConnConfig.RuntimeParams["application_name"] = name
		for _, f := range change {
			f(config)
		}
		v.DB, err = pgxpool.NewWithConfig(ctx, config)
	}
	if err == nil {
		v.Leases, err = lease.New(client, lease.Config{TTL: ttl, Namespace: s.Namespace})
	}
	if err == nil {
		err = errors.Join(v.DB.Ping(ctx), client.Ping(ctx).Err())
	}
	if err != nil {
		v.Close()
		return nil, err
	}
	return v, nil
}

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

// Migrate brings the database up.
func (v *View) Migrate(ctx context.Context, migrate func(context.Context, *sql.DB) error) error {
	db := stdlib.OpenDBFromPool(v.DB)
	return errors.Join(migrate(ctx, db), db.Close())
}

// Close closes the connections.
func (v *View) Close() {
	if v.DB != nil {
		v.DB.Close()
	}
	_ = v.Redis.Close()
}
