package testenv

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"github.com/fencedb/fencedb/migrations"
)

// fastSettings make a Postgres fast whose data need not survive.
// OwnPostgres can overrule them: of two settings with one name, the later counts.
var fastSettings = []string{
	"fsync=off",
	"synchronous_commit=off",
	"full_page_writes=off",
	"max_wal_size=128MB",  // the data directory may be in memory
	"max_connections=300", // parallel tests, each with a pool
	"max_prepared_transactions=10",
	"shared_preload_libraries=plpgsql", // or each new connection links it anew
}

// advised is what fencedb doctor wants to see.
var advised = []string{"tcp_keepalives_idle=20", "tcp_keepalives_interval=5", "tcp_keepalives_count=3"}

// loopbackOnly keeps others out, and the server to its own directory.
var loopbackOnly = []string{
	"listen_addresses=" + loopback,
	"unix_socket_directories=",        // the default directory may not be ours to write to
	"dynamic_shared_memory_type=mmap", // in the data directory, so that it goes with it
}

// postgresServer is a Postgres that tests share. One that was started here has the URL of a
// superuser, in the database postgres.
type postgresServer struct {
	found

	// One connection for all tests, because to start a backend costs as much as to copy a database.
	mu   sync.Mutex
	conn *pgx.Conn // nil before its first use; it ends with the server or with this program
}

// obtainPostgres returns the first Postgres that can be had, in the order of the package
// documentation. The settings are for one that is started here.
func obtainPostgres(ctx context.Context, h host, settings ...string) (*postgresServer, error) {
	url, program, err := postgresService.locate(ctx, h, false)
	if err != nil {
		return nil, err
	}
	if url != "" {
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			return nil, fmt.Errorf("%s is set, so no other Postgres was looked for, but: %w", postgresURLVar, err)
		}
		return &postgresServer{found: postgresService.external(url, conn.Config().Host)}, conn.Close(ctx)
	}
	cluster, err := newPostgresCluster(ctx, program, settings...)
	if err != nil {
		return nil, err
	}
	return &postgresServer{
		found: postgresService.started(cluster.url("postgres"), cluster.bin, cluster.port, cluster.stop),
	}, nil
}

// postgresCluster is a data directory of our own and, while it runs, the postmaster over it.
type postgresCluster struct {
	node
	bin    string
	config []string // name=value

	security string // parameters of the URL; none: without TLS
}

// newPostgresCluster makes a cluster with the program postgres and those beside it, and starts it.
// On error nothing is left behind.
func newPostgresCluster(ctx context.Context, postgres string, settings ...string) (*postgresCluster, error) {
	c, err := initdb(ctx, postgres)
	if err != nil {
		return nil, err
	}
	return c.started(ctx, settings...)
}

// started starts a cluster for the first time, with settings that overrule those it has. On error
// nothing is left behind.
func (c *postgresCluster) started(ctx context.Context, settings ...string) (*postgresCluster, error) {
	c.config = append(c.config, settings...)
	if err := c.onFreePort(ctx, c.start); err != nil {
		return nil, errors.Join(err, c.stop())
	}
	return c, nil
}

// initdb makes a cluster that was never started. On error nothing is left behind.
func initdb(ctx context.Context, postgres string) (*postgresCluster, error) {
	account, err := postgresAccount()
	if err != nil {
		return nil, err
	}
	c := &postgresCluster{bin: filepath.Dir(postgres), config: slices.Concat(fastSettings, advised, loopbackOnly)}
	return c.filled(ctx, account, filepath.Join(c.bin, "initdb"), "--pgdata="+dataDir,
		"--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions")
}

// copy makes a cluster with the settings and the data of one that does not run, its system
// identifier included, and does not start it. On error nothing is left behind.
func (c *postgresCluster) copy(ctx context.Context) (*postgresCluster, error) {
	twin := &postgresCluster{bin: c.bin, config: slices.Clip(c.config)}
	return twin.filled(ctx, c.account, "cp", "-a", c.data(), dataDir)
}

// filled returns the cluster with a directory, which a command has filled. On error nothing is left
// behind.
func (c *postgresCluster) filled(ctx context.Context, account *account, cmd ...string) (_ *postgresCluster, err error) {
	if c.node, err = newNode(account); err != nil {
		return nil, err
	}
	// Under a supervisor as the server is, so that it leaves nothing when we are killed.
	if err := c.run(ctx, nil, stopPostgres, cmd...); err != nil {
		return nil, errors.Join(err, c.stop())
	}
	return c, nil
}

// dataDir is within the directory of the node, in which its commands run.
const dataDir = "data"

func (c *postgresCluster) data() string { return filepath.Join(c.dir, dataDir) }

// put writes a file into the data directory, which only the server may read.
func (c *postgresCluster) put(name string, text []byte) error {
	path := filepath.Join(c.data(), name)
	if err := os.WriteFile(path, text, 0o600); err != nil || c.account == nil {
		return err
	}
	return os.Chown(path, c.account.uid, c.account.gid)
}

