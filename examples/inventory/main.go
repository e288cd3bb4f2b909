// Command inventory plays a flash sale in four ways, stops some of its processes for longer than their leases last, and adds up afterwards
// what became of the goods and the money.
//
//	go run ./examples/inventory                  # all four ways, 10 s each; exits with 0 if it came out as it should
//	go run ./examples/inventory -mode fenced -for 30s
//	go run ./examples/inventory serve            # the shop as a service; see README.md
//
// It finds or starts a Postgres and a Redis. A Redis that it found keeps the last tokens for a day; nothing else is left behind.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/fencedb/fencedb/examples/inventory/sale"
	"github.com/fencedb/fencedb/internal/testenv"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "inventory:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if os.Getenv(sale.WorkerVar) != "" {
		return sale.Work(ctx, os.Stdin, os.Stdout)
	}
	if len(args) > 0 && args[0] == "serve" {
		if len(args) > 1 {
			return fmt.Errorf("serve takes no %q; its settings are in variables, such as %s", args[1], addrVar)
		}
		return serve(ctx, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	}
	modes, load, err := parse(args)
	if err != nil {
		return err
	}
	progress := func(sale.Mode) sale.Progress { return func(time.Duration, sale.Tally) {} }
	if terminal(os.Stdout) {
		progress = func(m sale.Mode) sale.Progress { return sale.Bar(os.Stdout, m, load.For) }
	}
	return compare(ctx, os.Stdout, modes, load, progress)
}

func parse(args []string) (modes []sale.Mode, l sale.Load, err error) {
	flags := flag.NewFlagSet("inventory", flag.ContinueOnError)
	mode := flags.String("mode", "all", "fenced, lock, forupdate, optimistic or all")
	flags.IntVar(&l.Buyers, "buyers", 200, "buyers at once, in three processes")
	flags.IntVar(&l.SKUs, "skus", 20, "different goods")
	flags.IntVar(&l.Stock, "stock", 20000, "units of each")
	flags.DurationVar(&l.For, "for", 10*time.Second, "how long each sale lasts")
	flags.IntVar(&l.Pauses, "pauses", 2, "how often a process is stopped")
	flags.DurationVar(&l.Pause, "pause", 2400*time.Millisecond, "how long it is stopped")
	flags.DurationVar(&l.TTL, "ttl", 1200*time.Millisecond, "how long a lease lasts, and a reservation")
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), "inventory: a flash sale, in four ways. With serve, and nothing else, it is the shop as a service.\n\n")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return nil, l, err
	}
	if flags.NArg() > 0 {
		return nil, l, fmt.Errorf("unknown argument %q; see -help", flags.Arg(0))
	}
	if modes = sale.Modes(); *mode != "all" {
		if !slices.Contains(modes, sale.Mode(*mode)) {
			return nil, l, fmt.Errorf("there is no -mode %q; see -help", *mode)
		}
		modes = []sale.Mode{sale.Mode(*mode)}
	}
	return modes, l, l.Validate()
}

func compare(ctx context.Context, out io.Writer, modes []sale.Mode, load sale.Load, progress func(sale.Mode) sale.Progress) error {
	fmt.Fprintf(out, "%d buyers in %d processes want %d SKUs for %v; %d times one of the processes is stopped for %v, leases last %v\n",
		load.Buyers, sale.Workers, load.SKUs, load.For, load.Pauses, load.Pause, load.TTL)
	var results []sale.Result
	var problems []string
	for _, mode := range modes {
		r, err := play(ctx, mode, load, progress(mode))
		if err != nil {
			return fmt.Errorf("%s: %w", mode, err)
		}
		results = append(results, r)
		problems = append(problems, r.Problems()...)
	}
	fmt.Fprintln(out)
	if err := sale.WriteTable(out, results); err != nil {
		return err
	}
	for _, p := range problems {
		fmt.Fprintln(out, p)
	}
	if len(problems) > 0 {
		return errors.New("this is not how it should have come out")
	}
	fmt.Fprintln(out, "\nThis is how it should have come out.")
	return nil
}

// play gives each sale servers of its own, if they are ours to start.
func play(ctx context.Context, mode sale.Mode, load sale.Load, progress sale.Progress) (r sale.Result, err error) {
	env, err := testenv.Start(ctx, testenv.Options{})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, env.Close()) }()
	return sale.Run(ctx, mode, sale.Servers{
		PostgresURL: env.PostgresURL,
		RedisURL:    env.RedisURL,
		Namespace:   "sale_" + strconv.FormatUint(rand.Uint64()>>16, 36),
	}, load, progress)
}

func terminal(out *os.File) bool {
	info, err := out.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
}
