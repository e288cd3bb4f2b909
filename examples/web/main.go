// Command web shows leases, tokens and refusals as they happen, on a page that it serves to this machine: three worker processes,
// a Redis and a Postgres, and buttons that do to them what a bad night does.
//
//	go run ./examples/web        # or make demo-web; prints the address, Ctrl-C ends it
//
// It starts a Redis of its own, which the page may flush and restart, finds or starts a Postgres, and leaves nothing behind.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/fencedb/fencedb/examples/web/app"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := app.Run(ctx, os.Args[1:], os.Stdout)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "web:", err)
		os.Exit(1)
	}
}
