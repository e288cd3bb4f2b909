package server_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/examples/booking/server"
	"github.com/fencedb/fencedb/lease"
)

// environment is one that is fine, with changes: pairs of a variable and its value.
func environment(changes ...string) func(string) string {
	values := map[string]string{
		server.PostgresVar: "postgres://me:secret@db.example:5432/tables",
		server.RedisVar:    "redis://:secret@redis.example:6379/3",
	}
	for i := 0; i < len(changes); i += 2 {
		values[changes[i]] = changes[i+1]
	}
	return func(name string) string { return values[name] }
}

func TestSettingsHaveDefaults(t *testing.T) {
	t.Parallel()
	s, err := server.SettingsFrom(environment())
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:8080", s.Addr)
	require.Equal(t, "booking", s.Namespace)
	require.Equal(t, []time.Duration{10 * time.Second, 2 * time.Second, 15 * time.Second}, []time.Duration{s.TTL, s.Wait, s.Shutdown})
	require.Equal(t, "db.example", s.Postgres.ConnConfig.Host)
	require.Equal(t, "booking", s.Postgres.ConnConfig.RuntimeParams["application_name"])
	require.Equal(t, "redis.example:6379", s.Redis.Addr)
	require.Equal(t, lease.ClientName("booking"), s.Redis.ClientName)
}

func TestSettingsAreRead(t *testing.T) {
	t.Parallel()
	s, err := server.SettingsFrom(environment(
		server.AddrVar, ":80", server.NamespaceVar, "test", server.TTLVar, "1m", server.WaitVar, "0s", server.ShutdownVar, "1s",
		server.PostgresVar, "postgres://db.example/tables?application_name=mine", server.RedisVar, "redis://redis.example?client_name=mine",
	))
	require.NoError(t, err)
	require.Equal(t, ":80", s.Addr)
	require.Equal(t, "test", s.Namespace)
	require.Equal(t, []time.Duration{time.Minute, 0, time.Second}, []time.Duration{s.TTL, s.Wait, s.Shutdown})
	require.Equal(t, "mine", s.Postgres.ConnConfig.RuntimeParams["application_name"])
	require.Equal(t, "mine", s.Redis.ClientName)
}

func TestEverySettingThatIsWrongIsNamed(t *testing.T) {
	t.Parallel()
	for name, values := range map[string][]string{
		server.AddrVar:     {"8080", "localhost"},
		server.PostgresVar: {"", "secret", "postgres://me:secret@db.example:port/tables"},
		server.RedisVar:    {"", "secret", "http://:secret@redis.example", "redis://:sec%ret@redis.example"},
		server.TTLVar:      {"10", "0s", "-1s", "soon"},
		server.WaitVar:     {"2", "-1s"},
		server.ShutdownVar: {"15", "-1s"},
	} {
		for _, value := range values {
			_, err := server.SettingsFrom(environment(name, value))
			require.ErrorContains(t, err, name, value)
			require.NotContains(t, err.Error(), "sec", "a URL may hold a password")
		}
	}

	_, err := server.SettingsFrom(environment(server.TTLVar, "soon", server.WaitVar, "later"))
	require.ErrorContains(t, err, server.TTLVar)
	require.ErrorContains(t, err, server.WaitVar)
}
