// Command demo shows what fencedb is for, on real servers and real processes.
//
//	go run ./lab/demo [-unprotected] [-ttl 1.5s]   # five stories; exits with 0 if every promise was kept
//	go run ./lab/demo page                         # a live page, with buttons that do harm
//	go run ./lab/demo sale                         # a flash sale in four ways, side by side
//	go run ./lab/demo with COMMAND...              # runs a command, such as an example, with servers of its own
//	go run ./lab/demo missing [-own]               # names the servers that make has to install
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
	"strings"
	"syscall"
	"time"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/internal/worker"
	"github.com/fencedb/fencedb/lab/demo/page"
	"github.com/fencedb/fencedb/lab/demo/sale"
	"github.com/fencedb/fencedb/lab/demo/service"
)

func main() {
	worker.Become(map[string]worker.Life{"booking": service.Booking, "sale": sale.Work})
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
	case "sale":
		l := sale.Load{SKUs: 20, Stock: 20000, TTL: 1200 * time.Millisecond}
		flags.IntVar(&l.Buyers, "buyers", 200, "buyers at once, in three processes")
		flags.DurationVar(&l.For, "for", 10*time.Second, "how long each sale lasts")
		flags.IntVar(&l.Pauses, "pauses", 2, "how often a process is stopped")
		flags.DurationVar(&l.Pause, "pause", 2400*time.Millisecond, "how long it is stopped")
		do = func() error { return compare(ctx, l) }
	case "missing":
		own := flags.Bool("own", false, "also what the tests start of their own, whatever the environment names")
		do = func() error {
			for _, err := range testenv.Missing(ctx, *own) {
				// It is postgres, redis or pgbouncer, which can neither be reached nor started here.
				fmt.Println(strings.ToLower(err.Server))
				fmt.Fprintln(os.Stderr, err) // what was tried
			}
			return nil
		}
	case "with":
		return with(ctx, args)
	default:
		return fmt.Errorf("unknown argument %q; there are page, sale and with, and see -help", command)
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

// compare plays the sale in each mode, on servers of its own if they are ours to start, and prints
// a table. It returns an error if any books are wrong, or if those of the control are right.
func compare(ctx context.Context, load sale.Load) error {
	if err := load.Validate(); err != nil {
		return err
	}
	fmt.Printf("%d buyers in %d processes want %d SKUs for %v; %d times one of the processes is stopped "+
		"for %v, leases last %v\n",
		load.Buyers, sale.Workers, load.SKUs, load.For, load.Pauses, load.Pause, load.TTL)
	var results []sale.Result
	var problems []string
	for _, mode := range sale.Modes {
		fmt.Println(mode, "...")
		err := onServers(ctx, testenv.Options{}, func(env *testenv.Env) error {
			servers := service.Servers{PostgresURL: env.PostgresURL, RedisURL: env.RedisURL, Namespace: "sale_" + rand.Text()}
			r, err := sale.Run(ctx, mode, servers, load)
			results, problems = append(results, r), append(problems, r.Problems()...)
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", mode, err)
		}
	}
	fmt.Println()
	if err := sale.WriteTable(os.Stdout, results); err != nil {
		return err
	}
	if len(problems) > 0 {
		fmt.Println(strings.Join(problems, "\n"))
		return errors.New("an invariant does not hold")
	}
	fmt.Println("\nAll invariants hold.")
	return nil
}

// with runs a command with the URLs of servers in its environment. When ctx ends it interrupts the
// command, and the servers stay until that has ended.
func with(ctx context.Context, command []string) error {
	if len(command) == 0 {
		return errors.New("with what? Such as: with go run ./examples/jobs")
	}
	return onServers(context.WithoutCancel(ctx), testenv.Options{}, func(env *testenv.Env) error {
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
	})
}
