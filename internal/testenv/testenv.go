// Package testenv finds or starts the Postgres and the Redis that tests, examples and demos run on,
// so that no set-up is needed.
//
// # Where the servers come from
//
// For each of the two, the first that is available:
//
//  1. the address in FENCEDB_POSTGRES_URL or FENCEDB_REDIS_URL. If that server does
//     not answer, testenv fails instead of looking further;
//  2. postgres and initdb, or redis-server or valkey-server, from PATH or from where distributions
//     keep them, started as a private process on a free loopback port with a temporary data
//     directory. FENCEDB_POSTGRES_BIN names a directory to take Postgres from instead, which is how
//     the suite runs on another version.
//
// When neither works, the error is one [UnavailableError] that lists what was tried and the
// command that would help. A test that asks then fails; it is never skipped.
//
// OwnRedis, OwnPostgres, PgBouncer, Sentinel and Cluster always start processes of their own (2),
// whatever the environment says, because the tests that ask for them kill, pause and reconfigure
// the server.
//
// # What is shared and what is not
//
// A test binary starts each server at most once, at first use. Each test gets a database of its own
// and a key namespace of its own, so tests run in parallel, and so do test binaries: two clones of
// the repository never meet, and two binaries on one external server never touch each other's data.
// A test that fails keeps its database and its keys, and its log says where they are.
//
// The data directories are in memory on Linux machines that have plenty, because a database per
// test costs ten times as much on many a disk; TMPDIR overrides that.
//
// # What is left behind
//
// Nothing, however the program ends: return, panic, os.Exit, Ctrl-C or SIGKILL. Each server is the
// child of a small shell (supervise.sh) that holds one end of a pipe and outlives us just long
// enough to stop the server and remove its directory once our end is closed. No signal handler
// takes part, so none can be forgotten, and importing this package does not change how a program
// reacts to signals. On an external server a database or key can stay behind if the program is
// killed.
//
// # As root
//
// Postgres refuses to run as root. It is then started as the user postgres or, without one, nobody.
package testenv

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
)

// cleanupTimeout bounds what is done after a test: drop its database, delete its keys.
const cleanupTimeout = 30 * time.Second

// PostgresURL returns the URL of a new, empty database on the shared Postgres. The database is
// dropped when the test passes; when it fails, the database stays and the log says where.
func PostgresURL(t testing.TB) string {
	t.Helper()
	return newDatabase(t, "")
}

// Postgres returns a pool on a new, migrated database on the shared Postgres. The pool is closed at
// the end of the test, which must have given back every connection by then. The database is dropped
// when the test passes; when it fails, the database stays and the log says where.
//
// The database holds what the setup has made, SQL that runs once for all tests with the same: to
// protect a table costs three times as much as to copy a database.
func Postgres(t testing.TB, setup ...string) *pgxpool.Pool {
	t.Helper()
	return newPool(t, newDatabase(t, must(sharedTemplate(strings.Join(setup, ";\n")))(t)))
}

func newDatabase(t testing.TB, template string) string {
	t.Helper()
	server := must(sharedPostgres())(t)
	name := "fencedb_test_" + unique(t)
	url := must(server.createDatabase(t.Context(), name, template))(t)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("testenv: database kept: %s%s", url, keptUntil(server.private, postgresURLVar))
			return
		}
		if err := server.dropDatabase(name); err != nil {
			t.Errorf("testenv: %v", err)
		}
	})
	return url
}

func newPool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	pool := must(pgxpool.New(t.Context(), url))(t)
	t.Cleanup(func() { closePool(t, pool, cleanupTimeout) })
	return pool
}

// closePool waits for a limited time, because Close waits for ever for connections that the test
// has not returned.
func closePool(t testing.TB, pool *pgxpool.Pool, patience time.Duration) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		pool.Close()
	}()
	select {
	case <-closed:
	case <-time.After(patience):
		t.Errorf("testenv: the test has ended and still holds %d connections of its pool", pool.Stat().AcquiredConns())
	}
}

// Redis returns a client of the shared Redis, closed at the end of the test. Other tests use that
// Redis at the same time: keep to the keys of a [Namespace], and take [OwnRedis] for anything that
// concerns the server as a whole.
func Redis(t testing.TB) *redis.Client {
	t.Helper()
	return must(sharedRedis())(t).client(t)
}

