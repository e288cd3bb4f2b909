package writes

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"maps"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

// level is an isolation level and where it comes from: an option of the call, or the default of the
// database.
type level struct {
	option     pgx.TxIsoLevel
	byDatabase pgx.TxIsoLevel
}

var levels = []level{
	{},
	{option: pgx.RepeatableRead},
	{byDatabase: pgx.RepeatableRead},
	{option: pgx.Serializable},
	{byDatabase: pgx.Serializable},
}

func (l level) isolation() pgx.TxIsoLevel {
	for _, set := range []pgx.TxIsoLevel{l.option, l.byDatabase} {
		if set != "" {
			return set
		}
	}
	return pgx.ReadCommitted
}

func (l level) sqlOption() sql.IsolationLevel {
	return map[pgx.TxIsoLevel]sql.IsolationLevel{
		pgx.RepeatableRead: sql.LevelRepeatableRead,
		pgx.Serializable:   sql.LevelSerializable,
	}[l.option]
}

func (l level) String() string {
	switch {
	case l.option != "":
		return string(l.option) + " by option"
	case l.byDatabase != "":
		return string(l.byDatabase) + " by default"
	}
	return string(pgx.ReadCommitted)
}

var modes = []pgx.QueryExecMode{
	pgx.QueryExecModeCacheStatement,
	pgx.QueryExecModeCacheDescribe,
	pgx.QueryExecModeDescribeExec,
	pgx.QueryExecModeExec,
	pgx.QueryExecModeSimpleProtocol,
}

// world is a database of its own behind a proxy, for one case at a time.
type world struct {
	direct *pgxpool.Pool         // past the proxy, as a superuser, at READ COMMITTED
	proxy  *faulty.PostgresProxy // to the same database, as the application's role
	front  string                // where the application connects; none means the proxy
	level  pgx.TxIsoLevel        // the database's default
	redis  *redis.Client
	prefix string // of the leases in Redis
	issuer map[time.Duration]*lease.Issuer
}

const schema = `
	CREATE TABLE effects (resource text, n int, PRIMARY KEY (resource, n));
	SELECT fencedb.protect('effects', resource => '{resource}');
	CREATE ROLE matrix LOGIN;
	SELECT fencedb.allow('matrix');
	GRANT INSERT, SELECT ON effects TO matrix;

	-- A COMMIT of these rows waits until the lock is free.
	CREATE FUNCTION stall() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END';
	CREATE CONSTRAINT TRIGGER stall AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW WHEN (NEW.resource LIKE 'stalled:%') EXECUTE FUNCTION stall()`

// newWorlds starts one server with n worlds on it. A COMMIT that is synchronous there waits for
// ever: for a standby that does not exist.
func newWorlds(t *testing.T, n int) chan *world {
	server := testenv.OwnPostgres(t, "synchronous_standby_names=nobody", "max_connections=400")
	template := server.Pool()
	_, err := template.Exec(t.Context(), schema)
	require.NoError(t, err)
	template.Close()
	admin, err := pgx.Connect(t.Context(), databaseURL(t, server.URL(), "template1", "postgres"))
	require.NoError(t, err)
	defer admin.Close(t.Context())
	worlds := make(chan *world, n)
	for i := range n {
		name := fmt.Sprint("world_", i)
		_, err := admin.Exec(t.Context(), "CREATE DATABASE "+name+" TEMPLATE postgres")
		require.NoError(t, err)
		worlds <- newWorld(t, databaseURL(t, server.URL(), name, "postgres"))
	}
	return worlds
}

func newWorld(t *testing.T, database string) *world {
	config, err := pgxpool.ParseConfig(database)
	require.NoError(t, err)
	config.ConnConfig.RuntimeParams["default_transaction_isolation"] = string(pgx.ReadCommitted)
	direct, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(direct.Close)
	return &world{
		direct: direct,
		proxy:  faulty.NewPostgresProxy(t, databaseURL(t, database, "", "matrix")),
		redis:  testenv.Redis(t),
		prefix: testenv.Namespace(t),
		issuer: map[time.Duration]*lease.Issuer{},
	}
}

// databaseURL is a URL with another database and user; an empty name keeps the database.
func databaseURL(t *testing.T, from, name, user string) string {
	u, err := url.Parse(from)
	require.NoError(t, err)
	if name != "" {
		u.Path = "/" + name
	}
	u.User = url.User(user)
	return u.String()
}

// pool is the application's, new for each case.
func (w *world) pool(mode pgx.QueryExecMode, runtime map[string]string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(cmp.Or(w.front, w.proxy.URL()))
	if err != nil {
		return nil, err
	}
	config.MaxConns = 4
	config.ConnConfig.DefaultQueryExecMode = mode
	maps.Copy(config.ConnConfig.RuntimeParams, runtime)
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		var d net.Dialer
		conn, err := d.DialContext(ctx, network, addr)
		return &deadlineConn{Conn: conn}, err
	}
	return pgxpool.NewWithConfig(context.Background(), config)
}

// deadlineConn remembers whether a deadline is set.
type deadlineConn struct {
	net.Conn
	set atomic.Bool
}

func (c *deadlineConn) SetDeadline(t time.Time) error {
	c.set.Store(!t.IsZero())
	return c.Conn.SetDeadline(t)
}

// setLevel makes a level the default of new connections.
func (w *world) setLevel(ctx context.Context, level pgx.TxIsoLevel) error {
	if w.level == level {
		return nil
	}
	w.level = level
	value := "DEFAULT"
	if level != "" {
		value = "'" + string(level) + "'"
	}
	return w.alter(ctx, "default_transaction_isolation", value)
}

func (w *world) alter(ctx context.Context, setting, value string) error {
	database := w.direct.Config().ConnConfig.Database
	_, err := w.direct.Exec(ctx, strings.Join([]string{"ALTER DATABASE", database, "SET", setting, "TO", value}, " "))
	return err
}

func (w *world) issuerFor(ttl time.Duration) (*lease.Issuer, error) {
	if issuer := w.issuer[ttl]; issuer != nil {
		return issuer, nil
	}
	issuer, err := lease.New(w.redis, lease.Config{TTL: ttl, Namespace: w.prefix})
	w.issuer[ttl] = issuer
	return issuer, err
}

// names gives every case a resource of its own.
var names atomic.Int64
