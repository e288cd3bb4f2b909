package main

import (
	"context"
	"os"
	"os/exec"

	"github.com/fencedb/fencedb/examples/booking/worker"
)

// workerCommand makes this program a worker. It is for the demo alone to use.
const workerCommand = "worker"

// What a worker is told, in variables and not in arguments: a URL may hold a password, and ps shows arguments to everybody.
const (
	nameVar      = "BOOKING_WORKER"
	postgresVar  = "BOOKING_POSTGRES_URL"
	redisVar     = "BOOKING_REDIS_URL"
	namespaceVar = "BOOKING_NAMESPACE"
)

// workerProcess returns the command of a worker: this very program, in a process of its own.
func workerProcess(cfg worker.Config) *exec.Cmd {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	cmd := exec.Command(self, workerCommand)
	cmd.Env = append(os.Environ(),
		nameVar+"="+cfg.Name,
		postgresVar+"="+cfg.PostgresURL,
		redisVar+"="+cfg.RedisURL,
		namespaceVar+"="+cfg.Namespace,
		ttlVar+"="+cfg.TTL.String(),
	)
	return cmd
}

// serve is a worker's life.
func serve(ctx context.Context) error {
	ttl, err := leaseTTL()
	if err != nil {
		return err
	}
	return worker.Serve(ctx, worker.Config{
		Name:        os.Getenv(nameVar),
		PostgresURL: os.Getenv(postgresVar),
		RedisURL:    os.Getenv(redisVar),
		Namespace:   os.Getenv(namespaceVar),
		TTL:         ttl,
	}, os.Stdin, os.Stdout)
}
