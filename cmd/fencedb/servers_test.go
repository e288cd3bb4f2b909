package main

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

func TestARedisURLThatIsNone(t *testing.T) {
	t.Parallel()
	for _, address := range []string{
		"cache:6379", "http://cache", "redis-sentinel://a", "redis-cluster://a,b", "redis-ring://a",
		"redis://cache/zero", "redis://u:hunter2@[", "redis-sentinel://u:hunter2@a:x?master_name=main", "redis-cluster://a?colour=red",
		"redis://u:hunter2/3@a", "redis://u:6379/hunter2@a", "redis://u:1?hunter2@a", "redis://u:hunter2#3@a", "redis:/u:hunter2@a",
		"hunter2:6379@a", "redis-cluster://u:hunter2/3@a", "redis-sentinel://u:hunter2/3@a?master_name=main", "redis://u:%hunter2@a",
	} {
		got := newConsole(t, "--redis", address).run("leases")

		require.Equal(t, app.ExitUsage, got.code, address)
		require.Contains(t, got.errOut, "redis-sentinel://", "what it may be is said")
		require.NotContains(t, got.errOut, "hu", address)
	}
}

func TestWhatIsWrongWithARedisURLIsSaidWithoutItsPassword(t *testing.T) {
	t.Parallel()
	for address, says := range map[string]string{
		"redis://u:hunter2@cache/zero":  "invalid database number",
		"redis://u:hunter2@cache:port":  "invalid port",
		"redis-sentinel://u:hunter2@a":  "?master_name=NAME",
		"redis-cluster://u:hunter2@a,b": "as in ?addr=host2:6379",
		"redis://u:hunter2/3@a":         "user and password cannot be read",
		"u:hunter2@a":                   "does not begin with redis://",
	} {
		got := newConsole(t, "--redis", address).run("leases")

		require.Contains(t, got.errOut, says, address)
		require.NotContains(t, got.errOut, "hunter2", address)
	}
}

func TestAConnectionErrorNamesTheServerOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	host := w.own.Addr()
	postgres := w.pool.Config().ConnConfig
	address := net.JoinHostPort(postgres.Host, fmt.Sprint(postgres.Port))
	for _, test := range []struct{ flag, url, says string }{
		{"--redis", "redis://127.0.0.1:1", "redis: cannot reach 127.0.0.1:1: connection refused"},
		{"--redis", "redis://no.such.host.invalid", "redis: cannot reach no.such.host.invalid:6379: "},
		{"--redis", "redis://ann:hunter2@" + host, "redis: " + host + " refuses: WRONGPASS "},
		{"--redis", "redis-cluster://127.0.0.1:1?addr=127.0.0.1:2", "redis: cannot reach 127.0.0.1:1, 127.0.0.1:2: "},
		{"--postgres", "postgres://ann:hunter2@127.0.0.1:1/none", "postgres: cannot reach 127.0.0.1:1: connection refused"},
		{"--postgres", "postgres://ann:hunter2@127.0.0.1:1,127.0.0.1:2/none", "postgres: cannot reach 127.0.0.1:1, 127.0.0.1:2: connection refused"},
		{"--postgres", "postgres://ann:hunter2@no.such.host.invalid/none", "postgres: cannot reach no.such.host.invalid:5432: "},
		{"--postgres", fmt.Sprintf("postgres://%s:%s@%s/none_such", postgres.User, postgres.Password, address), "postgres: " + address + ` refuses: FATAL: database "none_such" does not exist`},
	} {
		command := map[string]string{"--redis": "watch", "--postgres": "prune"}[test.flag]
		got := w.run("--timeout", "20s", test.flag, test.url, command)

		require.Equal(t, app.ExitFailed, got.code, test.url)
		require.Contains(t, got.errOut, "fencedb: "+test.says)
		require.Equal(t, 1, strings.Count(got.errOut, "\n"), got.errOut)
		require.NotContains(t, got.errOut, "hunter2")
		_, rest, _ := strings.Cut(got.errOut, test.says)
		require.NotRegexp(t, `127\.0\.0\.1|no\.such\.host`, rest)
	}
}

