package testenv

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

var errNothing = errors.New("nothing")

// bareHost is a machine without servers, Docker or settings.
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
	require.Len(t, missing.Tried, 3, "environment, programs, Docker")
	require.Equal(t, "sudo apt-get install --yes postgresql", missing.Remedy)

	_, err = obtainRedis(t.Context(), h)
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
	_, err := redisService.locateOwn(t.Context(), h)
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

// dockerStandIn is a docker client that runs the server as a process of its own. It shows how
// testenv drives the client: what it tells a container, how it learns the address, and how it ends
// one.
const dockerStandIn = `#!/bin/sh
state=$STAND_IN_STATE
case $1 in
version)
	echo 27.0.0
	;;
run)
	shift
	while [ "$1" != redis:7 ]; do
		[ "$1" != --name ] || echo "$2" >"$state/name"
		[ "$1" != --publish ] || echo "$2" >"$state/publish"
		shift
	done
	shift 2 # the image, and its redis-server
	"$STAND_IN_REDIS" --port "$STAND_IN_PORT" "$@" &
	echo $! >"$state/pid"
	wait
	;;
port)
	[ "$2 $3" = "$(cat "$state/name") 6379/tcp" ] && echo "127.0.0.1:$STAND_IN_PORT"
	;;
rm)
	[ "$*" = "rm --force --volumes $(cat "$state/name")" ] && kill -KILL "$(cat "$state/pid")"
	;;
*)
	exit 1
	;;
esac
`

func TestDockerServesWhenThereIsNoRedis(t *testing.T) {
	state := t.TempDir()
	t.Setenv("STAND_IN_STATE", state)
	t.Setenv("STAND_IN_REDIS", redisBin(t))
	h := hostWithDocker(t, dockerStandIn)
	require.NoError(t, onFreePort(t.Context(), func(port int) error {
		t.Setenv("STAND_IN_PORT", strconv.Itoa(port))
		server, err := obtainRedis(t.Context(), h)
		if err != nil {
			return err
		}
		options, err := redis.ParseURL(server.url)
		require.NoError(t, err)
		client := newRedisClient(options)
		defer client.Close()
		require.NoError(t, client.Ping(t.Context()).Err())
		require.Equal(t, "noeviction", client.ConfigGet(t.Context(), "maxmemory-policy").Val()["maxmemory-policy"])

		require.NoError(t, server.stop())
		require.False(t, listening(options.Addr))
		return nil
	}))
	published, err := os.ReadFile(filepath.Join(state, "publish"))
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1::6379\n", string(published), "loopback only, on a port that Docker chooses")
}

func TestAContainerThatDoesNotStartIsAnError(t *testing.T) {
	h := hostWithDocker(t, "#!/bin/sh\n[ $1 = version ]\n")
	temp := sharedTempDir(t)
	t.Setenv("TMPDIR", temp)
	_, err := obtainRedis(t.Context(), h)
	require.ErrorIs(t, err, errExited)
	_, err = obtainPostgres(t.Context(), h)
	require.ErrorIs(t, err, errExited)
	require.Empty(t, entries(t, temp))
}

func TestADockerWithoutADaemonWillNotDo(t *testing.T) {
	h := hostWithDocker(t, "#!/bin/sh\necho Cannot connect to the Docker daemon >&2\nexit 1\n")
	_, err := obtainRedis(t.Context(), h)
	var missing *UnavailableError
	require.ErrorAs(t, err, &missing)
	require.Contains(t, missing.Tried[2], "Cannot connect")
}

// hostWithDocker has nothing but a docker that is the given script.
func hostWithDocker(t *testing.T, script string) host {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "docker")
	require.NoError(t, os.WriteFile(bin, []byte(script), 0o755))
	h := bareHost()
	h.lookPath = tools(bin)
	h.output = output
	return h
}
