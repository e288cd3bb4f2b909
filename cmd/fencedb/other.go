//go:build !unix

package main

import (
	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
)

// Without signals that stop a process there is no chaos.
func become() {}

func ofUnix(*app.State) []*cli.Command { return nil }
