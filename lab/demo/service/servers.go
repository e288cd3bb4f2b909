package service

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
	Servers
	DB     *pgxpool.Pool
	Redis  *redis.Client
	Leases *lease.Issuer
}

// Connect connects to both servers, under a name that they show.
func (s Servers) Connect(ctx context.Context, name string, ttl time.Duration,
	change ...func(*pgxpool.Config)) (*View, error) {
	client, err := Redis(s.RedisURL, name)
	if err != nil {
		return nil, err
	}
	v := &View{Servers: s, Redis: client}
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

// Holding is what Redis holds about a resource, and when the lease there ends, by its clock since
// 1970. While Redis does not answer it fails at once.
func (v *View) Holding(ctx context.Context, resource string) (found lease.Inspection, ends time.Duration, err error) {
	owner := lease.Key{Namespace: v.Namespace, Resource: resource, Field: "owner"}
	if ends, err = v.Redis.PExpireTime(ctx, owner.String()).Result(); err == nil { // Inspect would wait for Redis
		found, err = v.Leases.Inspect(ctx, resource)
	}
	return found, ends, err
}

// Close closes the connections.
func (v *View) Close() {
	if v.DB != nil {
		v.DB.Close()
	}
	_ = v.Redis.Close()
}
