package main

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// startRedis starts a redis-server on loopback that keeps nothing on disk, and returns once it answers. It ends with ctx; what
// is returned waits for that.
func startRedis(ctx context.Context) (client *redis.Client, wait func(), err error) {
	port, err := freePort()
	if err != nil {
		return nil, nil, err
	}
	server := exec.CommandContext(ctx, "redis-server", "--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no")
	if err := server.Start(); err != nil {
		return nil, nil, fmt.Errorf("start a Redis: %w; name another one's host:port with -redis", err)
	}
	client = redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + port})
	starting, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for client.Ping(starting).Err() != nil {
		if starting.Err() != nil {
			return nil, nil, fmt.Errorf("redis-server on port %s does not answer", port)
		}
	}
	return client, func() { _ = server.Wait() }, nil
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port), nil
}

// counters of a Redis since its start.
type counters struct {
	commands int64 // executed, those inside scripts included
	reads    int64 // of a socket: requests, except that a pipeline needs one for many
}

func count(ctx context.Context, client *redis.Client) (c counters, err error) {
	info, err := client.Info(ctx, "stats", "commandstats").Result()
	if err != nil {
		return c, err
	}
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch {
		case name == "total_reads_processed":
			c.reads, err = strconv.ParseInt(value, 10, 64)
		case strings.HasPrefix(name, "cmdstat_"):
			var calls int64
			_, err = fmt.Sscanf(value, "calls=%d,", &calls)
			c.commands += calls
		}
		if err != nil {
			return c, fmt.Errorf("INFO says %q: %w", line, err)
		}
	}
	return c, nil
}