var acceptsConnections = regexp.MustCompile(`(database system is ready to accept)`)

// start starts the postmaster and returns once it takes connections. The one before has ended.
func (c *postgresCluster) start(ctx context.Context) error {
	argv := []string{filepath.Join(c.bin, "postgres"), "-D", c.data(), "-p", strconv.Itoa(c.port)}
	for _, setting := range c.config {
		argv = append(argv, "-c", setting)
	}
	return c.run(ctx, acceptsConnections, stopPostgres, argv...)
}

// restart starts the server on the port it had, and a standby for the first time. It is shut down
// in good order first if it still runs. After a crash the old server's children need a moment to
// notice, and until then a new one refuses to touch their shared memory.
func (c *postgresCluster) restart(ctx context.Context) error {
	if c.port == 0 {
		return c.onFreePort(ctx, c.start)
	}
	if err := c.end(fastShutdown); err != nil {
		return err
	}
	for {
		err := c.start(ctx)
		if !errors.Is(err, errExited) || ctx.Err() != nil {
			return err
		}
	}
}

// fastShutdown ends a server and its connections in good order.
const fastShutdown = syscall.SIGINT

func (c *postgresCluster) url(database string) string {
	return postgresURL("postgres", c.port, database, c.security)
}

// postgresURL is without TLS unless the parameters say otherwise.
func postgresURL(user string, port int, database, parameters string) string {
	return (&url.URL{
		Scheme:   "postgres",
		User:     url.User(user),
		Host:     address(port),
		Path:     "/" + database,
		RawQuery: cmp.Or(parameters, "sslmode=disable"),
	}).String()
}

func (c *postgresCluster) String() string { return "Postgres on port " + strconv.Itoa(c.port) }

// PostgresServer is a Postgres of one test's own, to crash, pause, restart and reconfigure. Its
// methods fail the test on error and must be called from the test's goroutine.
type PostgresServer struct {
	own
	cluster *postgresCluster
}

// OwnPostgres starts a private Postgres and stops it at the end of the test. It is fast and not
// durable, unless the settings, each name=value, say otherwise:
//
//	OwnPostgres(t, "fsync=on", "synchronous_commit=on", "full_page_writes=on")
//
// All servers that a test binary gets from it have the same system identifier, as a server and its
// copy do. That of the shared Postgres is another one.
func OwnPostgres(t testing.TB, settings ...string) *PostgresServer {
	t.Helper()
	ctx := starting(t)
	cluster := must(must(freshCluster(postgresService.own(t)))(t).copy(ctx))(t)
	cluster = must(cluster.started(ctx, settings...))(t)
	s := &PostgresServer{own{t: t, server: cluster}, cluster}
	t.Cleanup(s.Stop)
	return s
}

// URL returns the URL of the server's one database, which is empty at first. A restarted server has
// the same.
func (s *PostgresServer) URL() string { return s.cluster.url("postgres") }

// Run runs one of the client programs that belong to the server, such as pg_dump or psql, and
// returns what it prints. It must succeed.
func (s *PostgresServer) Run(program string, args ...string) string {
	s.t.Helper()
	out, err := output(s.t.Context(), filepath.Join(s.cluster.bin, program), args...)
	s.must("run a client of", err)
	return out
}

// Psql is the path of psql: on PATH, or beside the server.
func Psql(t testing.TB) string {
	t.Helper()
	if path, err := exec.LookPath("psql"); err == nil {
		return path
	}
	return filepath.Join(filepath.Dir(postgresService.own(t)), "psql")
}

// Pool migrates the database if need be and returns a new pool on it, closed at the end of the
// test.
func (s *PostgresServer) Pool() *pgxpool.Pool {
	s.t.Helper()
	s.must("migrate", migrate(s.t.Context(), s.URL()))
	return newPool(s.t, s.URL())
}

// Standby returns a copy of the server as it is now, a standby that has received nothing since and
// that is not running: Restart starts it, and then pg_promote makes it the primary. The server
// itself is restarted on the way.
func (s *PostgresServer) Standby() *PostgresServer {
	s.t.Helper()
	standby := s.Copy()
	s.must("mark the copy of", standby.cluster.put("standby.signal", nil))
	return standby
}

// Copy returns a copy of the server's data as a clean stop leaves them, a server that is not
// running: Restart starts it. The server itself is restarted on the way.
func (s *PostgresServer) Copy() *PostgresServer {
	s.t.Helper()
	ctx := starting(s.t)
	s.must("shut down", s.cluster.end(fastShutdown))
	cluster := must(s.cluster.copy(ctx))(s.t)
	twin := &PostgresServer{own{t: s.t, server: cluster}, cluster}
	s.t.Cleanup(twin.Stop)
	s.must("restart", s.cluster.restart(ctx))
	return twin
}

