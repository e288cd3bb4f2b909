package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/lease"
)

// servers are the connections of one call of the command.
type servers struct {
	*app
	client redis.UniversalClient
	issuer *lease.Issuer
	pool   *pgxpool.Pool

	replica bool // Redis is one, and who holds what may be old

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

// names say how the programs name keys in Redis.
type names struct {
	namespace string
	hashed    bool
}

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
	}
	if where&onPostgres != 0 {
		if s.postgresURL == "" {
			return s, usage("no Postgres: set --postgres or FENCEDB_POSTGRES_URL")
		}
		config, err := pgxpool.ParseConfig(s.postgresURL)
		if err != nil {
			return s, usage("--postgres: %w", err) // pgx blanks the password
		}
		config.ConnConfig.RuntimeParams["application_name"] = "fencedb" // not that of a program, which doctor looks for
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
		ctx, cancel := a.bounded(ctx)
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
		err := server.ask(half)
		if err != nil && half.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("%s: no answer from %s within %v, half of --timeout", server.name, server.host(), s.timeout/2)
		}
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

func (s *servers) redisHost() string {
	switch client := s.client.(type) {
	case *redis.Client: // of Sentinels it is their name for the primary
		return client.Options().Addr
	case *redis.ClusterClient:
		return strings.Join(client.Options().Addrs, ", ")
	}
	return "Redis"
}

func (s *servers) postgresHost() string {
	config := s.pool.Config().ConnConfig
	return net.JoinHostPort(config.Host, fmt.Sprint(config.Port))
}

// away is why a server has not answered, or nil.
func (s *servers) away() error { return errors.Join(s.redisAway, s.postgresAway) }

