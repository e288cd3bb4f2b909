// Command demo shows what fencedb is for, on real servers and real processes.
//
//	go run ./internal/demo [-unprotected] [-ttl 1.5s]   # five stories; exits with 0 if every promise was kept
//	go run ./internal/demo page                         # a live page, with buttons that do harm
//	go run ./internal/demo sale                         # a flash sale in four ways, side by side
//	go run ./internal/demo with COMMAND...              # runs a command, such as an example, with servers of its own
//	go run ./internal/demo missing [-own]               # names the servers that make has to install
//
// It finds or starts a Postgres and a Redis and ends what it has started. A Redis that it found
// keeps the last tokens for a day.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fencedb/fencedb/internal/demo/page"
	"github.com/fencedb/fencedb/internal/demo/sale"
	"github.com/fencedb/fencedb/internal/demo/worker"
	"github.com/fencedb/fencedb/internal/testenv"
)

func main() {
	worker.Become(map[string]worker.Life{"booking": worker.Booking, "sale": sale.Work})
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
	if len(args) > 0 {
		switch args[0] {
		case "page":
			return page.Run(ctx, args[1:], os.Stdout)
		case "sale":
			return sale.Compare(ctx, args[1:], os.Stdout)
		case "with":
			return with(ctx, args[1:])
		case "missing":
			for _, err := range testenv.Missing(ctx, slices.Contains(args[1:], "-own")) {
				fmt.Println(strings.ToLower(err.Server)) // postgres, redis or pgbouncer, which can neither be reached nor started here
				fmt.Fprintln(os.Stderr, err)             // what was tried
			}
			return nil
		}
	}
	return tell(ctx, args)
}

// tell tells the stories.
func tell(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	unprotected := flags.Bool("unprotected", false, "take the fence away, to see that the demo notices")
	ttl := flags.Duration("ttl", 1500*time.Millisecond, "how long a lease lasts; the stories wait for that")
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), "demo: five stories, and how they ended. There are also page, sale and with.\n\n")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unknown argument %q; there are page, sale and with, and see -help", flags.Arg(0))
	}
	if *ttl < time.Millisecond {
		return fmt.Errorf("-ttl is %v; it must be at least 1ms, such as 1.5s", *ttl)
	}
	env, err := testenv.Start(ctx, testenv.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, env.Close()) }()
	return tellStories(ctx, config{
		PostgresURL: env.PostgresURL,
		RedisURL:    env.RedisURL,
		Namespace:   "demo_" + rand.Text(), // keeps the leases apart on a Redis that others use too
		TTL:         *ttl,
		Notes:       env.Notes,
		Out:         os.Stdout,
		Colour:      terminal() && os.Getenv("NO_COLOR") == "", // https://no-color.org
		Unprotected: *unprotected,
	})
}

// with runs a command with the URLs of servers in its environment. When ctx ends it interrupts the
// command, and the servers stay until that has ended.
func with(ctx context.Context, command []string) (err error) {
	if len(command) == 0 {
		return errors.New("with what? Such as: with go run ./examples/jobs")
	}
	env, err := testenv.Start(context.WithoutCancel(ctx), testenv.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, env.Close()) }()
	for _, note := range env.Notes {
		fmt.Fprintln(os.Stderr, note)
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "FENCEDB_POSTGRES_URL="+env.PostgresURL, "FENCEDB_REDIS_URL="+env.RedisURL)
	return cmd.Run()
}

// terminal reports whether a person looks at the output.
func terminal() bool {
	info, err := os.Stdout.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
}
