package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/lease"
)

// servers are the connections of one call of the command.
type servers struct {
	*app
	client    redis.UniversalClient
	issuer    *lease.Issuer
	semaphore *lease.Semaphore
	pool      *pgxpool.Pool

	replica bool // Redis is one, and who holds what may be old
	standby bool // Postgres is one, and what has entered may be missing there

	redisAway, postgresAway error // why one does not answer, for commands that take halves
}

// needs are the servers that a command asks.
type needs int

const (
	onRedis needs = 1 << iota
	onPostgres
	onPrimary // and Redis must not be a replica
	halves    // and one that is away does not keep the other from being asked
	onBoth    = onRedis | onPostgres
)

// applicationName is not that of a program, which doctor looks for.
const applicationName = "fencedb"

// open does not connect yet. What it returns is to be closed, also with an error.
func (a *app) open(ctx context.Context, where needs) (s *servers, err error) {
	s = &servers{app: a}
	if where&onRedis != 0 {
		if s.redisURL == "" {
			return s, usage("no Redis: set --redis or FENCEDB_REDIS_URL")
		}
		if s.client, err = newRedis(s.redisURL, nil); err != nil {
			return s, usage("--redis: %w; it takes\n%s", err, redisForms)
		}
		if s.issuer, err = lease.New(s.client, s.names.config()); err != nil {
			return s, usage("%w", err)
		}
		if s.semaphore, err = s.names.semaphore(s.client); err != nil {
			return s, usage("%w", err)
		}
	}
	if where&onPostgres != 0 {
		if s.postgresURL == "" {
			return s, usage("no Postgres: set --postgres or FENCEDB_POSTGRES_URL")
		}
		config, err := pgxpool.ParseConfig(s.postgresURL)
		if err != nil {
			return s, usage("--postgres: %w", err) // pgx blanks the password
		}
		config.ConnConfig.RuntimeParams["application_name"] = applicationName
		// A connection pooler gives each statement another session, so nothing prepared is used again,
		// whatever the URL of the programs says.
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
		s.pool, err = pgxpool.NewWithConfig(ctx, config)
		return s, err
	}
	return s, nil
}

// close waits a moment only: a Postgres that hangs keeps connections for longer than --timeout.
func (s *servers) close() {
	if s.client != nil {
		_ = s.client.Close()
	}
	if s.pool == nil {
		return
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		s.pool.Close()
	}()
	select {
	case <-closed:
	case <-time.After(time.Second):
	}
}

// work is what a command does with its servers.
type work = func(context.Context, *servers) (report, error)

// on is the action of a command. It connects before do begins, so that a server that is away is
// reported before anything is changed, and shows what do returns. A check, if there is one, comes
// before all that.
func (a *app) on(where needs, check func(*cli.Command) error, do work) cli.ActionFunc {
	return func(ctx context.Context, cmd *cli.Command) error {
		if check != nil {
			if err := check(cmd); err != nil {
				return err
			}
		}
		s, err := a.open(ctx, where)
		defer s.close()
		if err != nil {
			return err
		}
		if err := s.connect(ctx, where); err != nil || s.replica && where&onPrimary != 0 {
			return cmp.Or(err, errReplica)
		}
		r, err := do(ctx, s)
		if err != nil || r == nil {
			return err
		}
		return a.show(r)
	}
}

// read is on for a command that asks no person, so that --timeout limits all that it asks the
// servers.
func (a *app) read(where needs, check func(*cli.Command) error, do work) cli.ActionFunc {
	return a.on(where, check, func(ctx context.Context, s *servers) (report, error) {
		ctx, cancel := s.bounded(ctx)
		defer cancel()
		return do(ctx, s)
	})
}

// connect also warns of a replica and of a standby, and asks for the time. Each server has half of
// the time.
func (s *servers) connect(ctx context.Context, where needs) error {
	for _, server := range []struct {
		name string
		here bool
		host func() string
		ask  func(context.Context) error
		away *error
	}{
		{"redis", s.client != nil, s.redisHost, s.connectRedis, &s.redisAway},
		{"postgres", s.pool != nil, s.postgresHost, s.connectPostgres, &s.postgresAway},
	} {
		if !server.here {
			continue
		}
		half, cancel := context.WithTimeout(ctx, s.timeout/2)
		answered := s.waits(func() string { return fmt.Sprintf("%s at %s", server.name, server.host()) })
		err := server.ask(half)
		switch {
		case err == nil:
		case half.Err() != nil && ctx.Err() == nil:
			err = inShort{fmt.Sprintf("%s: no answer from %s within %v, half of --timeout", server.name, server.host(), s.timeout/2), err}
		default:
			err = unreachable(server.name, server.host(), err)
		}
		answered()
		cancel()
		switch {
		case err == nil:
		case where&halves != 0 && ctx.Err() == nil:
			*server.away = err
		case where&onPrimary != 0:
			return fmt.Errorf("%w: %w", errUnchanged, err)
		default:
			return err
		}
	}
	if s.redisAway != nil && s.postgresAway != nil {
		return fmt.Errorf("neither server answers: %w; %w", s.redisAway, s.postgresAway)
	}
	return nil
}

