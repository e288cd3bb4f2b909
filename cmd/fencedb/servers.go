package main

import (
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

// servers are the connections to both servers.
type servers struct {
	client redis.UniversalClient
	names  names
	issuer *lease.Issuer
	pool   *pgxpool.Pool

	replica bool // Redis is one, and who holds what may be old
}

// open does not connect yet.
func open(ctx context.Context, cmd *cli.Command) (s *servers, err error) {
	s = &servers{names: namesOf(cmd)}
	if s.client, err = openRedis(cmd); err != nil {
		return nil, err
	}
	if s.pool, err = openPostgres(ctx, cmd); err != nil {
		_ = s.client.Close()
		return nil, err
	}
	if s.issuer, err = issuer(s.client, s.names); err != nil {
		s.close()
		return nil, usage("%w", err)
	}
	return s, nil
}

func (s *servers) close() {
	closePool(s.pool)
	_ = s.client.Close()
}

// closePool waits a moment only: a Postgres that hangs keeps connections for longer than --timeout.
func closePool(pool *pgxpool.Pool) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		pool.Close()
	}()
	select {
	case <-closed:
	case <-time.After(time.Second):
	}
}

// names say how the programs name keys in Redis.
type names struct {
	namespace string
	hashed    bool
}

func namesOf(cmd *cli.Command) names {
	return names{cmd.String(flagNamespace), cmd.Bool(flagHashed)}
}

// onServers connects both servers before fn begins, so that one that is away is reported before
// anything is changed. So do onRedis and onPostgres, which bound fn too.
func (a *app) onServers(ctx context.Context, cmd *cli.Command, fn func(*servers) error) error {
	s, err := open(ctx, cmd)
	if err != nil {
		return err
	}
	defer s.close()
	connecting, cancel := bounded(ctx, cmd)
	defer cancel()
	if s.replica, err = a.pingRedis(connecting, s.client); err != nil {
		return err
	}
	if err := pingPostgres(connecting, s.pool); err != nil {
		return err
	}
	return fn(s)
}

func (a *app) onRedis(ctx context.Context, cmd *cli.Command,
	fn func(context.Context, redis.UniversalClient) error) error {
	client, err := openRedis(cmd)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := bounded(ctx, cmd)
	defer cancel()
	if _, err := a.pingRedis(ctx, client); err != nil {
		return err
	}
	return fn(ctx, client)
}

func onPostgres(ctx context.Context, cmd *cli.Command, fn func(context.Context, *pgxpool.Pool) error) error {
	ctx, cancel := bounded(ctx, cmd)
	defer cancel()
	pool, err := openPostgres(ctx, cmd)
	if err != nil {
		return err
	}
	defer closePool(pool)
	if err := pingPostgres(ctx, pool); err != nil {
		return err
	}
	return fn(ctx, pool)
}

