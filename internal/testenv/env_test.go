package testenv

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// endVar makes the test binary a program that starts both servers and ends in the given way, for
// the tests of what it leaves behind.
const endVar = "FENCEDB_TESTENV_TEST_END"

func TestMain(m *testing.M) {
	if way := os.Getenv(endVar); way != "" {
		startServersAndEnd(way)
		return
	}
	Main(m)
}

// startServersAndEnd says "started" on stdout once the servers run, and ends when its stdin does.
// It never calls Close.
func startServersAndEnd(way string) {
	env, err := Start(context.Background(), Options{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("started", env.PostgresURL, env.RedisURL)
	_, _ = io.Copy(io.Discard, os.Stdin)
	switch way {
	case "panic":
		panic("on purpose")
	case "log.Fatal":
		log.Fatal("on purpose")
	}
}

func TestStartGivesServersUntilClose(t *testing.T) {
	t.Parallel()
	env, err := Start(t.Context(), Options{})
	require.NoError(t, err)
	require.Len(t, env.Notes, 2)
	requireAnswers(t, env)
	require.NoError(t, env.Close())
	require.NoError(t, env.Close(), "again")
}

func TestAPrivateRedisIsNotTheOneOfTheEnvironmentAndRestartsEmpty(t *testing.T) {
	t.Parallel()
	h := thisHost()
	h.getenv = env(redisURLVar, "redis://127.0.0.1:1/0")
	env, err := start(t.Context(), h, Options{PrivateRedis: true})
	require.NoError(t, err)
	options, err := redis.ParseURL(env.RedisURL)
	require.NoError(t, err)
	client := newRedisClient(options)
	t.Cleanup(func() { _ = client.Close() })
	require.NoError(t, client.Set(t.Context(), "kept", "no", 0).Err())

	require.NoError(t, env.StopRedis())
	require.Error(t, client.Ping(t.Context()).Err())
	require.NoError(t, env.StartRedis(t.Context()))

	require.Zero(t, client.Exists(t.Context(), "kept").Val())
	require.NoError(t, env.Close())
	require.Error(t, client.Ping(t.Context()).Err())
}

func TestStartDropsItsDatabaseOnAnExternalServer(t *testing.T) {
	t.Parallel()
	own, h := OwnPostgres(t), thisHost()
	h.getenv = env(postgresURLVar, own.URL())
	env, err := start(t.Context(), h, Options{})
	require.NoError(t, err)
	requireAnswers(t, env)
	require.NotEqual(t, own.URL(), env.PostgresURL)
	databases := newPool(t, own.URL())
	require.Equal(t, 1, count(t, databases, "pg_database WHERE datname LIKE 'fencedb_demo_%'"))
	require.NoError(t, env.Close())
	require.Equal(t, 0, count(t, databases, "pg_database WHERE datname LIKE 'fencedb_demo_%'"))
}

func TestStartNamesEverythingThatIsMissing(t *testing.T) {
	_, err := start(t.Context(), bareHost(), Options{})
	joined, ok := err.(interface{ Unwrap() []error })
	require.True(t, ok)
	require.Len(t, joined.Unwrap(), 2)
}

func TestStartGivesPostgresItsSettings(t *testing.T) {
	t.Parallel()
	h := thisHost()
	h.getenv = env() // or it might take one that runs
	env, err := start(t.Context(), h, Options{PrivateRedis: true, Postgres: []string{"work_mem=5MB"}})
	require.NoError(t, err)
	var mem string
	require.NoError(t, newPool(t, env.PostgresURL).QueryRow(t.Context(), `SHOW work_mem`).Scan(&mem))
	require.Equal(t, "5MB", mem)
	require.NoError(t, env.Close())
}

func requireAnswers(t *testing.T, env *Env) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), env.PostgresURL)
	require.NoError(t, err)
	require.NoError(t, conn.Close(context.Background()))
	options, err := redis.ParseURL(env.RedisURL)
	require.NoError(t, err)
	client := newRedisClient(options)
	require.NoError(t, client.Ping(t.Context()).Err())
	require.NoError(t, client.Close())
}
