// Command servers runs a command with a Postgres and a Redis: those of the environment, or private
// ones that end with the command.
//
//	go run ./internal/testenv/servers COMMAND...       # such as an example
//	go run ./internal/testenv/servers -missing [-own]  # names the servers that make has to install
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

	"github.com/fencedb/fencedb/internal/testenv"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	var exit *exec.ExitError
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
	case errors.As(err, &exit): // the command has said why
		os.Exit(max(1, exit.ExitCode()))
	default:
		fmt.Fprintln(os.Stderr, "servers:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("servers", flag.ContinueOnError)
	missing := flags.Bool("missing", false, "name the servers that can neither be reached nor started, and run nothing")
	own := flags.Bool("own", false, "with -missing: also what the tests start of their own, whatever the environment names")
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch {
	case *missing:
		for _, err := range testenv.Missing(ctx, *own) {
			fmt.Println(strings.ToLower(err.Server)) // postgres, redis or pgbouncer
			fmt.Fprintln(os.Stderr, err)             // what was tried
		}
		return nil
	case flags.NArg() == 0:
		return errors.New("which command? Such as: servers go run ./examples/jobs")
	}
	return with(ctx, flags.Args())
}

// with runs a command with the URLs of servers in its environment. When ctx ends it interrupts the
// command, and the servers stay until that has ended.
func with(ctx context.Context, command []string) (err error) {
	env, err := testenv.Start(context.WithoutCancel(ctx), testenv.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, env.Close()) }()
	for _, note := range env.Notes {
		fmt.Fprintln(os.Stderr, note)
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Cancel = func() error {
		_ = cmd.Process.Signal(os.Interrupt)
		return os.ErrProcessDone // how the command ends is what counts
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "FENCEDB_POSTGRES_URL="+env.PostgresURL, "FENCEDB_REDIS_URL="+env.RedisURL)
	return cmd.Run()
}
