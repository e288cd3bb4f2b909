package main

import (
	"context"
	"os"
	"os/exec"

	"github.com/fencedb/fencedb/examples/booking/server"
	"github.com/fencedb/fencedb/examples/booking/worker"
)

// workerCommand makes this program a worker. It is for the demo alone to use.
const workerCommand = "worker"

// What a worker is told, in variables and not in arguments: a URL may hold a password, and ps shows arguments to everybody.
// All but the name are settings of the service.
const nameVar = "BOOKING_WORKER"

// workerProcess returns the command of a worker: this very program, in a process of its own.
func workerProcess(cfg worker.Config) *exec.Cmd {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	cmd := exec.Command(self, workerCommand)
	cmd.Env = append(os.Environ(),
		nameVar+"="+cfg.Name,
		server.PostgresVar+"="+cfg.PostgresURL,
		server.RedisVar+"="+cfg.RedisURL,
		server.NamespaceVar+"="+cfg.Namespace,
		server.TTLVar+"="+cfg.TTL.String(),
	)
	return cmd
}

// work is a worker's life.
func work(ctx context.Context) error {
	ttl, err := storyTTL()
	if err != nil {
		return err
	}
	return worker.Serve(ctx, worker.Config{
		Name:        os.Getenv(nameVar),
		PostgresURL: os.Getenv(server.PostgresVar),
		RedisURL:    os.Getenv(server.RedisVar),
		Namespace:   os.Getenv(server.NamespaceVar),
		TTL:         ttl,
	}, os.Stdin, os.Stdout)
}
