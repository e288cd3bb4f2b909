package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
)

// The images, of the versions in docker-compose.yml.
const (
	postgresImage = "postgres:17"
	redisImage    = "redis:7"
)

// docker is a Docker client whose daemon answers.
type docker struct {
	bin  string
	host host
}

// findDocker says in its error what is missing.
func findDocker(ctx context.Context, h host) (*docker, error) {
	bin, err := h.lookPath("docker")
	if err != nil {
		return nil, errors.New("no docker on PATH")
	}
	d := &docker{bin: bin, host: h}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if _, err := h.output(ctx, bin, "version", "--format", "{{.Server.Version}}"); err != nil {
		return nil, fmt.Errorf("docker is there but no daemon answers (%w)", err)
	}
	return d, nil
}

func (d *docker) postgres(ctx context.Context) (*postgresServer, error) {
	server := &postgresServer{source: "Postgres in a container of " + postgresImage + ", for this run only", private: true}
	args := []string{"--env", "POSTGRES_HOST_AUTH_METHOD=trust", postgresImage}
	for _, setting := range fastSettings {
		args = append(args, "-c", setting)
	}
	var err error
	server.stop, err = d.run(ctx, "5432", args, func(ctx context.Context, addr string) bool {
		server.adminURL = "postgres://postgres@" + addr + "/postgres?sslmode=disable"
		conn, err := pgx.Connect(ctx, server.adminURL)
		return err == nil && conn.Close(ctx) == nil
	})
	return server, err
}

func (d *docker) redis(ctx context.Context) (*redisServer, error) {
	server := &redisServer{source: "Redis in a container of " + redisImage + ", for this run only", private: true}
	args := append([]string{redisImage, "redis-server", "--protected-mode", "no"}, redisDefaults...)
	var err error
	server.stop, err = d.run(ctx, "6379", args, func(ctx context.Context, addr string) bool {
		server.url = "redis://" + addr + "/0"
		client := newRedisClient(&redis.Options{Addr: addr, MaxRetries: -1})
		defer client.Close()
		return listening(addr) && client.Ping(ctx).Err() == nil
	})
	return server, err
}

// run starts a container and returns once ready agrees. args begin with options of docker run and
// go on with the image. The host's port is Docker's choice, so it cannot be one that somebody else
// has.
func (d *docker) run(ctx context.Context, port string, args []string, ready func(ctx context.Context, addr string) bool) (stop func() error, err error) {
	var ourselves *account
	dir, err := ourselves.tempDir()
	if err != nil {
		return nil, err
	}
	name := filepath.Base(dir)
	run := []string{d.bin, "run", "--rm", "--name", name, "--publish", loopback + "::" + port}
	client, err := supervise(command{
		dir: dir,
		// The client's end is not the container's. $1 is the client's path, from argv.
		stop: `"$1" rm --force --volumes ` + name,
		env:  os.Environ(),
		argv: append(run, args...),
	})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	const askEvery = 200 * time.Millisecond // each question is a process of its own
	err = client.await(ctx, askEvery, func(ctx context.Context) bool {
		addr, err := d.host.output(ctx, d.bin, "port", name, port+"/tcp")
		return err == nil && ready(ctx, addr)
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("docker run %s: %w", strings.Join(args, " "), err), client.stop())
	}
	return client.stop, nil
}
