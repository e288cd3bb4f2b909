// Package conn connects to Redis and Postgres, and says why one does not answer.
package conn

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
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/term"
	"github.com/fencedb/fencedb/internal/protocol"
	"github.com/fencedb/fencedb/lease"
)

// Servers are the connections of one call of the command.
type Servers struct {
	*app.State
	Client    redis.UniversalClient
	Issuer    *lease.Issuer
	Semaphore *lease.Semaphore
	Pool      *pgxpool.Pool

	Replica bool // Redis is one, and who holds what may be old
	Standby bool // Postgres is one, and what has entered may be missing there

	RedisAway, PostgresAway error // why one does not answer, for commands that take halves
}

// Needs are the servers that a command asks.
type Needs int

// Servers that a command asks, and how.
const (
	Redis Needs = 1 << iota
	Postgres
	Primary // and Redis must not be a replica
	Halves  // and one that is away does not keep the other from being asked
	Both    = Redis | Postgres
)

// ApplicationName is not that of a program, which doctor looks for.
const ApplicationName = "fencedb"

// Open does not connect yet.
func Open(ctx context.Context, a *app.State, where Needs) (s *Servers, err error) {
	s = &Servers{State: a}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if where&Redis != 0 {
		if s.RedisURL == "" {
			return s, app.UsageError("no Redis: set --redis or FENCEDB_REDIS_URL")
		}
		if s.Client, err = OpenRedis(s.RedisURL, nil); err != nil {
			return s, app.UsageError("--redis: %w; it takes\n%s", err, RedisForms)
		}
		if s.Issuer, err = lease.New(s.Client, s.Names.Config()); err != nil {
			return s, app.UsageError("%w", err)
		}
		if s.Semaphore, err = s.Names.Semaphore(s.Client); err != nil {
			return s, app.UsageError("%w", err)
		}
	}
	if where&Postgres != 0 {
		if s.PostgresURL == "" {
			return s, app.UsageError("no Postgres: set --postgres or FENCEDB_POSTGRES_URL")
		}
		config, err := pgxpool.ParseConfig(s.PostgresURL)
		if err != nil {
			return s, app.UsageError("--postgres: %w", err) // pgx blanks the password
		}
		config.ConnConfig.RuntimeParams["application_name"] = ApplicationName
		// A connection pooler gives each statement another session, so nothing prepared is used again,
		// whatever the URL of the programs says.
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
		s.Pool, err = pgxpool.NewWithConfig(ctx, config)
		return s, err
	}
	return s, nil
}

// Close waits a moment only: a Postgres that hangs keeps connections for longer than --timeout.
func (s *Servers) Close() {
	if s.Client != nil {
		_ = s.Client.Close()
	}
	if s.Pool == nil {
		return
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		s.Pool.Close()
	}()
	select {
	case <-closed:
	case <-time.After(time.Second):
	}
}

// Work is what a command does with its servers.
type Work = func(context.Context, *Servers) (term.Report, error)

// Action is the action of a command. It connects before do begins, so that a server that is away is
// reported before anything is changed, and shows what do returns. A check, if there is one, comes
// before all that.
func Action(a *app.State, where Needs, check func(*cli.Command) error, do Work) cli.ActionFunc {
	return func(ctx context.Context, cmd *cli.Command) error {
		if check != nil {
			if err := check(cmd); err != nil {
				return err
			}
		}
		s, err := Open(ctx, a, where)
		if err != nil {
			return err
		}
		defer s.Close()
		if err := s.Connect(ctx, where); err != nil || s.Replica && where&Primary != 0 {
			return cmp.Or(err, ErrReplica)
		}
		r, err := do(ctx, s)
		if err != nil || r == nil {
			return err
		}
		return a.Show(r)
	}
}

// TimedAction is Action for a command that asks no person, so that --timeout limits all that it
// asks the servers.
func TimedAction(a *app.State, where Needs, check func(*cli.Command) error, do Work) cli.ActionFunc {
	return Action(a, where, check, func(ctx context.Context, s *Servers) (term.Report, error) {
		ctx, cancel := s.Bounded(ctx)
		defer cancel()
		return do(ctx, s)
	})
}

