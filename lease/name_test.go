package lease_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

func TestConnectionsTellWhoseTheyAre(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	name := lease.ClientName("booking of tables")
	require.Regexp(t, fmt.Sprintf(`^booking_of_tables@[!-~]+:%d$`, os.Getpid()), name)
	require.Regexp(t, `^[!-~]+$`, lease.ClientName("lä\nßt"))

	client := redis.NewClient(&redis.Options{Addr: server.Addr(), ClientName: name})
	t.Cleanup(func() { _ = client.Close() })
	w := &world{client: client}
	holder := try(t, w.issuer(t, lease.Config{TTL: time.Minute}), "a")
	grants := make(chan grant)
	wait(t.Context(), w.issuer(t, lease.Config{TTL: time.Minute}), 0, grants)
	named := func(also string) (n int) {
		for line := range strings.Lines(server.Client().ClientList(t.Context()).Val()) {
			if strings.Contains(line, " name="+name+" ") && strings.Contains(line, also) {
				n++
			}
		}
		return n
	}
	require.Eventually(t, func() bool { return named(" sub=1 ") == 1 && named(" sub=0 ") > 0 }, 10*time.Second, ms)
	require.NoError(t, holder.Release(t.Context()))
	g := <-grants
	require.NoError(t, g.err)
	require.NoError(t, g.lease.Release(t.Context()))
}

func TestResource(t *testing.T) {
	require.Equal(t, "table:12", lease.Resource("table", 12))
	require.Equal(t, "user:ada", lease.Resource("user", "ada"))
}
