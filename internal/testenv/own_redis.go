package testenv

import (
	"context"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"
)

// RedisServer is a Redis of one test's own, to kill, pause, restart, flush and reconfigure. Its
// methods fail the test on error and must be called from the test's goroutine.
type RedisServer struct {
	t      testing.TB
	node   *redisNode
	client *redis.Client
}

// OwnRedis starts a private Redis and stops it at the end of the test. It keeps nothing on disk and
// evicts nothing, unless the arguments, which are those of redis-server, say otherwise:
//
//	OwnRedis(t, "--maxmemory", "2mb", "--maxmemory-policy", "allkeys-lru")
func OwnRedis(t testing.TB, args ...string) *RedisServer {
	t.Helper()
	return ownRedis(t, "", args...)
}

func ownRedis(t testing.TB, config string, args ...string) *RedisServer {
	t.Helper()
	bin, err := redisService.locateOwn(t.Context(), thisHost())
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	node, err := newRedisNode(ctx, bin, config, args...)
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	s := &RedisServer{t: t, node: node, client: newRedisClient(&redis.Options{Addr: node.addr()})}
	t.Cleanup(func() {
		_ = s.client.Close() // the test may have closed it
		s.Stop()
	})
	return s
}

// Client returns a client of the server, the same at each call; it is closed at the end of the test.
// It goes on working across a restart.
func (s *RedisServer) Client() *redis.Client { return s.client }

// Addr returns host:port. A restarted server has the same.
func (s *RedisServer) Addr() string { return s.node.addr() }

// Dir returns the server's data directory.
func (s *RedisServer) Dir() string { return s.node.dir }

// Kill ends the server with SIGKILL and returns once it is gone. What it had saved stays, for [RedisServer.Restart].
func (s *RedisServer) Kill() {
	s.t.Helper()
	s.must("kill", s.node.end(syscall.SIGKILL))
}

// Restart starts the server again, on its port and its data, and returns once it answers. A server
// that still runs is shut down in good order first, which saves its data if it has save points.
func (s *RedisServer) Restart() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), startTimeout)
	defer cancel()
	s.must("shut down", s.node.end(syscall.SIGTERM))
	s.must("restart", s.node.start(ctx))
}

// Pause stops the server in its tracks (SIGSTOP): connections stay open, nothing is answered.
func (s *RedisServer) Pause() {
	s.t.Helper()
	s.must("pause", s.node.process.signal(syscall.SIGSTOP))
}

// Resume lets a paused server go on. It then answers what was sent meanwhile.
func (s *RedisServer) Resume() {
	s.t.Helper()
	s.must("resume", s.node.process.signal(syscall.SIGCONT))
}

// Stop ends the server for good and removes its data. The end of the test does the same.
func (s *RedisServer) Stop() {
	s.t.Helper()
	if s.node == nil {
		return
	}
	s.must("stop", s.node.stop())
	s.node = nil
}

func (s *RedisServer) must(what string, err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("testenv: %s Redis on %s: %v", what, s.node.addr(), err)
	}
}