func (s *servers) connectRedis(ctx context.Context) error {
	at, err := s.client.Time(ctx).Result()
	if err != nil && !redis.IsPermissionError(err) {
		return fmt.Errorf("redis: %w", err)
	} else if err == nil {
		s.ahead.redis = time.Until(at)
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
	if err := s.pool.QueryRow(ctx, `SELECT pg_is_in_recovery(), clock_timestamp()`).Scan(&standby, &at); err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	s.ahead.postgres = time.Until(at)
	if standby {
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
	if pgconn.Timeout(err) {
		return fmt.Errorf("postgres: no answer in time (--timeout); a lock may be in the way, see pg_blocking_pids: %w", err)
	}
	switch refused, _ := errors.AsType[*pgconn.PgError](err); value(refused).Code {
	case insufficientPrivilege:
		return fmt.Errorf("%w, and GRANT USAGE ON SCHEMA fencedb TO PUBLIC if that is missing: %w", errMayNot, err)
	case undefinedTable, undefinedSchema, undefinedFunction:
		return fmt.Errorf("postgres: the schema fencedb is missing or older than this command; run fencedb migrate up: %w", err)
	}
	return err
}

var errReplica = fmt.Errorf("%w: this Redis is a replica, which may not know who holds what", errUnchanged)

// fenceRetention is how long Redis remembers a token that revoke has issued. A shorter time than
// the programs' own setting would shorten theirs; a longer one does no harm.
const fenceRetention = 30 * 24 * time.Hour

// config is for looking on: its TTL is not used.
func (n names) config() lease.Config {
	return lease.Config{TTL: time.Minute, Namespace: n.namespace, HashResources: n.hashed, FenceRetention: fenceRetention}
}

// issuedAt returns when a token was issued, or nil. A token is the clock of Redis in microseconds,
// or follows a higher token: one that was no time, or one from before that clock was set back.
func (c clocks) issuedAt(token int64) *time.Time {
	at := time.UnixMicro(token).UTC()
	return optional(at, at.Year() >= 2020 && c.sinceRedis(at) > -rounding)
}

// redisForms describes the URLs that newRedis accepts.
const redisForms = `   redis://user:password@host:6379/0
      one server
   redis-sentinel://host:26379/0?master_name=NAME&addr=host2:26379
      the primary that Sentinels call NAME; ?username= and ?password= are for
      it, a user before the host is for the Sentinels
   redis-cluster://user:password@host:6379?addr=host2:6379
      a Cluster, by some of its nodes
   rediss://, rediss-sentinel://, rediss-cluster://
      the same with TLS; ?sslrootcert=, ?sslcert= and ?sslkey= name files as
      they do for Postgres`

// dialer makes a connection; nil stands for the usual way.
type dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

// newRedis makes the client that a URL names.
func newRedis(address string, dial dialer) (redis.UniversalClient, error) {
	client, err := parseRedis(address, dial)
	if err != nil {
		return nil, withoutPassword(address, err)
	}
	return client, nil
}

// withoutPassword is what is wrong with an address, by the part behind the password: errors quote
// what they take for a port or a path, and in a password with a slash that is the password.
func withoutPassword(address string, err error) error {
	scheme, _, found := strings.Cut(address, "://")
	if at := strings.LastIndex(address, "@"); at >= 0 {
		if !found {
			return errors.New("it does not begin with redis:// or another scheme")
		}
		client, err2 := parseRedis(scheme+"://"+address[at+1:], nil)
		if err2 == nil {
			_ = client.Close()
			return errors.New("user and password cannot be read; in them, / is written as %2F, ? as %3F, # as %23 and % as %25")
		}
		err = err2
	}
	if broken, is := errors.AsType[*url.Error](err); is {
		return broken.Err
	}
	return err
}

// parseRedis leaves the URL to go-redis, with all its parameters, but for the scheme and the files.
// The clients heed the deadlines of contexts, or a Redis that hangs would outlast --timeout.
func parseRedis(address string, dial dialer) (redis.UniversalClient, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	query := u.Query()
	files := certificates{take(query, "sslrootcert"), take(query, "sslcert"), take(query, "sslkey")}
	scheme, topology, _ := strings.Cut(u.Scheme, "-")
	u.Scheme, u.RawQuery = scheme, query.Encode()
	switch {
	case strings.Contains(u.Host, ","):
		return nil, errors.New("the URL names one host; further ones are parameters, as in ?addr=host2:6379&addr=host3:6379")
	case topology == "":
		o, err := redis.ParseURL(u.String())
		if err == nil {
			o.ContextTimeoutEnabled = true
			o.Dialer, err = files.around(dial, o.TLSConfig)
		}
		if err != nil {
			return nil, err
		}
		return redis.NewClient(o), nil
	case topology == "cluster":
		o, err := redis.ParseClusterURL(u.String())
		if err == nil {
			o.ContextTimeoutEnabled = true
			o.Dialer, err = files.around(dial, o.TLSConfig)
		}
		if err != nil {
			return nil, err
		}
		return redis.NewClusterClient(o), nil
	case topology == "sentinel" && !query.Has("master_name"):
		return nil, errors.New("no name of a primary for Sentinels: ?master_name=NAME")
	case topology == "sentinel":
		if u.Port() == "" {
			u.Host += ":26379"
		}
		o, err := redis.ParseFailoverURL(u.String())
		if err == nil {
			o.ContextTimeoutEnabled = true
			o.Dialer, err = files.around(dial, o.TLSConfig)
		}
		if err != nil {
			return nil, err
		}
		return redis.NewFailoverClient(o), nil
	}
	return nil, fmt.Errorf("there is no scheme %q", u.Scheme+"-"+topology)
}

// take returns a parameter and removes it.
func take(query url.Values, name string) string {
	defer query.Del(name)
	return query.Get(name)
}

// certificates are files for TLS, in the parameters that a URL of Postgres has for them: go-redis
// has none.
type certificates struct{ root, cert, key string }

func (c certificates) into(config *tls.Config) error {
	switch {
	case c == certificates{}:
		return nil
	case config == nil:
		return errors.New("sslrootcert, sslcert and sslkey are for TLS: the URL has to begin with rediss")
	}
	if c.root != "" {
		text, err := os.ReadFile(c.root)
		if err != nil {
			return fmt.Errorf("sslrootcert: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return fmt.Errorf("sslrootcert: %s has no certificate in PEM", c.root)
		}
	}
	if c.cert != "" || c.key != "" {
		own, err := tls.LoadX509KeyPair(c.cert, c.key)
		if err != nil {
			return fmt.Errorf("sslcert and sslkey: %w", err)
		}
		config.Certificates = []tls.Certificate{own}
	}
	return nil
}

// around puts them into config. It adds TLS to dial, because go-redis leaves TLS to a dialer that
// it is given.
func (c certificates) around(dial dialer, config *tls.Config) (dialer, error) {
	if err := c.into(config); err != nil || config == nil {
		return dial, err
	}
	config.ServerName = "" // that of each server, not of the first one
	if dial == nil {
		return nil, nil
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		config := config.Clone()
		config.ServerName, _, _ = net.SplitHostPort(addr)
		secret := tls.Client(conn, config)
		if err := secret.HandshakeContext(ctx); err != nil {
			_ = conn.Close()
			return nil, err
		}
		return secret, nil
	}, nil
}
