package lease_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

func as(t *testing.T, server *testenv.RedisServer, user, password string) *world {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), Username: user, Password: password})
	t.Cleanup(func() { _ = client.Close() })
	return &world{client: client}
}

func TestWhoIsNotLetInLearnsIt(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	admin := server.Client()
	acl := func(args ...any) {
		require.NoError(t, admin.Do(t.Context(), append([]any{"ACL", "SETUSER"}, args...)...).Err())
	}
	acl("keyless", "on", ">secret", "+@all", "~other:*", "&*")
	acl("scriptless", "on", ">secret", "+@all", "-@scripting", "~*", "&*")
	for name, w := range map[string]*world{
		"a wrong password": as(t, server, "keyless", "x"),
		"another's keys":   as(t, server, "keyless", "secret"),
		"no scripts":       as(t, server, "scriptless", "secret"),
	} {
		start := time.Now()
		require.ErrorIs(t, acquireOn(t, w, lease.Config{TTL: time.Minute}), lease.ErrDenied, name)
		require.Less(t, time.Since(start), 30*time.Second, "%s: asking again is of no use", name)
	}

	acl("default", "on", "resetpass", ">secret")
	require.ErrorIs(t, acquireOn(t, as(t, server, "", ""), lease.Config{TTL: time.Minute}), lease.ErrDenied, "no password")
}

func TestAServerThatRunsAnEndlessScriptIsBusy(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	require.NoError(t, server.Client().ConfigSet(t.Context(), "busy-reply-threshold", "1").Err())
	w := as(t, server, "", "")
	require.NoError(t, w.client.Ping(t.Context()).Err())
	ended := make(chan error, 1)
	go func() { ended <- server.Client().Eval(t.Context(), "while true do end", nil).Err() }()
	require.Eventually(t, func() bool { return redis.HasErrorPrefix(w.client.Get(t.Context(), "a").Err(), "BUSY") }, 10*time.Second, ms)
	require.ErrorIs(t, acquireOn(t, w, lease.Config{TTL: 200 * ms}), lease.ErrBusy)
	require.NoError(t, w.client.ScriptKill(t.Context()).Err())
	require.Error(t, <-ended)
	require.NoError(t, acquireOn(t, w, lease.Config{TTL: time.Minute}))
}
