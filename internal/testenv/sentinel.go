package testenv

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// SentinelServers is a Redis primary with two replicas, watched by three sentinels. Its methods
// fail the test on error and must be called from the test's goroutine.
type SentinelServers struct {
	t         testing.TB
	data      []*RedisServer
	sentinels []*RedisServer
}

// primaryName is what the sentinels call the primary.
const primaryName = "fencedb"

// sentinelConfig waits for half a second where a production set-up waits for half a minute.
const sentinelConfig = `sentinel monitor ` + primaryName + ` ` + loopback + ` %d 2
sentinel down-after-milliseconds ` + primaryName + ` 500
sentinel failover-timeout ` + primaryName + ` 2000
`

// sentinelPeriods, in milliseconds, quicken what the configuration file cannot. PUBLISH-PERIOD must
// stay above 250: a sentinel that has not heard of a promotion within four of them undoes it, and
// the one that leads a failover looks for its success only once a second. The last line keeps a
// sentinel that did not get the processor for a while from standing aside for 30 s.
var sentinelPeriods = []any{
	"INFO-PERIOD", 100, "PING-PERIOD", 100, "ASK-PERIOD", 100, "PUBLISH-PERIOD", 500,
	"ELECTION-TIMEOUT", 1000, "MIN-LINK-RECONNECT-PERIOD", 500,
	"TILT-TRIGGER", 20_000, "TILT-PERIOD", 500,
}

// Sentinel starts six processes and returns once the sentinels know each other and both replicas.
// The arguments are those of redis-server, for the primary and the replicas; those of TLS are for
// the sentinels too. Everything ends with the test.
func Sentinel(t testing.TB, args ...string) *SentinelServers {
	t.Helper()
	args = append([]string{"--repl-diskless-sync-delay", "0"}, args...)
	primary := OwnRedis(t, args...)
	s := &SentinelServers{t: t, data: []*RedisServer{primary}}
	replicaArgs := append(slices.Clone(args), "--replicaof", loopback, strconv.Itoa(primary.node.port))
	for range 2 {
		s.data = append(s.data, OwnRedis(t, replicaArgs...))
	}
	// Each over a configuration file of its own, in which it keeps its state.
	config := fmt.Sprintf(sentinelConfig, primary.node.port)
	sentinelArgs := append(certificatesAmong(args).Redis(), "--sentinel")
	for range 3 {
		sentinel := ownRedis(t, config, nil, sentinelArgs...)
		check(t, sentinel.Client().Do(t.Context(), append([]any{"SENTINEL", "DEBUG"}, sentinelPeriods...)...).Err())
		s.sentinels = append(s.sentinels, sentinel)
	}
	await(t, "the sentinels to know each other and both replicas", s.complete)
	return s
}

// Options returns what redis.NewFailoverClient needs.
func (s *SentinelServers) Options() *redis.FailoverOptions {
	options := &redis.FailoverOptions{MasterName: primaryName, TLSConfig: s.data[0].node.tls}
	for _, sentinel := range s.sentinels {
		options.SentinelAddrs = append(options.SentinelAddrs, sentinel.Addr())
	}
	return options
}

// Client returns a new client that follows the primary; it is closed at the end of the test.
func (s *SentinelServers) Client() *redis.Client {
	client := redis.NewFailoverClient(s.Options())
	s.t.Cleanup(func() { _ = client.Close() }) // the test may have closed it
	return client
}

// Primary returns the server that the sentinels agree on.
func (s *SentinelServers) Primary() *RedisServer {
	s.t.Helper()
	var primary *RedisServer
	await(s.t, "the sentinels to agree on a primary", func(ctx context.Context) bool {
		primary = s.agreed(ctx)
		return primary != nil
	})
	return primary
}

// Replicas returns the other two servers, dead or alive.
func (s *SentinelServers) Replicas() []*RedisServer {
	s.t.Helper()
	primary := s.Primary()
	return slices.DeleteFunc(slices.Clone(s.data), func(r *RedisServer) bool { return r == primary })
}

// AwaitPromotion returns the new primary once the sentinels have agreed on one that is not old and
// it takes writes. For a test that has killed, paused or cut off the old one.
func (s *SentinelServers) AwaitPromotion(old *RedisServer) *RedisServer {
	s.t.Helper()
	var promoted *RedisServer
	await(s.t, "a replica to be promoted", func(ctx context.Context) bool {
		promoted = s.agreed(ctx)
		return promoted != nil && promoted != old && replication(ctx, promoted, "role") == "master"
	})
	return promoted
}

// CutOff separates the primary from its replicas: it goes on serving, but what is written to it now
// is lost when one of them is promoted. They stay paused until they are resumed.
func (s *SentinelServers) CutOff() {
	s.t.Helper()
	primary := s.Primary()
	for _, replica := range s.Replicas() {
		replica.Pause()
	}
	// Or what is written waits in the sockets of the replicas until they are resumed.
	check(s.t, primary.Client().ClientKillByFilter(s.t.Context(), "TYPE", "replica").Err())
}

// agreed returns the primary that all sentinels name, or nil if they differ.
func (s *SentinelServers) agreed(ctx context.Context) *RedisServer {
	var named []string
	for _, sentinel := range s.sentinels {
		addr, err := sentinel.Client().Do(ctx, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", primaryName).StringSlice()
		if err != nil || len(addr) != 2 {
			return nil
		}
		named = append(named, net.JoinHostPort(addr[0], addr[1]))
	}
	named = slices.Compact(named)
	for _, server := range s.data {
		if len(named) == 1 && server.Addr() == named[0] {
			return server
		}
	}
	return nil
}

// complete reports whether every sentinel sees the other two, and two replicas that follow.
func (s *SentinelServers) complete(ctx context.Context) bool {
	primary := s.agreed(ctx)
	if primary == nil {
		return false
	}
	for _, replica := range []string{"slave0", "slave1"} {
		// Up to a second after the link is up, a replica is not sent anything until it has
		// confirmed the snapshot it began with; its offset is 0 until then.
		state := replication(ctx, primary, replica)
		if !strings.Contains(state, "state=online") || strings.Contains(state, "offset=0,") {
			return false
		}
	}
	for _, sentinel := range s.sentinels {
		seen := redis.NewMapStringStringCmd(ctx, "SENTINEL", "MASTER", primaryName)
		if sentinel.Client().Process(ctx, seen) != nil || seen.Val()["num-other-sentinels"] != "2" || seen.Val()["num-slaves"] != "2" {
			return false
		}
	}
	return true
}

func replication(ctx context.Context, server *RedisServer, field string) string {
	return server.Client().InfoMap(ctx, "replication").Item("Replication", field)
}