// openPostgres does not connect yet.
func openPostgres(ctx context.Context, cmd *cli.Command) (*pgxpool.Pool, error) {
	address := cmd.String(flagPostgres)
	if address == "" {
		return nil, usage("no Postgres: set --%s or FENCEDB_POSTGRES_URL", flagPostgres)
	}
	config, err := pgxpool.ParseConfig(address)
	if err != nil {
		return nil, usage("--%s: %w", flagPostgres, err) // pgx blanks the password
	}
	if config.ConnConfig.RuntimeParams["application_name"] == "" {
		config.ConnConfig.RuntimeParams["application_name"] = "fencedb"
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	return pool, nil
}

func pingPostgres(ctx context.Context, pool *pgxpool.Pool) error {
	if err := pool.Ping(ctx); err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	return nil
}

// SQLSTATEs of an incomplete set-up.
const insufficientPrivilege, undefinedTable, undefinedSchema, undefinedFunction = "42501", "42P01", "3F000", "42883"

// explained adds the remedy to errors of an incomplete set-up.
func explained(err error) error {
	refused := new(pgconn.PgError)
	if !errors.As(err, &refused) {
		return err
	}
	switch refused.Code {
	case insufficientPrivilege:
		return fmt.Errorf("%w: %w", errMayNot, err)
	case undefinedTable, undefinedSchema, undefinedFunction:
		return fmt.Errorf("postgres: the schema fencedb is missing or older than this command; run fencedb migrate up: %w", err)
	}
	return err
}

// openRedis does not connect yet.
func openRedis(cmd *cli.Command) (redis.UniversalClient, error) {
	address := cmd.String(flagRedis)
	if address == "" {
		return nil, usage("no Redis: set --%s or FENCEDB_REDIS_URL", flagRedis)
	}
	client, err := newRedis(address, nil)
	if err != nil {
		return nil, usage("--%s: %w; it takes\n%s", flagRedis, withoutPassword(address, err), redisForms)
	}
	switch c := client.(type) { // or a Redis that hangs would outlast --timeout
	case *redis.Client:
		c.Options().ContextTimeoutEnabled = true
	case *redis.ClusterClient:
		c.Options().ContextTimeoutEnabled = true
	}
	return client, nil
}

// withoutPassword is what is wrong with an address, by the part behind the password: errors quote what
// they take for a port or a path, and in a password with a slash that is the password.
func withoutPassword(address string, err error) error {
	at := strings.LastIndex(address, "@")
	scheme, _, found := strings.Cut(address, "://")
	switch {
	case at < 0:
		return withoutURL(err)
	case !found:
		return errors.New("it does not begin with redis:// or another scheme")
	}
	client, err := newRedis(scheme+"://"+address[at+1:], nil)
	if err != nil {
		return withoutURL(err)
	}
	_ = client.Close()
	return errors.New("user and password cannot be read; in them, / is written as %2F, ? as %3F, # as %23 and % as %25")
}

// pingRedis also warns of a replica.
func (a *app) pingRedis(ctx context.Context, client redis.UniversalClient) (replica bool, err error) {
	if err := client.Ping(ctx).Err(); err != nil {
		return false, fmt.Errorf("redis: %w", err)
	}
	if one, is := client.(*redis.Client); is { // those of a Cluster and of Sentinels ask primaries
		if replica = strings.Contains(one.Info(ctx, "replication").Val(), "role:slave"); replica {
			fmt.Fprintf(a.errOut, "fencedb: the Redis at %s is a replica: what it says may be old, and it changes nothing. Give the address of the primary.\n", one.Options().Addr)
		}
	}
	return replica, nil
}

var errReplica = fmt.Errorf("%w: this Redis is a replica, which may not know who holds what", errUnchanged)

// withoutURL keeps the password out of the message.
func withoutURL(err error) error {
	if broken := new(url.Error); errors.As(err, &broken) {
		return broken.Err
	}
	return err
}

// fenceRetention is how long Redis remembers a token that revoke has issued. A shorter time than
// the programs' own setting would shorten theirs; a longer one does no harm.
const fenceRetention = 30 * 24 * time.Hour

// issuer returns an issuer that never acquires. Its TTL is not used.
func issuer(client redis.UniversalClient, n names, tracers ...lease.Tracer) (*lease.Issuer, error) {
	return lease.New(client, lease.Config{
		TTL:            time.Minute,
		Namespace:      n.namespace,
		HashResources:  n.hashed,
		FenceRetention: fenceRetention,
		Tracers:        tracers,
	})
}

// issuedAt returns the time in a token, or nil. A token is the clock of Redis in microseconds, or
// follows a higher token.
func issuedAt(token int64) *time.Time {
	at := time.UnixMicro(token).UTC()
	if at.Year() < 2020 || at.After(time.Now().Add(time.Hour)) {
		return nil // it follows a token that was no time
	}
	return &at
}

// redisForms describes the URLs that newRedis accepts.
const redisForms = `   redis://user:password@host:6379/0
      one server
   redis-sentinel://user:password@host1,host2/NAME/0
      the primary that Sentinel calls NAME; ?sentinel_username= and
      ?sentinel_password= are those of the Sentinels
   redis-cluster://user:password@host1:6379,host2:6379
      a Cluster, by some of its nodes
   rediss://, rediss-sentinel://, rediss-cluster://
      the same with TLS; ?sslrootcert=, ?sslcert= and ?sslkey= name files as
      they do for Postgres`

// dialer makes a connection; nil stands for the usual way.
type dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

// newRedis accepts the parameters of go-redis, such as ?dial_timeout=2s, in all forms.
func newRedis(address string, dial dialer) (redis.UniversalClient, error) {
	scheme, rest, _ := strings.Cut(address, "://")
	plain, topology, _ := strings.Cut(scheme, "-")
	rest, files := takeCertificates(rest)
	switch topology {
	case "sentinel":
		return newSentinel(plain, rest, files, dial)
	case "cluster":
		return newCluster(plain, rest, files, dial)
	}
	options, err := redis.ParseURL(scheme + "://" + rest)
	if err != nil {
		return nil, err
	}
	if options.Dialer, err = files.around(dial, options.TLSConfig); err != nil {
		return nil, err
	}
	return redis.NewClient(options), nil
}

// certificates are files for TLS, in the parameters that a URL of Postgres has for them: go-redis
// has none.
type certificates struct{ root, cert, key string }

// takeCertificates takes them out of what follows the scheme.
func takeCertificates(rest string) (string, certificates) {
	before, after, found := strings.Cut(rest, "?")
	query, err := url.ParseQuery(after)
	if !found || err != nil {
		return rest, certificates{} // go-redis says what is wrong
	}
	files := certificates{query.Get("sslrootcert"), query.Get("sslcert"), query.Get("sslkey")}
	for _, name := range []string{"sslrootcert", "sslcert", "sslkey"} {
		query.Del(name)
	}
	return before + "?" + query.Encode(), files
}

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

// around puts them into config. It adds TLS to dial, because go-redis leaves TLS to a dialer that it is given.
func (c certificates) around(dial dialer, config *tls.Config) (dialer, error) {
	if err := c.into(config); err != nil || dial == nil || config == nil {
		return dial, err
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		config := config.Clone()
		if config.ServerName == "" {
			config.ServerName, _, _ = net.SplitHostPort(addr)
		}
		secret := tls.Client(conn, config)
		if err := secret.HandshakeContext(ctx); err != nil {
			_ = conn.Close()
			return nil, err
		}
		return secret, nil
	}, nil
}

func newCluster(scheme, rest string, files certificates, dial dialer) (redis.UniversalClient, error) {
	u, err := splitHosts(scheme, rest, "6379")
	if err != nil {
		return nil, err
	}
	options, err := redis.ParseClusterURL(u.String())
	if err != nil {
		return nil, err
	}
	if options.TLSConfig != nil {
		options.TLSConfig.ServerName = "" // each node's own, not the first one's
	}
	if options.Dialer, err = files.around(dial, options.TLSConfig); err != nil {
		return nil, err
	}
	return redis.NewClusterClient(options), nil
}

func newSentinel(scheme, rest string, files certificates, dial dialer) (redis.UniversalClient, error) {
	u, err := splitHosts(scheme, rest, "26379")
	if err != nil {
		return nil, err
	}
	name, db, _ := strings.Cut(strings.TrimPrefix(u.Path, "/"), "/")
	if name == "" {
		return nil, fmt.Errorf("no name of a primary after the hosts")
	}
	user, query := u.User, u.Query()
	take := func(key string) string {
		defer query.Del(key)
		return query.Get(key)
	}
	sentinelUser, sentinelPassword := take("sentinel_username"), take("sentinel_password")
	query.Set("master_name", name)
	u.User, u.Path, u.RawQuery = nil, "/"+db, query.Encode()
	options, err := redis.ParseFailoverURL(u.String())
	if err != nil {
		return nil, err
	}
	options.Username = user.Username()
	options.Password, _ = user.Password()
	options.SentinelUsername, options.SentinelPassword = sentinelUser, sentinelPassword
	if options.TLSConfig != nil {
		options.TLSConfig.ServerName = ""
	}
	if options.Dialer, err = files.around(dial, options.TLSConfig); err != nil {
		return nil, err
	}
	return redis.NewFailoverClient(options), nil
}

// splitHosts parses "user:password@host1,host2:port/path?query" into a URL of the first host, with
// the others as go-redis takes them: as parameters called addr.
func splitHosts(scheme, rest, defaultPort string) (*url.URL, error) {
	end := strings.IndexAny(rest+"/", "/?")
	authority, tail := rest[:end], rest[end:]
	at := strings.LastIndex(authority, "@") + 1
	hosts := strings.Split(authority[at:], ",")
	for i, host := range hosts {
		if host == "" {
			return nil, fmt.Errorf("host %d of %d is empty", i+1, len(hosts))
		}
		if _, _, err := net.SplitHostPort(host); err != nil {
			hosts[i] = net.JoinHostPort(strings.Trim(host, "[]"), defaultPort)
		}
	}
	u, err := url.Parse(scheme + "://" + authority[:at] + hosts[0] + tail)
	if err != nil {
		return nil, err
	}
	query := u.Query()
	for _, host := range hosts[1:] {
		query.Add("addr", host)
	}
	u.RawQuery = query.Encode()
	return u, nil
}
