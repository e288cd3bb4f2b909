// Command booking is a restaurant's table service, and a demonstration of what fencedb does for it.
//
//	go run ./examples/booking serve           # the HTTP service of package server
//	go run ./examples/booking migrate         # brings its database up, where that is not a private one
//	go run ./examples/booking                 # the stories of package story; exits with 0 if every promise was kept
//	go run ./examples/booking -unprotected    # takes the fence away: exits with 1
//
// The stories find or start a Postgres and a Redis, and leave nothing behind; so does the service, unless its settings name
// servers. Package server has the settings; of them the stories know BOOKING_TTL.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/fencedb/fencedb/examples/booking/server"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "booking:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) > 1 && (args[0] == "serve" || args[0] == "migrate") {
		return fmt.Errorf("%s takes no %q; its settings are in variables, such as %s", args[0], args[1], server.AddrVar)
	}
	if len(args) == 1 {
		switch args[0] {
		case "serve":
			return serve(ctx)
		case "migrate":
			return migrate(ctx)
		case workerCommand:
			return work(ctx)
		}
	}
	return demo(ctx, args)
}
