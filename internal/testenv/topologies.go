package testenv

import (
	"context"
	"fmt"
	"net"
	"regexp"
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
	tls := s.data[0].node.tls
	return &redis.FailoverOptions{MasterName: primaryName, SentinelAddrs: addrs(s.sentinels), TLSConfig: tls}
}

// Client returns a new client that follows the primary; it is closed at the end of the test.
func (s *SentinelServers) Client() *redis.Client {
	return closedAtEnd(s.t, redis.NewFailoverClient(s.Options()))
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

// addrs are host:port of servers.
func addrs(servers []*RedisServer) (all []string) {
	for _, server := range servers {
		all = append(all, server.Addr())
	}
	return all
}

func replication(ctx context.Context, server *RedisServer, field string) string {
	return server.Client().InfoMap(ctx, "replication").Item("Replication", field)
}

// ClusterServers is a Redis Cluster of three masters without replicas. Its methods fail the test on
// error and must be called from the test's goroutine.
type ClusterServers struct {
	t     testing.TB
	args  []string // of each redis-server
	nodes []*RedisServer
	ids   []string // of the nodes, by which cluster commands name them
	owner []int    // node of each slot, by our own doing
}

const (
	// clusterEnabled is the argument by which a node knows that it has a bus.
	clusterEnabled = "--cluster-enabled"

	clusterMasters = 3
	clusterSlots   = 16384
	clusterBus     = 1 // above the port of a node: that of its bus
)

// Cluster starts three processes, shares the slots out evenly and returns once all three serve. The
// arguments are those of redis-server, for each of them. Everything ends with the test.
func Cluster(t testing.TB, args ...string) *ClusterServers {
	t.Helper()
	c := &ClusterServers{t: t, args: append([]string{
		clusterEnabled, "yes",
		"--cluster-config-file", "nodes.conf",
		"--cluster-node-timeout", "2000", // ms
	}, args...)}
	for i := range clusterMasters {
		node := OwnRedis(t, c.args...)
		id := must(node.Client().ClusterMyID(t.Context()).Result())(t)
		c.nodes, c.ids = append(c.nodes, node), append(c.ids, id)
		// It says in advance whose claim counts, which the nodes would have to agree on otherwise.
		c.do(node, "CLUSTER", "SET-CONFIG-EPOCH", i+1)
		first, end := i*clusterSlots/clusterMasters, (i+1)*clusterSlots/clusterMasters
		check(t, node.Client().ClusterAddSlotsRange(t.Context(), first, end-1).Err())
		c.owner = append(c.owner, slices.Repeat([]int{i}, end-first)...)
		if i > 0 {
			c.do(c.nodes[0], "CLUSTER", "MEET", loopback, node.node.port, node.node.port+clusterBus)
		}
	}
	// Every node sees every slot served, for which it has to know all others.
	await(t, "the cluster to form", func(ctx context.Context) bool {
		return !slices.ContainsFunc(c.nodes, func(node *RedisServer) bool {
			return !strings.Contains(node.Client().ClusterInfo(ctx).Val(), "cluster_state:ok")
		})
	})
	return c
}

// Replicate starts a replica of a master, and returns once it has the master's data, and all
// masters know it: when its master dies, the others make it the master.
func (c *ClusterServers) Replicate(master *RedisServer) *RedisServer {
	c.t.Helper()
	replica := OwnRedis(c.t, c.args...)
	c.do(master, "CLUSTER", "MEET", loopback, replica.node.port, replica.node.port+clusterBus)
	id := c.ids[slices.Index(c.nodes, master)]
	await(c.t, "the replica to know its master", func(ctx context.Context) bool {
		return replica.Client().ClusterReplicate(ctx, id).Err() == nil
	})
	own := must(replica.Client().ClusterMyID(c.t.Context()).Result())(c.t)
	known := regexp.MustCompile(own + ` \S+ slave ` + id)
	await(c.t, "the replica to have its master's data, and the masters to know it", func(ctx context.Context) bool {
		return strings.Contains(replica.Client().Info(ctx, "replication").Val(), "master_link_status:up") &&
			strings.Contains(replica.Client().ClusterInfo(ctx).Val(), "cluster_state:ok") &&
			!slices.ContainsFunc(c.nodes, func(node *RedisServer) bool {
				return !known.MatchString(node.Client().ClusterNodes(ctx).Val())
			})
	})
	return replica
}

// Nodes returns the masters.
func (c *ClusterServers) Nodes() []*RedisServer { return c.nodes }

// Options returns what redis.NewClusterClient needs.
func (c *ClusterServers) Options() *redis.ClusterOptions {
	return &redis.ClusterOptions{Addrs: addrs(c.nodes), TLSConfig: c.nodes[0].node.tls, MaintNotificationsConfig: unprobed}
}

// Client returns a new client of the cluster; it is closed at the end of the test.
func (c *ClusterServers) Client() *redis.ClusterClient {
	return closedAtEnd(c.t, redis.NewClusterClient(c.Options()))
}

// Slot returns the slot of a key.
func (c *ClusterServers) Slot(key string) int {
	c.t.Helper()
	return int(must(c.nodes[0].Client().ClusterKeySlot(c.t.Context(), key).Result())(c.t))
}

// Owner returns the master that serves a slot.
func (c *ClusterServers) Owner(slot int) *RedisServer { return c.nodes[c.owner[slot]] }

// MoveSlot gives a slot and its keys to the next master, while clients go on using them, and
// returns once every node knows.
func (c *ClusterServers) MoveSlot(slot int) {
	c.t.Helper()
	c.BeginMove(slot)
	c.FinishMove(slot)
}

// BeginMove leaves a slot on its way to the next master: keys still at the old one are served
// there, and for all others it answers ASK. Multi-key commands over both answer TRYAGAIN.
func (c *ClusterServers) BeginMove(slot int) {
	c.t.Helper()
	from, to := c.owner[slot], c.next(slot)
	c.do(c.nodes[to], "CLUSTER", "SETSLOT", slot, "IMPORTING", c.ids[from])
	c.do(c.nodes[from], "CLUSTER", "SETSLOT", slot, "MIGRATING", c.ids[to])
}

// FinishMove moves the keys and then the slot, and returns once all nodes agree on every owner and
// its epoch. The new owner outbids the epochs that it knows. If one that it does not know yet were
// in a message from the old owner that is still on its way, the slot would go back.
func (c *ClusterServers) FinishMove(slot int) {
	c.t.Helper()
	const atOnce, timeout = 100, 5000 // keys, milliseconds
	from, to := c.owner[slot], c.next(slot)
	for {
		keys := must(c.nodes[from].Client().ClusterGetKeysInSlot(c.t.Context(), slot, atOnce).Result())(c.t)
		if len(keys) == 0 {
			break
		}
		migrate := []any{"MIGRATE", loopback, c.nodes[to].node.port, "", 0, timeout, "KEYS"}
		for _, key := range keys {
			migrate = append(migrate, key)
		}
		c.do(c.nodes[from], migrate...)
	}
	// The new owner first: should we die in between, a slot with two owners is better than one with
	// none. The old one comes last.
	for i := range c.nodes {
		c.do(c.nodes[(to+i)%len(c.nodes)], "CLUSTER", "SETSLOT", slot, "NODE", c.ids[to])
	}
	c.owner[slot] = to
	await(c.t, "the nodes to agree who has which slot", c.agreed)
}

func (c *ClusterServers) agreed(ctx context.Context) bool {
	var views []string
	for _, node := range c.nodes {
		text, err := node.Client().ClusterNodes(ctx).Result()
		if err != nil {
			return false
		}
		var view []string
		for line := range strings.Lines(text) {
			const id, epoch, slots = 0, 6, 8
			words := strings.Fields(line)
			owns := slices.DeleteFunc(words[slots:], func(word string) bool { return word[0] == '[' }) // on its way
			view = append(view, words[id]+" "+words[epoch]+" "+strings.Join(owns, " "))
		}
		slices.Sort(view)
		views = append(views, strings.Join(view, "\n"))
	}
	return len(slices.Compact(views)) == 1
}

func (c *ClusterServers) next(slot int) int { return (c.owner[slot] + 1) % len(c.nodes) }

func (c *ClusterServers) do(node *RedisServer, command ...any) {
	c.t.Helper()
	if err := node.Client().Do(c.t.Context(), command...).Err(); err != nil {
		c.t.Fatalf("testenv: %v on %s: %v", command[:2], node.Addr(), err)
	}
}
