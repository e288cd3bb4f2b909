package testenv

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// dockerStandIn is a docker client that runs the server as a process of its own. It shows how testenv
// drives the client: what it tells a container, how it learns the address, and how it ends one.
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
