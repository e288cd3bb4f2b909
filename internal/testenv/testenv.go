package testenv

import (
	"context"
	"math/rand/v2"
	"strconv"
	"strings"
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
func Postgres(t testing.TB) *pgxpool.Pool {
	t.Helper()
	template, err := sharedTemplate()
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	return newPool(t, newDatabase(t, template))
}

func newDatabase(t testing.TB, template string) string {
	t.Helper()
	server, err := sharedPostgres()
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	name := "fencedb_test_" + unique(t)
	url, err := server.createDatabase(t.Context(), name, template)
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("testenv: database kept: %s%s", url, keptUntil(server.private, postgresURLVar))
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		if err := server.dropDatabase(ctx, name); err != nil {
			t.Errorf("testenv: %v", err)
		}
	})
	return url
}

func newPool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	t.Cleanup(func() { closePool(t, pool, cleanupTimeout) })
	return pool
}

// closePool waits only so long, since Close waits forever for a connection that the test has not
// given back.
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
	server, err := sharedRedis()
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	return server.client(t)
}

func (s *redisServer) client(t testing.TB) *redis.Client {
	t.Helper()
	options, err := redis.ParseURL(s.url)
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	client := newRedisClient(options)
	t.Cleanup(func() { _ = client.Close() }) // the test may have closed it
	return client
}

// Namespace returns a namespace for keys on the shared Redis that nobody else uses: lower-case
// letters, digits and underscores. Every key that contains it is deleted when the test passes; when
// it fails, the keys stay and the log names them, or the first hundred.
func Namespace(t testing.TB) string {
	t.Helper()
	server, err := sharedRedis()
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	const maxNamed = 100 // of the keys in the log of a failed test
	namespace := unique(t)
	client := server.client(t)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		keys, err := keysOf(ctx, client, namespace)
		switch {
		case err != nil:
			t.Errorf("testenv: look for the keys of %s: %v", namespace, err)
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

// keysOf returns all keys that contain the namespace, which holds no character special to MATCH.
func keysOf(ctx context.Context, client *redis.Client, namespace string) ([]string, error) {
	var keys []string
	for scan := client.Scan(ctx, 0, "*"+namespace+"*", 1000).Iterator(); ; {
		if !scan.Next(ctx) {
			return keys, scan.Err()
		}
		keys = append(keys, scan.Val())
	}
}

// keptUntil ends the message about what a failed test leaves to look at.
func keptUntil(private bool, variable string) string {
	if !private {
		return ""
	}
	return " (until this test binary ends; to look at it afterwards, run the test with " + variable +
		" set to a server that stays, such as the one of docker-compose.yml)"
}

// unique returns a name that tells which test it belongs to and that no other run has: lower-case
// letters, digits and underscores, short enough for a Postgres identifier.
func unique(t testing.TB) string {
	const most = 36
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '_'
	}, t.Name())
	return name[:min(most, len(name))] + "_" + strconv.FormatUint(rand.Uint64()>>16, 36)
}
