package leasetest

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

// Effect is what a request does in Redis. Redis refuses some effects and allows others.
type Effect int

// Each is refused wherever one of those before it is.
const (
	Reads  Effect = iota
	Frees         // writes, but takes no memory
	Writes        // and takes memory
)

// Request is a request that a server must refuse. Prepare makes it while the server works.
type Request struct {
	Effect  Effect
	Prepare func(t *testing.T, client *redis.Client) (send func() error)
}

// Refusals sends the requests to real servers that refuse for different reasons. It requires the
// error of package lease for each reason, or none if the server allows the request.
func Refusals(t *testing.T, requests map[string]Request) {
	for name, refusal := range map[string]struct {
		args   []string
		begin  func(t *testing.T, server *testenv.RedisServer)
		from   Effect
		reason error
	}{
		"rights":   {nil, command("ACL", "SETUSER", "default", "resetkeys", "~other:*"), Reads, lease.ErrDenied},
		"replica":  {nil, command("REPLICAOF", "127.0.0.1", "1"), Frees, lease.ErrReadOnly},
		"replicas": {nil, command("CONFIG", "SET", "min-replicas-to-write", "1"), Frees, lease.ErrTooFewReplicas},
		"disk":     {[]string{"--save", "3600 1", "--dbfilename", "taken"}, failToSave, Frees, lease.ErrCannotSave},
		"memory":   {nil, command("CONFIG", "SET", "maxmemory", "1", "maxmemory-policy", "noeviction"), Writes, lease.ErrOutOfMemory},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testenv.OwnRedis(t, refusal.args...)
			sends := make(map[string]func() error)
			for name, r := range requests {
				sends[name] = r.Prepare(t, server.Client())
			}
			refusal.begin(t, server)
			for name, send := range sends {
				if requests[name].Effect < refusal.from {
					require.NoError(t, send(), name)
				} else {
					require.ErrorIs(t, send(), refusal.reason, name)
				}
			}
		})
	}
}

func command(args ...any) func(*testing.T, *testenv.RedisServer) {
	return func(t *testing.T, server *testenv.RedisServer) {
		require.NoError(t, server.Client().Do(t.Context(), args...).Err())
	}
}

// failToSave puts a directory where the file should be.
func failToSave(t *testing.T, server *testenv.RedisServer) {
	require.NoError(t, os.Mkdir(filepath.Join(server.Dir(), "taken"), 0o700))
	require.NoError(t, server.Client().BgSave(t.Context()).Err())
	require.Eventually(t, func() bool {
		return strings.Contains(server.Client().Info(t.Context(), "persistence").Val(), "rdb_last_bgsave_status:err")
	}, 10*time.Second, 10*time.Millisecond)
}
