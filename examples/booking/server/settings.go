package server

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/fencedb/fencedb/lease"
)

// The variables that Settings are read from, each with its default. PostgresVar and RedisVar have none.
const (
	AddrVar      = "BOOKING_ADDR"         // where to listen; 127.0.0.1:8080
	PostgresVar  = "BOOKING_POSTGRES_URL" // postgres://user:password@host:5432/database
	RedisVar     = "BOOKING_REDIS_URL"    // redis://host:6379/0
	NamespaceVar = "BOOKING_NAMESPACE"    // of the leases, where several environments share a Redis; booking
	TTLVar       = "BOOKING_TTL"          // how long a lease lasts, and so how long a table stays blocked after a crash; 10s
	WaitVar      = "BOOKING_WAIT"         // how long a request may wait for another at the same table; 2s
	ShutdownVar  = "BOOKING_SHUTDOWN"     // how long running requests may take when the service ends; 15s
)

// Settings are what whoever runs the service decides.
type Settings struct {
	Addr      string
	Postgres  *pgxpool.Config
	Redis     *redis.Options
	Namespace string
	TTL       time.Duration
	Wait      time.Duration
	Shutdown  time.Duration
}

// SettingsFrom reads settings with a function such as os.Getenv. The error names every variable that is wrong.
func SettingsFrom(getenv func(string) string) (Settings, error) {
	var errs [6]error
	s := Settings{Namespace: cmp.Or(getenv(NamespaceVar), "booking")}
	s.Addr, errs[0] = address(AddrVar, cmp.Or(getenv(AddrVar), "127.0.0.1:8080"))
	s.Postgres, errs[1] = postgres(PostgresVar, getenv(PostgresVar))
	s.Redis, errs[2] = redisAt(RedisVar, getenv(RedisVar))
	s.TTL, errs[3] = duration(TTLVar, cmp.Or(getenv(TTLVar), "10s"), time.Millisecond)
	s.Wait, errs[4] = duration(WaitVar, cmp.Or(getenv(WaitVar), "2s"), 0)
	s.Shutdown, errs[5] = duration(ShutdownVar, cmp.Or(getenv(ShutdownVar), "15s"), 0)
	return s, errors.Join(errs[:]...)
}

func address(name, text string) (string, error) {
	if _, _, err := net.SplitHostPort(text); err != nil {
		return "", fmt.Errorf("%s is %q; it must be host:port, such as 127.0.0.1:8080", name, text)
	}
	return text, nil
}

func duration(name, text string, least time.Duration) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < least {
		return 0, fmt.Errorf("%s is %q; it must be a duration of at least %v, such as 2s", name, text, least)
	}
	return d, nil
}

// A URL that is wrong is not repeated in the error: it may hold a password.

func postgres(name, url string) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(url)
	if url == "" || err != nil {
		return nil, fmt.Errorf("%s must be the URL of a database, such as postgres://user:password@host:5432/database", name)
	}
	if config.ConnConfig.RuntimeParams["application_name"] == "" {
		config.ConnConfig.RuntimeParams["application_name"] = program
	}
	return config, nil
}

func redisAt(name, url string) (*redis.Options, error) {
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, fmt.Errorf("%s must be the URL of a Redis, such as redis://user:password@host:6379/0", name)
	}
	options.ClientName = cmp.Or(options.ClientName, lease.ClientName(program))
	// An extension of some hosted Redis that others refuse, loudly.
	options.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return options, nil
}

// program shows in pg_stat_activity and in Redis's CLIENT LIST.
const program = "booking"
