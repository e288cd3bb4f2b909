package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/lease"
)

// environment is one that is fine, with changes: pairs of a variable and its value.
func environment(changes ...string) func(string) string {
	values := map[string]string{
		postgresVar: "postgres://me:secret@db.example:5432/tables",
		redisVar:    "redis://:secret@redis.example:6379/3",
	}
	for i := 0; i < len(changes); i += 2 {
		values[changes[i]] = changes[i+1]
	}
	return func(name string) string { return values[name] }
}

func TestSettingsHaveDefaults(t *testing.T) {
	t.Parallel()
	s, err := settingsFrom(environment())
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:8080", s.Addr)
	require.Equal(t, "booking", s.Namespace)
	require.Equal(t, 2*time.Second, s.Wait)
	require.Equal(t, "db.example", s.Postgres.ConnConfig.Host)
	require.Equal(t, "redis.example:6379", s.Redis.Addr)
	require.Equal(t, lease.ClientName("booking"), s.Redis.ClientName)
}

func TestSettingsAreRead(t *testing.T) {
	t.Parallel()
	s, err := settingsFrom(environment(
		addrVar, ":80", namespaceVar, "test",
		redisVar, "redis://redis.example?client_name=mine",
	))
	require.NoError(t, err)
	require.Equal(t, ":80", s.Addr)
	require.Equal(t, "test", s.Namespace)
	require.Equal(t, "mine", s.Redis.ClientName)
}

func TestASettingThatIsWrongIsNamed(t *testing.T) {
	t.Parallel()
	for name, values := range map[string][]string{
		postgresVar: {"", "secret", "postgres://me:secret@db.example:port/tables"},
		redisVar:    {"", "secret", "http://:secret@redis.example", "redis://:sec%ret@redis.example"},
	} {
		for _, value := range values {
			_, err := settingsFrom(environment(name, value))
			require.ErrorContains(t, err, name, value)
			require.NotContains(t, err.Error(), "sec", "a URL may hold a password")
		}
	}
}
