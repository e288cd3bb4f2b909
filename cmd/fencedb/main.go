// Command fencedb is for whoever operates a system that uses fencedb: who holds what, who can write, is the set-up sound, and
// how to end a holder safely. fencedb --help and the README beside this file say how.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/redis/go-redis/v9/logging"
)

func main() {
	logging.Disable() // go-redis would write to stderr what the error of the command says again
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	a := &app{in: os.Stdin, out: os.Stdout, errOut: os.Stderr, screen: screenOf(os.Stdout, os.LookupEnv), patience: patience}
	code := a.run(ctx, os.Args)
	stop()
	os.Exit(code)
}

// run carries one command out and returns the exit code.
func (a *app) run(ctx context.Context, args []string) int {
	err := a.root().Run(ctx, args)
	if err != nil {
		fmt.Fprintln(a.errOut, "fencedb:", err)
	}
	return exitCode(err)
}
