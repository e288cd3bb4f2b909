// Command demo shows what fencedb does live on a page, with buttons that do harm.
//
//	go run ./lab/demo [-port 8080]
//
// It starts a Redis, finds or starts a Postgres, and ends what it has started. The stories of make
// demo are those of fencedb drill.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/internal/worker"
	"github.com/fencedb/fencedb/lab/demo/page"
	"github.com/fencedb/fencedb/lab/demo/service"
)

func main() {
	worker.Become(service.Kinds)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	port := flags.Int("port", 0, "of this machine to listen on; 0 takes a free one")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unknown argument %q; see -help", flags.Arg(0))
	}
	env, err := testenv.Start(ctx, testenv.Options{PrivateRedis: true})
	if err != nil {
		return err
	}
	return errors.Join(page.Run(ctx, env, *port, os.Stdout), env.Close())
}
