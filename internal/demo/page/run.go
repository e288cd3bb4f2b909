package page

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"github.com/fencedb/fencedb/internal/demo/worker"
	"github.com/fencedb/fencedb/internal/testenv"
)

// Run serves the page on a port of the loopback, 0 for a free one, until ctx ends, and returns when
// nothing of it is left. Nobody else can reach it: the buttons kill processes and empty servers.
// The Redis of env is private. out is told the addresses.
func Run(ctx context.Context, env *testenv.Env, port int, out io.Writer) error {
	logging.Disable() // the Redis client would write that a Redis is down, which is meant to be
	listener, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", port))
	if err != nil {
		return fmt.Errorf("-port: %w", err)
	}
	defer listener.Close()
	j := NewJournal()
	servers := worker.Servers{PostgresURL: env.PostgresURL, RedisURL: env.RedisURL}
	s, err := Open(ctx, Config{servers, env.StopRedis, env.StartRedis}, j)
	if err != nil {
		return err
	}
	defer s.Close()

	fmt.Fprintf(out, "\n  http://%s\n\n", listener.Addr())
	fmt.Fprintf(out, "  Look for yourself:  psql '%[1]s'\n                      redis-cli -u %[2]s\n             "+
		"         fencedb watch --redis %[2]s\n\n  Ctrl-C ends it all.\n", env.PostgresURL, env.RedisURL)
	server := &http.Server{
		Handler:           Handler(j, s.Do),
		BaseContext:       func(net.Listener) context.Context { return ctx }, // ends the streams
		ReadHeaderTimeout: 5 * time.Second,
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(listener); ctx.Err() == nil {
		return err
	}
	return nil
}
