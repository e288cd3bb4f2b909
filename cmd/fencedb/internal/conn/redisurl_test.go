package conn

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestARedisURLOfACluster(t *testing.T) {
	t.Parallel()
	client, err := OpenRedis("rediss-cluster://ann:s%40cret@a?addr=b:7000&addr=[::1]:7001&dial_timeout=2s&pool_size=7", nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })

	options := client.(*redis.ClusterClient).Options()
	require.Equal(t, []string{"a:6379", "b:7000", "[::1]:7001"}, options.Addrs)
	require.Equal(t, []string{"ann", "s@cret", "2s"}, []string{options.Username, options.Password, options.DialTimeout.String()})
	require.Equal(t, 7, options.PoolSize, "parameters of go-redis count")
	require.NotNil(t, options.TLSConfig)
	require.Empty(t, options.TLSConfig.ServerName)
}

func TestARedisURLOfSentinels(t *testing.T) {
	t.Parallel()
	client, err := OpenRedis("redis-sentinel://:other@a/3?master_name=main&addr=b:7000&username=ann&password=secret&read_timeout=2s", nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })

	options := client.(*redis.Client).Options()
	require.Equal(t, []string{"ann", "secret", "2s"}, []string{options.Username, options.Password, options.ReadTimeout.String()})
	require.Equal(t, 3, options.DB)
}