func TestARedisThatHangsIsGivenUpInTime(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"redis", "redis-cluster"} {
		got := newConsole(t, "--redis", scheme+"://"+silent(t)+"?read_timeout=1h", "--timeout", "100ms").run("leases")

		require.Equal(t, app.ExitFailed, got.code)
	}
}

func TestLeasesThroughSentinels(t *testing.T) {
	t.Parallel()
	sentinel := testenv.Sentinel(t)
	_, err := newIssuer(t, sentinel.Client(), lease.Config{}).Acquire(t.Context(), "table:12", lease.NoWait())
	require.NoError(t, err)
	options := sentinel.Options()
	address := "redis-sentinel://" + options.SentinelAddrs[0] + "?addr=" + options.SentinelAddrs[1] + "&master_name=" + options.MasterName
	w := &world{console: newConsole(t, "--redis", address)}

	names, _ := w.listed()

	require.Equal(t, []string{"table:12"}, names)
}

// What a replica says may be old: nobody may take it for what is true now.
func TestEachCommandSaysThatItsRedisIsAReplica(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	replica := testenv.OwnRedis(t, "--replicaof", "127.0.0.1", "1")
	w.as("--redis", "redis://"+replica.Addr())
	for _, args := range [][]string{
		{"inspect", "seat:1"}, {"leases"}, {"ttl", "seat"}, {"prune"}, {"revoke", "seat:1", "--reason", "it hangs", "--yes"},
		{"reset", "seat:1", "--to", "1", "--reason", "a mistake", "--yes"},
	} {
		require.Contains(t, w.run(args...).errOut, "is a replica", args[0])
	}
	for _, args := range [][]string{{"reset", "seat:1", "--to", "0", "--reason", "a mistake", "--yes", "--force"}, {"prune", "--apply", "--reason", "monthly", "--yes"}} {
		require.Contains(t, w.run(args...).errOut, "nothing was changed: this Redis is a replica", args[0])
	}
	watching := w.start("watch")
	require.Contains(t, watching.next(watching.errOut), "is a replica")
	require.NotContains(t, w.run("--redis", redisURL(w.redis), "leases").errOut, "replica")
	require.Zero(t, w.run("leases").code, "it is read all the same")
}

// What a standby says may be old too: that nobody would have been refused, say.
func TestEachCommandSaysThatItsPostgresIsAStandby(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	primary := testenv.OwnPostgres(t)
	require.Zero(t, w.run("--postgres", primary.URL(), "migrate", "up").code)
	standby := primary.Standby()
	standby.Restart()
	for _, args := range [][]string{
		{"inspect", "seat:1"}, {"adopt", "seats"}, {"prune"}, {"revoke", "seat:1", "--reason", "it hangs", "--yes"},
		{"reset", "seat:1", "--to", "1", "--reason", "a mistake", "--yes"},
	} {
		require.Contains(t, w.run(slices.Concat([]string{"--postgres", standby.URL()}, args)...).errOut, "is a standby: what it says may be old", args[0])
	}
	require.NotContains(t, w.run("inspect", "seat:1").errOut, "standby")

	w.publish(fmt.Sprintf(`{"kind":"committed","resource":"seat:1","worker":"w","token":%d}`, w.acquire("seat:1").Token()))
	notes := codes(w.as("--postgres", standby.URL()).inspected("seat:1").Notes)
	require.Contains(t, notes, "standby_behind")
	require.NotContains(t, notes, "seal_missing", "the primary may have it")
	said := w.run("--postgres", testenv.PostgresURL(t), "inspect", "seat:1").errOut
	require.Contains(t, said, "see that --postgres names the database of the programs")
}
