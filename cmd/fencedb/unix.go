//go:build unix

package main

import (
	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/chaos"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/conn"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/with"
	"github.com/fencedb/fencedb/internal/worker"
)

// become makes this process a worker of chaos, if it was started as one.
func become() { worker.Become(chaos.Workers(conn.OpenRedis)) }

// ofUnix are the commands that need signals and groups of processes.
func ofUnix(a *app.State) []*cli.Command {
	return []*cli.Command{with.Command(a), chaos.DrillCommand(a), chaos.Command(a)}
}
