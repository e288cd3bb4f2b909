// Command demo shows what fencedb is for, on real servers and real processes.
//
//	go run ./lab/demo [-unprotected] [-ttl 1.5s]   # five stories; exits with 0 if every promise was kept
//	go run ./lab/demo page                         # a live page, with buttons that do harm
//
// It finds or starts a Postgres and a Redis and ends what it has started. A Redis that it found
// keeps the last tokens for a day.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/internal/worker"
	"github.com/fencedb/fencedb/lab/demo/page"
	"github.com/fencedb/fencedb/lab/demo/service"
)

func main() {
	worker.Become(map[string]worker.Life{"booking": service.Booking})
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	var exit *exec.ExitError
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
	case errors.As(err, &exit): // it has said why
		os.Exit(max(1, exit.ExitCode()))
	default:
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	command := ""
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		command, args = args[0], args[1:]
	}
	flags := flag.NewFlagSet(strings.TrimSpace("demo "+command), flag.ContinueOnError)
	var do func() error
	switch command {
	case "":
		var cfg config
		flags.BoolVar(&cfg.Unprotected, "unprotected", false, "take the fence away, to see that the demo notices")
		flags.DurationVar(&cfg.TTL, "ttl", 1500*time.Millisecond, "how long a lease lasts; the stories wait for that")
		do = func() error {
			return onServers(ctx, testenv.Options{}, func(env *testenv.Env) error { return tellStories(ctx, cfg, env) })
		}
	case "page":
		port := flags.Int("port", 0, "of this machine to listen on; 0 takes a free one")
		do = func() error {
			return onServers(ctx, testenv.Options{PrivateRedis: true}, func(env *testenv.Env) error {
				return page.Run(ctx, env, *port, os.Stdout)
			})
		}
	default:
		return fmt.Errorf("unknown argument %q; there is page, and see -help", command)
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unknown argument %q; see -help", flags.Arg(0))
	}
	return do()
}

// onServers does something on servers that it finds or starts.
func onServers(ctx context.Context, opts testenv.Options, do func(*testenv.Env) error) (err error) {
	env, err := testenv.Start(ctx, opts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, env.Close()) }()
	return do(env)
}