func (s *redisServer) client(t testing.TB) *redis.Client {
	t.Helper()
	return closedAtEnd(t, newRedisClient(must(redis.ParseURL(s.url))(t)))
}

// Namespace returns a namespace for keys on the shared Redis that nobody else uses: lower-case
// letters, digits and underscores. Every key that contains it is deleted when the test passes; when
// it fails, the keys stay and the log names them, or the first hundred.
func Namespace(t testing.TB) string {
	t.Helper()
	const maxNamed = 100 // of the keys in the log of a failed test
	server, namespace := must(sharedRedis())(t), unique(t)
	client := server.client(t)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		var keys []string
		scan := client.Scan(ctx, 0, "*"+namespace+"*", 1000).Iterator() // with no character special to MATCH
		for scan.Next(ctx) {
			keys = append(keys, scan.Val())
		}
		switch {
		case scan.Err() != nil:
			t.Errorf("testenv: look for the keys of %s: %v", namespace, scan.Err())
		case len(keys) == 0:
		case t.Failed():
			t.Logf("testenv: %d keys kept on %s: %q%s", len(keys), server.url, keys[:min(maxNamed, len(keys))],
				keptUntil(server.private, redisURLVar))
		default:
			if err := client.Unlink(ctx, keys...).Err(); err != nil {
				t.Errorf("testenv: delete the keys of %s: %v", namespace, err)
			}
		}
	})
	return namespace
}

// keptUntil is the end of the message about what a failed test leaves.
func keptUntil(private bool, variable string) string {
	if !private {
		return ""
	}
	return " (until this test binary ends; to look at it afterwards, run the test with " + variable +
		" set to a server that stays, such as the one of docker-compose.yml)"
}

var notInNames = regexp.MustCompile(`[^a-z0-9]`)

// unique returns a name that tells which test it belongs to and that no other run has: lower-case
// letters, digits and underscores, short enough for a Postgres identifier.
func unique(t testing.TB) string {
	const most = 36
	name := notInNames.ReplaceAllString(strings.ToLower(t.Name()), "_")
	return name[:min(most, len(name))] + "_" + random()
}

// random returns some lower-case letters and digits that nobody else has.
func random() string { return strconv.FormatUint(rand.Uint64()>>16, 36) }

// The servers of this test binary.
var (
	sharedPostgres = once(func(ctx context.Context) (*postgresServer, error) { return obtainPostgres(ctx, thisHost()) })

	sharedRedis = once(func(ctx context.Context) (*redisServer, error) { return obtainRedis(ctx, thisHost(), false) })
)

var (
	// templates are the databases that those of tests are copies of, by what was set up in them.
	templates memo[string]

	// freshClusters are those that the clusters of tests are copies of, by the program postgres. To
	// copy one takes a tenth of initdb's time.
	freshClusters memo[*postgresCluster]
)

// sharedTemplate returns the name of a migrated database in which setup has run.
func sharedTemplate(setup string) (string, error) {
	return templates.of(setup, func(ctx context.Context) (string, error) {
		server, err := sharedPostgres()
		if err != nil {
			return "", err
		}
		name := "fencedb_template_" + random()
		atEnd(func() error { return server.dropDatabase(name) })
		return name, server.createTemplate(ctx, name, setup)
	})
}

// freshCluster returns a cluster as initdb makes it, which is never started.
func freshCluster(postgres string) (*postgresCluster, error) {
	return freshClusters.of(postgres, func(ctx context.Context) (*postgresCluster, error) {
		c, err := initdb(ctx, postgres)
		if err == nil {
			atEnd(c.stop)
		}
		return c, err
	})
}

// memo has what was made once for each key, at its first use.
type memo[S any] struct {
	mu   sync.Mutex
	made map[string]func() (S, error)
}

func (m *memo[S]) of(key string, start func(context.Context) (S, error)) (S, error) {
	m.mu.Lock()
	made := m.made[key]
	if made == nil {
		made = once(start)
		if m.made == nil {
			m.made = map[string]func() (S, error){}
		}
		m.made[key] = made
	}
	m.mu.Unlock()
	return made()
}

// once starts something at its first use: a test that comes after a failed start gets the same
// error, at once.
func once[S any](start func(context.Context) (S, error)) func() (S, error) {
	return sync.OnceValues(func() (S, error) {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		return start(ctx)
	})
}

