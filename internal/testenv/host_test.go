package testenv

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

var errNothing = errors.New("nothing")

// bareHost is a machine without servers and settings.
func bareHost() host {
	return host{
		getenv:   env(),
		lookPath: tools(),
		glob:     func(string) ([]string, error) { return nil, nil },
		output:   func(context.Context, string, ...string) (string, error) { return "", errNothing },
	}
}

// env is an environment of names and values in turn.
func env(pairs ...string) func(string) string {
	return func(name string) string {
		if i := slices.Index(pairs, name); i >= 0 {
			return pairs[i+1]
		}
		return ""
	}
}

// tools is a PATH that leads to these programs.
func tools(paths ...string) func(string) (string, error) {
	return func(name string) (string, error) {
		for _, path := range paths {
			if filepath.Base(path) == name {
				return path, nil
			}
		}
		return "", errNothing
	}
}

func TestNothingToBeHadIsOneErrorThatHelps(t *testing.T) {
	h := bareHost()
	h.lookPath = tools("/usr/bin/apt-get")
	_, err := obtainPostgres(t.Context(), h)
	var missing *UnavailableError
	require.ErrorAs(t, err, &missing)
	require.Equal(t, "Postgres", missing.Server)
	require.Len(t, missing.Tried, 2, "environment, programs")
	require.Equal(t, "sudo apt-get install --yes postgresql", missing.Remedy)

	_, err = obtainRedis(t.Context(), h, false)
	require.ErrorAs(t, err, &missing)
	require.Equal(t, "sudo apt-get install --yes redis-server", missing.Remedy)
	for _, tried := range missing.Tried {
		require.Contains(t, err.Error(), tried)
	}
}

func TestTheRemedyFitsTheMachine(t *testing.T) {
	for tool, want := range map[string]string{
		"apt-get": "sudo apt-get install --yes redis-server",
		"brew":    "brew install redis",
	} {
		h := bareHost()
		h.lookPath = tools("/bin/" + tool)
		require.Equal(t, want, redisService.remedy(h, "otherwise"))
	}
	h := bareHost()
	require.Equal(t, "otherwise", redisService.remedy(h, "otherwise"))
}

func TestServersOfATestsOwnAreNeverExternal(t *testing.T) {
	h := bareHost()
	h.getenv = env(redisURLVar, "redis://127.0.0.1/0")
	_, _, err := redisService.locate(t.Context(), h, true)
	var missing *UnavailableError
	require.ErrorAs(t, err, &missing)
	require.Len(t, missing.Tried, 1)
}

func TestThisMachineMissesNothing(t *testing.T) {
	require.Empty(t, Missing(t.Context(), true))
	require.Empty(t, Missing(t.Context(), false))
}

// hostWithPostgres is a machine with several versions, all whole except 18, which has no initdb.
func hostWithPostgres() host {
	h := bareHost()
	h.glob = func(pattern string) ([]string, error) {
		if dir, file := filepath.Split(pattern); file == "initdb" && dir != "/usr/lib/postgresql/18/bin/" {
			return []string{pattern}, nil
		}
		return map[string][]string{
			"/usr/lib/postgresql/*/bin/postgres": {
				"/usr/lib/postgresql/15/bin/postgres", "/usr/lib/postgresql/17/bin/postgres",
				"/usr/lib/postgresql/18/bin/postgres", "/usr/lib/postgresql/9.6/bin/postgres",
			},
			"/usr/pgsql-*/bin/postgres": {"/usr/pgsql-14/bin/postgres"},
		}[pattern], nil
	}
	h.output = func(_ context.Context, bin string, _ ...string) (string, error) {
		return "postgres (PostgreSQL) " + number.FindString(filepath.Dir(bin)) + " (Debian)", nil
	}
	return h
}

func TestTheNewestUsablePostgresIsTaken(t *testing.T) {
	h := hostWithPostgres()
	program, err := postgresService.program(t.Context(), h)
	require.NoError(t, err)
	require.Equal(t, "/usr/lib/postgresql/17/bin/postgres", program)
}

func TestPathComesBeforeKnownPlaces(t *testing.T) {
	h := hostWithPostgres()
	h.lookPath = tools("/opt/15/bin/postgres")
	program, err := postgresService.program(t.Context(), h)
	require.NoError(t, err)
	require.Equal(t, "/opt/15/bin/postgres", program)
}

func TestALinkOnPathIsFollowed(t *testing.T) {
	dir := t.TempDir()
	real := filepath.Join(dir, "18", "postgres")
	require.NoError(t, os.Mkdir(filepath.Dir(real), 0o755))
	require.NoError(t, os.WriteFile(real, nil, 0o755))
	require.NoError(t, os.Symlink(real, filepath.Join(dir, "postgres")))
	h := hostWithPostgres()
	h.lookPath = tools(filepath.Join(dir, "postgres"))
	h.output = func(context.Context, string, ...string) (string, error) { return "postgres (PostgreSQL) 18.1", nil }
	found, err := postgresService.program(t.Context(), h)
	require.NoError(t, err)
	require.Equal(t, "18", filepath.Base(filepath.Dir(found)))
}

func TestAnOldPostgresWillNotDo(t *testing.T) {
	h := hostWithPostgres()
	h.getenv = env(postgresBinVar, "/usr/pgsql-14/bin")
	_, err := postgresService.program(t.Context(), h)
	require.Error(t, err, "though there is a newer one: the variable says which to take")

	h.getenv = env()
	h.glob = func(string) ([]string, error) { return []string{"/usr/pgsql-14/bin/postgres"}, nil }
	_, err = postgresService.program(t.Context(), h)
	require.ErrorContains(t, err, "/usr/pgsql-14/bin")
}

func TestValkeyWillDo(t *testing.T) {
	h := bareHost()
	h.lookPath = tools("/usr/bin/valkey-server")
	bin, err := redisService.program(t.Context(), h)
	require.NoError(t, err)
	require.Equal(t, "/usr/bin/valkey-server", bin)

	h = bareHost()
	h.glob = func(pattern string) ([]string, error) {
		if pattern == "/opt/homebrew/bin/*-server" {
			return []string{"/opt/homebrew/bin/mysql-server", "/opt/homebrew/bin/redis-server"}, nil
		}
		return nil, nil
	}
	bin, err = redisService.program(t.Context(), h)
	require.NoError(t, err)
	require.Equal(t, "/opt/homebrew/bin/redis-server", bin)
}