// unreachable is the error of a server that was asked first, with its address once: the errors of
// drivers have none, or several.
func unreachable(name, host string, err error) error {
	text := fmt.Sprintf("%s: cannot reach %s: %s", name, host, reason(err))
	if errors.As(err, new(*pgconn.PgError)) || errors.As(err, new(redis.Error)) {
		text = fmt.Sprintf("%s: %s refuses: %s", name, host, reason(err))
	}
	return inShort{text, err}
}

// reason is the innermost part of an error, without the addresses and attempts around it.
func reason(err error) string {
	if refused, is := errors.AsType[*pgconn.PgError](err); is {
		return refused.Error()
	}
	if lookup, is := errors.AsType[*net.DNSError](err); is {
		return lookup.Err
	}
	if attempt, is := errors.AsType[*net.OpError](err); is {
		err = attempt.Err
	}
	for inner := err; inner != nil; inner = errors.Unwrap(inner) {
		err = inner
	}
	return inWords(err)
}

func (s *servers) redisHost() string {
	switch client := s.client.(type) {
	case *redis.Client:
		if client.Options().Addr == "FailoverClient" { // as go-redis calls what Sentinels lead to
			return "the primary that Sentinels name"
		}
		return client.Options().Addr
	case *redis.ClusterClient:
		return strings.Join(client.Options().Addrs, ", ")
	}
	return "Redis"
}

func (s *servers) postgresHost() string {
	config := s.pool.Config().ConnConfig
	hosts := []string{net.JoinHostPort(config.Host, fmt.Sprint(config.Port))}
	for _, further := range config.Fallbacks { // also the same one, without TLS
		host := net.JoinHostPort(further.Host, fmt.Sprint(further.Port))
		if !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	return strings.Join(hosts, ", ")
}

// away is why a server has not answered, or nil.
func (s *servers) away() error { return errors.Join(s.redisAway, s.postgresAway) }

func (s *servers) connectRedis(ctx context.Context) error {
	sent := time.Now()
	at, err := s.client.Time(ctx).Result()
	if err != nil && !redis.IsPermissionError(err) {
		return err
	} else if err == nil {
		s.ahead.redis, s.ahead.redisWithin = offset(sent, at)
	}
	if one, is := s.client.(*redis.Client); is { // those of a Cluster and of Sentinels ask primaries
		if s.replica = strings.Contains(one.Info(ctx, "replication").Val(), "role:slave"); s.replica {
			fmt.Fprintf(s.errOut, "fencedb: the Redis at %s is a replica: what it says may be old, and it changes nothing. "+
				"Give the address of the primary.\n", one.Options().Addr)
		}
	}
	return nil
}

func (s *servers) connectPostgres(ctx context.Context) error {
	var standby bool
	var at time.Time
	sent := time.Now()
	if err := s.pool.QueryRow(ctx, `SELECT pg_is_in_recovery(), clock_timestamp()`).Scan(&standby, &at); err != nil {
		return err
	}
	s.ahead.postgres, s.ahead.postgresWithin = offset(sent, at)
	if s.standby = standby; standby {
		fmt.Fprintln(s.errOut, "fencedb: this Postgres is a standby: what it says may be old, and nothing can be changed there. "+
			"Name the primary with --postgres.")
	}
	return nil
}

// SQLSTATEs of an incomplete set-up.
const insufficientPrivilege, undefinedTable, undefinedSchema, undefinedFunction = "42501", "42P01", "3F000", "42883"

// explained adds the remedy to errors of an incomplete set-up, and of a server that is not done in
// time.
func explained(err error) error {
	if pgconn.Timeout(err) && !errors.Is(err, context.Canceled) {
		return inShort{"postgres: no answer in time (--timeout); a lock may be in the way, see pg_blocking_pids", err}
	}
	switch refused, _ := errors.AsType[*pgconn.PgError](err); value(refused).Code {
	case insufficientPrivilege:
		return fmt.Errorf("%w, and GRANT USAGE ON SCHEMA fencedb TO PUBLIC if that is missing: %w", errMayNot, err)
	case undefinedTable, undefinedSchema, undefinedFunction:
		return fmt.Errorf("postgres: the schema fencedb of this database is missing, or older than this command: see that --postgres names the database of the programs, and run fencedb migrate up: %w", err)
	}
	return err
}

var errReplica = fmt.Errorf("%w: this Redis is a replica, which may not know who holds what", errUnchanged)

var errMayNot = errors.New("postgres: permission denied for this role; let the owner of the schema fencedb run SELECT fencedb.allow('role', operator => true)")
