package lease_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

// What Check says must be what an acquisition would meet with.
func TestCheckOfAServerThatRefusesWrites(t *testing.T) {
	t.Parallel()
	for name, refusal := range map[string]struct {
		setting, value string
		want           error
	}{
		"memory":   {"maxmemory", "1", lease.ErrOutOfMemory},
		"replicas": {"min-replicas-to-write", "1", lease.ErrTooFewReplicas},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := testenv.OwnRedis(t).Client()
			_, err := check(t, client)
			require.NoError(t, err)
			require.NoError(t, client.ConfigSet(t.Context(), refusal.setting, refusal.value).Err())
			_, err = check(t, client)
			require.ErrorIs(t, err, refusal.want)
			require.ErrorIs(t, acquireOn(t, &world{client: client}, lease.Config{TTL: time.Second}), refusal.want)
			require.NoError(t, client.Do(t.Context(), "ACL", "SETUSER", "default", "-info", "-config").Err())
			_, err = check(t, client)
			require.ErrorIs(t, err, refusal.want, "no setting has to be read")
		})
	}
}

func TestCheckOfAServerThatCannotSave(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t, "--save", "3600 1", "--dbfilename", "taken")
	require.NoError(t, os.Mkdir(filepath.Join(server.Dir(), "taken"), 0o700))
	_, err := check(t, server.Client())
	require.NoError(t, err, "it has not tried yet")
	require.NoError(t, server.Client().BgSave(t.Context()).Err())
	require.Eventually(t, func() bool {
		return strings.Contains(server.Client().Info(t.Context(), "persistence").Val(), "rdb_last_bgsave_status:err")
	}, 10*time.Second, 10*ms)

	_, err = check(t, server.Client())
	require.ErrorIs(t, err, lease.ErrUnfit)
	require.ErrorIs(t, err, lease.ErrCannotSave)
	require.ErrorIs(t, acquireOn(t, &world{client: server.Client()}, lease.Config{TTL: time.Second}), lease.ErrCannotSave)
}

func TestCheckWhereScriptsAreForbidden(t *testing.T) {
	t.Parallel()
	client := testenv.OwnRedis(t).Client()
	require.NoError(t, client.Do(t.Context(), "ACL", "SETUSER", "default", "-eval").Err())
	_, err := check(t, client)
	require.True(t, redis.IsPermissionError(err), "%v", err)
}