// createDatabase makes a database and returns its URL. With a template it starts as a copy of it.
func (s *postgresServer) createDatabase(ctx context.Context, name, template string) (string, error) {
	sql := "CREATE DATABASE " + quote(name)
	if template != "" {
		sql += " TEMPLATE " + quote(template)
	}
	sql += " STRATEGY file_copy" // the other one writes every page to the log as well
	if err := s.admin(ctx, sql); err != nil {
		return "", fmt.Errorf("create a database for the test, at %s: %w", s.source, err)
	}
	return inDatabase(s.url, name), nil
}

// dropDatabase ends whatever is still connected to the database and removes it, if it is there. A
// private server goes with all its databases, so there it need not succeed.
func (s *postgresServer) dropDatabase(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	err := s.admin(ctx, "DROP DATABASE IF EXISTS "+quote(name)+" WITH (FORCE)")
	if s.private {
		return nil
	}
	return err
}

// createTemplate makes a database that holds the migrated schema and what setup makes, to be
// copied.
func (s *postgresServer) createTemplate(ctx context.Context, name, setup string) error {
	url, err := s.createDatabase(ctx, name, "")
	if err == nil {
		err = migrate(ctx, url)
	}
	if err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	_, err = conn.PgConn().Exec(ctx, setup).ReadAll()
	if err := errors.Join(err, conn.Close(ctx)); err != nil {
		return fmt.Errorf("set up a template for the databases of tests: %w", err)
	}
	// Without connections, since a template cannot be copied while anybody is connected to it.
	return s.admin(ctx, "ALTER DATABASE "+quote(name)+" WITH ALLOW_CONNECTIONS false")
}

func migrate(ctx context.Context, url string) error {
	db, err := sql.Open("pgx", url)
	if err != nil {
		return err
	}
	return errors.Join(migrations.Up(ctx, db), db.Close())
}

// admin runs one statement as the administrator.
func (s *postgresServer) admin(ctx context.Context, sql string) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil || s.conn.IsClosed() {
		if s.conn, err = pgx.Connect(ctx, s.url); err != nil {
			return err
		}
	}
	_, err = s.conn.Exec(ctx, sql)
	return err
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

// inDatabase returns a connection string, in either of Postgres's two forms, for another database.
func inDatabase(conn, database string) string {
	if u, err := url.Parse(conn); err == nil && strings.HasPrefix(u.Scheme, "postgres") {
		u.Path = "/" + database
		return u.String()
	}
	return conn + " dbname=" + database // the later of two settings counts
}

// PgBouncerServer is a PgBouncer of one test's own, in front of one database.
type PgBouncerServer struct {
	node
	backend *pgconn.Config

	Version string // such as "PgBouncer 1.21.0"
}

var processUp = regexp.MustCompile(`process up: (PgBouncer [0-9.]+)`)

// PgBouncer starts a private PgBouncer in front of the database that a URL names, in a pool mode:
// session, transaction or statement. It keeps one connection to Postgres, so that clients meet each
// other's remains, unless the settings, each name=value of its configuration file, say otherwise.
// It ends with the test.
func PgBouncer(t testing.TB, database, poolMode string, settings ...string) *PgBouncerServer {
	t.Helper()
	bin := pgbouncerService.own(t)
	account := must(postgresAccount())(t) // PgBouncer refuses to run as root too
	n := &PgBouncerServer{node: must(newNode(account))(t), backend: must(pgconn.ParseConfig(database))(t)}
	t.Cleanup(func() { check(t, n.stop()) })
	settings = append([]string{"pool_mode=" + poolMode}, settings...)
	file := filepath.Join(n.dir, "pgbouncer.ini")
	check(t, n.onFreePort(starting(t), func(ctx context.Context) error {
		if err := os.WriteFile(file, []byte(n.config(settings)), 0o644); err != nil {
			return err
		}
		return n.run(ctx, processUp, stopByKill, bin, file)
	}))
	n.Version = n.logged(processUp)
	return n
}

// config accepts every client, as the user in the URL of the database.
func (n *PgBouncerServer) config(settings []string) string {
	backend := fmt.Sprintf("%s = host=%s port=%d user=%s", n.backend.Database, n.backend.Host, n.backend.Port, inQuotes(n.backend.User))
	if n.backend.Password != "" { // empty quotes are a syntax error there
		backend += " password=" + inQuotes(n.backend.Password)
	}
	lines := []string{
		"[databases]",
		backend,
		"[pgbouncer]",
		"listen_addr = " + loopback,
		"listen_port = " + strconv.Itoa(n.port),
		"unix_socket_dir =",
		"server_tls_sslmode = prefer",
		"auth_type = any",
		"default_pool_size = 1",
		"max_client_conn = 200",
	}
	return strings.Join(append(lines, settings...), "\n") + "\n"
}

func inQuotes(value string) string { return "'" + strings.ReplaceAll(value, "'", "''") + "'" }

// URL returns the URL of the database behind the PgBouncer.
func (n *PgBouncerServer) URL() string {
	return postgresURL(n.backend.User, n.port, n.backend.Database, "")
}
