//go:build !unix

package main

import "github.com/urfave/cli/v3"

// Without signals that stop a process there is no chaos.
func become() {}

func (a *app) ofUnix() []*cli.Command { return nil }
