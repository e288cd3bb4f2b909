package testenv

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// redisDefaults make a Redis that keeps nothing on disk and never evicts. OwnRedis can overrule
// them: of two options with one name, the later counts.
var redisDefaults = []string{
	"--save", "",
	"--appendonly", "no",
	"--maxmemory-policy", "noeviction",
}

// redisServer is a Redis that tests share.
type redisServer struct {
	found
	node *redisNode // nil if somebody else runs the server
}

// obtainRedis returns the first Redis that can be had, in the order of the package documentation,
// or one of our own.
func obtainRedis(ctx context.Context, h host, own bool) (*redisServer, error) {
	url, program, err := redisService.locate(ctx, h, own)
	if err != nil {
		return nil, err
	}
	if url != "" {
		options, err := redis.ParseURL(url)
		if err != nil {
			return nil, fmt.Errorf("%s is set, but: %w", redisURLVar, err)
		}
		client := redis.NewClient(options)
		defer client.Close()
		if err := client.Ping(ctx).Err(); err != nil {
			return nil, fmt.Errorf("%s is set, so no other Redis was looked for, but: %w", redisURLVar, err)
		}
		return &redisServer{found: redisService.external(url, options.Addr)}, nil
	}
	node, err := newRedisNode(ctx, program, "", nil)
	if err != nil {
		return nil, err
	}
	return &redisServer{redisService.started("redis://"+node.addr()+"/0", node.bin, node.port, node.stop), node}, nil
}

// redisNode is one redis-server of ours.
type redisNode struct {
	node
	bin    string
	config []string // path of a configuration file, or none
	args   []string // those of redis-server; they count more than the file and the defaults
	tls    *tls.Config
}

// newRedisNode starts a node, over a configuration file if it gets the text of one. On error
// nothing is left behind.
func newRedisNode(ctx context.Context, bin, config string, env []string, args ...string) (*redisNode, error) {
	base, err := newNode(nil, env...)
	if err != nil {
		return nil, err
	}
	n := &redisNode{node: base, bin: bin, args: args}
	n.tls, err = certificatesAmong(args).config()
	if err == nil && config != "" {
		n.config = []string{filepath.Join(n.dir, "redis.conf")}
		err = os.WriteFile(n.config[0], []byte(config), 0o600)
	}
	if err == nil {
		err = n.onFreePort(ctx, n.start)
	}
	if err != nil {
		return nil, errors.Join(err, n.stop())
	}
	return n, nil
}

// redisServes is what a server logs when it has loaded its data, and a sentinel when it listens.
var redisServes = regexp.MustCompile(`(Ready to accept connections|Sentinel ID is)`)

// start starts the server on its port and returns once it has loaded its data and answers.
func (n *redisNode) start(ctx context.Context) error {
	place := []string{"--bind", loopback, "--port", strconv.Itoa(n.port), "--dir", n.dir}
	if n.tls != nil {
		place = append(place, "--port", "0", "--tls-port", strconv.Itoa(n.port))
	}
	if slices.Contains(n.args, clusterEnabled) {
		// The usual port of the bus, 10000 above, can lie among those of outgoing connections.
		place = append(place, "--cluster-port", strconv.Itoa(n.port+clusterBus))
	}
	argv := slices.Concat([]string{n.bin}, n.config, place, redisDefaults, n.args)
	return n.run(ctx, redisServes, stopByKill, argv...)
}

// restart starts the server on the port it had. It is shut down in good order first if it still
// runs, which saves its data if it has save points.
func (n *redisNode) restart(ctx context.Context) error {
	if err := n.end(syscall.SIGTERM); err != nil {
		return err
	}
	return n.start(ctx)
}

func (n *redisNode) addr() string { return address(n.port) }

func (n *redisNode) String() string { return "Redis on " + n.addr() }

// unprobed keeps a client from asking for the notifications of a managed service, which costs a
// round trip and a goroutine for each connection.
var unprobed = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}

func newRedisClient(options *redis.Options) *redis.Client {
	options.MaintNotificationsConfig = unprobed
	return redis.NewClient(options)
}

// closedAtEnd closes a client at the end of the test, which may have closed it before.
func closedAtEnd[C io.Closer](t testing.TB, client C) C {
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// RedisServer is a Redis of one test's own, to kill, pause, restart, flush and reconfigure. Its
// methods fail the test on error and must be called from the test's goroutine.
type RedisServer struct {
	own
	node   *redisNode
	client *redis.Client
}

// OwnRedis starts a private Redis and stops it at the end of the test. It keeps nothing on disk and
// evicts nothing, unless the arguments, which are those of redis-server, say otherwise:
//
//	OwnRedis(t, "--maxmemory", "2mb", "--maxmemory-policy", "allkeys-lru")
func OwnRedis(t testing.TB, args ...string) *RedisServer {
	t.Helper()
	return ownRedis(t, "", nil, args...)
}

// OwnRedisWith is [OwnRedis] with more in its environment, each name=value.
func OwnRedisWith(t testing.TB, env []string) *RedisServer {
	t.Helper()
	return ownRedis(t, "", env)
}

func ownRedis(t testing.TB, config string, env []string, args ...string) *RedisServer {
	t.Helper()
	node := must(newRedisNode(starting(t), redisService.own(t), config, env, args...))(t)
	s := &RedisServer{own: own{t: t, server: node}, node: node}
	t.Cleanup(s.Stop)
	s.client = closedAtEnd(t, newRedisClient(&redis.Options{Addr: node.addr(), TLSConfig: node.tls}))
	return s
}

// Client returns a client of the server, the same at each call; it is closed at the end of the
// test. It goes on working across a restart.
func (s *RedisServer) Client() *redis.Client { return s.client }

// Addr returns host:port. A restarted server has the same.
func (s *RedisServer) Addr() string { return s.node.addr() }

// Dir returns the server's data directory.
func (s *RedisServer) Dir() string { return s.node.dir }