var ends struct {
	mu    sync.Mutex
	stops []func() error
}

func atEnd(stop func() error) {
	ends.mu.Lock()
	defer ends.mu.Unlock()
	ends.stops = append(ends.stops, stop)
}

// Main runs the tests, stops the servers they started and exits. Call it from TestMain:
//
//	func TestMain(m *testing.M) { testenv.Main(m) }
//
// A test binary without it leaves nothing behind either; with it, the servers have ended before the
// test binary does, and it fails when one of them cannot be stopped.
func Main(m *testing.M) {
	code := m.Run()
	ends.mu.Lock()
	for _, stop := range ends.stops {
		if err := stop(); err != nil {
			fmt.Fprintln(os.Stderr, "testenv:", err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

// starting bounds what it takes a test to have its servers ready.
func starting(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	t.Cleanup(cancel)
	return ctx
}

// await calls done until it returns true, because servers do not report when they agree.
func await(t testing.TB, what string, done func(context.Context) bool) {
	t.Helper()
	ctx := starting(t)
	for !done(ctx) {
		select {
		case <-ctx.Done():
			t.Fatalf("testenv: waited for %s: %v", what, context.Cause(ctx))
		case <-time.After(pollEvery):
		}
	}
}

// errExited: a server has ended by itself.
var errExited = errors.New("the server has exited")

// check ends the test on an error.
func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
}

// must takes what a function returns, and gives the value to a test, which ends on an error.
func must[V any](value V, err error) func(testing.TB) V {
	return func(t testing.TB) V {
		t.Helper()
		check(t, err)
		return value
	}
}

// Options for [Start].
type Options struct {
	// PrivateRedis starts a Redis whatever the environment names, for demos that flush it and call
	// [Env.StopRedis].
	PrivateRedis bool

	// Postgres has settings, each name=value, for a Postgres that is started here. See
	// [OwnPostgres].
	Postgres []string
}

// Env is what a demo or an example runs on. Both URLs can be handed to other processes.
type Env struct {
	PostgresURL string   // an empty database of its own, dropped by Close
	RedisURL    string   // shared with others if it came from the environment: use a namespace
	Notes       []string // what was found or started, one sentence each, for the user to read

	private *redisNode // nil if the Redis is that of the environment
	close   func() error
}

// Start finds or starts a Postgres and a Redis. They end with Close or with this program, however
// it ends; cancelling ctx stops the search but not what has been started. On error nothing is left
// running.
func Start(ctx context.Context, opts Options) (*Env, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return start(ctx, thisHost(), opts)
}

func start(ctx context.Context, h host, opts Options) (*Env, error) {
	// Before anything is started, so that the error names both servers when both are missing.
	_, _, noPostgres := postgresService.locate(ctx, h, false)
	_, _, noRedis := redisService.locate(ctx, h, opts.PrivateRedis)
	if err := errors.Join(noPostgres, noRedis); err != nil {
		return nil, err
	}
	postgres, err := obtainPostgres(ctx, h, opts.Postgres...)
	if err != nil {
		return nil, err
	}
	redis, err := obtainRedis(ctx, h, opts.PrivateRedis)
	if err != nil {
		return nil, errors.Join(err, postgres.stop())
	}
	database := "fencedb_demo_" + random()
	env := &Env{RedisURL: redis.url, Notes: []string{postgres.source, redis.source}, private: redis.node}
	env.close = sync.OnceValue(func() error {
		return errors.Join(postgres.dropDatabase(database), postgres.stop(), redis.stop())
	})
	if env.PostgresURL, err = postgres.createDatabase(ctx, database, ""); err != nil {
		return nil, errors.Join(err, env.Close())
	}
	// Main closes what the examples of a package leave open. Until then this keeps the pipes to the
	// supervisors from being garbage collected, which would end the servers of a program that only
	// remembered their addresses.
	atEnd(env.Close)
	return env, nil
}

// StopRedis ends the Redis of [Options].PrivateRedis, which keeps nothing on disk. One call of this
// and StartRedis at a time, and none after Close.
func (e *Env) StopRedis() error { return e.private.end(syscall.SIGTERM) }

// StartRedis starts it again, on its port, and returns once it answers.
func (e *Env) StartRedis(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return e.private.start(ctx)
}

// Close stops what was started and drops the database. Calling it again does nothing.
func (e *Env) Close() error { return e.close() }