// Connect also warns of a replica and of a standby, and asks for the time. Each server has half of
// the time.
func (s *Servers) Connect(ctx context.Context, where Needs) error {
	for _, server := range []struct {
		name string
		here bool
		host func() string
		ask  func(context.Context) error
		away *error
	}{
		{"redis", s.Client != nil, s.redisHost, s.connectRedis, &s.RedisAway},
		{"postgres", s.Pool != nil, s.PostgresHost, s.connectPostgres, &s.PostgresAway},
	} {
		if !server.here {
			continue
		}
		half, cancel := context.WithTimeout(ctx, s.Timeout/2)
		answered := s.Waits(func() string { return fmt.Sprintf("%s at %s", server.name, server.host()) })
		err := server.ask(half)
		switch {
		case err == nil:
		case half.Err() != nil && ctx.Err() == nil:
			err = app.InShort(fmt.Sprintf("%s: no answer from %s within %v, half of --timeout", server.name, server.host(), s.Timeout/2), err)
		default:
			err = unreachable(server.name, server.host(), err)
		}
		answered()
		cancel()
		switch {
		case err == nil:
		case where&Halves != 0 && ctx.Err() == nil:
			*server.away = err
		case where&Primary != 0:
			return fmt.Errorf("%w: %w", app.ErrUnchanged, err)
		default:
			return err
		}
	}
	if s.RedisAway != nil && s.PostgresAway != nil {
		return fmt.Errorf("neither server answers: %w; %w", s.RedisAway, s.PostgresAway)
	}
	return nil
}

func (s *Servers) redisHost() string {
	switch client := s.Client.(type) {
	case *redis.Client:
		return protocol.Address(client)
	case *redis.ClusterClient:
		return strings.Join(client.Options().Addrs, ", ")
	}
	return "Redis"
}

// PostgresHost is where Postgres is asked, for people.
func (s *Servers) PostgresHost() string {
	config := s.Pool.Config().ConnConfig
	hosts := []string{net.JoinHostPort(config.Host, fmt.Sprint(config.Port))}
	for _, further := range config.Fallbacks { // also the same one, without TLS
		host := net.JoinHostPort(further.Host, fmt.Sprint(further.Port))
		if !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	return strings.Join(hosts, ", ")
}

// Away is why a server has not answered, or nil.
func (s *Servers) Away() error { return errors.Join(s.RedisAway, s.PostgresAway) }

// offset is how far the clock that said at is ahead of this machine's, give or take within: it was
// read on the way of a request that was sent then.
func offset(sent, at time.Time) (ahead, within time.Duration) {
	within = max(1, time.Since(sent)/2)
	return at.Sub(sent.Add(within)), within
}

func (s *Servers) connectRedis(ctx context.Context) error {
	sent := time.Now()
	at, err := s.Client.Time(ctx).Result()
	if err != nil && !redis.IsPermissionError(err) {
		return err
	} else if err == nil {
		s.Ahead.Redis, s.Ahead.RedisWithin = offset(sent, at)
	}
	if one, is := s.Client.(*redis.Client); is { // those of a Cluster and of Sentinels ask primaries
		if s.Replica = strings.Contains(one.Info(ctx, "replication").Val(), "role:slave"); s.Replica {
			fmt.Fprintf(s.ErrOut, "fencedb: the Redis at %s is a replica: what it says may be old, and it changes nothing. "+
				"Give the address of the primary.\n", protocol.Address(one))
		}
	}
	return nil
}

func (s *Servers) connectPostgres(ctx context.Context) error {
	var standby bool
	var at time.Time
	sent := time.Now()
	if err := s.Pool.QueryRow(ctx, `SELECT pg_is_in_recovery(), clock_timestamp()`).Scan(&standby, &at); err != nil {
		return err
	}
	s.Ahead.Postgres, s.Ahead.PostgresWithin = offset(sent, at)
	if s.Standby = standby; standby {
		fmt.Fprintln(s.ErrOut, "fencedb: this Postgres is a standby: what it says may be old, and nothing can be changed there. "+
			"Name the primary with --postgres.")
	}
	return nil
}

// Bounded limits one exchange with the servers by --timeout. The time that a person takes to answer
// does not count. While it waits, it reports which transactions hold these fences.
func (s *Servers) Bounded(ctx context.Context, fences ...string) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	answered := s.Waits(func() string {
		return fmt.Sprintf("the servers, for %s at most (--timeout)", term.Span(s.Timeout)) + s.InTheWay(ctx, fences)
	})
	return ctx, func() { cancel(); answered() }
}

// InTheWay names the transactions that hold these fences, as far as Postgres says so at once. The
// command's own sessions wait as well, and are not named.
func (s *Servers) InTheWay(ctx context.Context, fences []string) string {
	if len(fences) == 0 || s.Pool == nil || s.PostgresAway != nil {
		return ""
	}
	asking, cancel := context.WithTimeout(ctx, app.Patience)
	defer cancel()
	all, err := Transactions(asking, s.Pool, fences...)
	all = slices.DeleteFunc(all, func(t Transaction) bool { return t.Application == ApplicationName })
	if err != nil || len(all) == 0 {
		return ""
	}
	return "; open transactions are in the way: " + Describe(all)
}
