package sale

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/fencedb/fencedb/internal/testenv"
)

// Compare is the whole program: it plays the sale in all ways, or in one, and prints a table. It
// returns an error if any books are wrong, or if those of the control are right. On a terminal it
// shows how far a sale is.
func Compare(ctx context.Context, args []string, out io.Writer, terminal bool) error {
	modes, load, err := parse(args)
	if err != nil {
		return err
	}
	progress := func(Mode) Progress { return func(time.Duration, Tally) {} }
	if terminal {
		progress = func(m Mode) Progress { return Bar(out, m, load.For) }
	}
	return compare(ctx, out, modes, load, progress)
}

func parse(args []string) (modes []Mode, l Load, err error) {
	flags := flag.NewFlagSet("demo sale", flag.ContinueOnError)
	mode := flags.String("mode", "all", "fenced, lock, forupdate, optimistic or all")
	flags.IntVar(&l.Buyers, "buyers", 200, "buyers at once, in three processes")
	flags.IntVar(&l.SKUs, "skus", 20, "different goods")
	flags.IntVar(&l.Stock, "stock", 20000, "units of each")
	flags.DurationVar(&l.For, "for", 10*time.Second, "how long each sale lasts")
	flags.IntVar(&l.Pauses, "pauses", 2, "how often a process is stopped")
	flags.DurationVar(&l.Pause, "pause", 2400*time.Millisecond, "how long it is stopped")
	flags.DurationVar(&l.TTL, "ttl", 1200*time.Millisecond, "how long a lease lasts, and a reservation")
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), "demo sale: a flash sale, in four ways, side by side.\n\n")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return nil, l, err
	}
	if flags.NArg() > 0 {
		return nil, l, fmt.Errorf("unknown argument %q; see -help", flags.Arg(0))
	}
	if modes = Modes(); *mode != "all" {
		if !slices.Contains(modes, Mode(*mode)) {
			return nil, l, fmt.Errorf("there is no -mode %q; see -help", *mode)
		}
		modes = []Mode{Mode(*mode)}
	}
	return modes, l, l.Validate()
}

func compare(ctx context.Context, out io.Writer, modes []Mode, load Load, progress func(Mode) Progress) error {
	fmt.Fprintf(out, "%d buyers in %d processes want %d SKUs for %v; %d times one of the processes is stopped "+
		"for %v, leases last %v\n",
		load.Buyers, Workers, load.SKUs, load.For, load.Pauses, load.Pause, load.TTL)
	var results []Result
	var problems []string
	for _, mode := range modes {
		r, err := playOn(ctx, mode, load, progress(mode))
		if err != nil {
			return fmt.Errorf("%s: %w", mode, err)
		}
		results = append(results, r)
		problems = append(problems, r.Problems()...)
	}
	fmt.Fprintln(out)
	if err := WriteTable(out, results); err != nil {
		return err
	}
	for _, p := range problems {
		fmt.Fprintln(out, p)
	}
	if len(problems) > 0 {
		return errors.New("an invariant does not hold")
	}
	fmt.Fprintln(out, "\nAll invariants hold.")
	return nil
}

// playOn gives each sale servers of its own, if they are ours to start.
func playOn(ctx context.Context, mode Mode, load Load, progress Progress) (r Result, err error) {
	env, err := testenv.Start(ctx, testenv.Options{})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, env.Close()) }()
	return Run(ctx, mode, Servers{
		PostgresURL: env.PostgresURL,
		RedisURL:    env.RedisURL,
		Namespace:   "sale_" + strconv.FormatUint(rand.Uint64()>>16, 36),
	}, load, progress)
}
