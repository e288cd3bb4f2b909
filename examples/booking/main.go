// Command booking tells the stories of package story: two processes, one restaurant table, and what keeps them apart.
//
//	go run ./examples/booking                 # exits with 0 if every promise was kept
//	go run ./examples/booking -unprotected    # takes the fence away: exits with 1
//
// It finds or starts a Postgres and a Redis, and leaves nothing behind. FENCEDB_LEASE_TTL sets how long a lease lasts.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/fencedb/fencedb/examples/booking/story"
	"github.com/fencedb/fencedb/internal/testenv"
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
	if len(args) == 1 && args[0] == workerCommand {
		return serve(ctx)
	}
	return demo(ctx, args)
}

// demo tells the stories.
func demo(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("booking", flag.ContinueOnError)
	unprotected := flags.Bool("unprotected", false, "take the fence away, to see that the demo notices")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unknown argument %q; see -help", flags.Arg(0))
	}
	ttl, err := leaseTTL()
	if err != nil {
		return err
	}
	env, err := testenv.Start(ctx, testenv.Options{AllowMiniredis: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, env.Close()) }()

	return story.Run(ctx, story.Config{
		PostgresURL: env.PostgresURL,
		RedisURL:    env.RedisURL,
		Namespace:   "demo_" + strconv.FormatUint(rand.Uint64()>>16, 36),
		TTL:         ttl,
		Notes:       env.Notes,
		Out:         os.Stdout,
		Colour:      colour(os.Stdout),
		Worker:      workerProcess,
		Unprotected: *unprotected,
	})
}

const (
	ttlVar     = "FENCEDB_LEASE_TTL"
	defaultTTL = "1.5s"
)

// leaseTTL is short unless told otherwise, because the stories wait for it to pass.
func leaseTTL() (time.Duration, error) {
	ttl, err := time.ParseDuration(cmp.Or(os.Getenv(ttlVar), defaultTTL))
	if err != nil || ttl < time.Millisecond {
		return 0, fmt.Errorf("%s is %q; it must be a duration of at least 1ms, such as 1.5s", ttlVar, os.Getenv(ttlVar))
	}
	return ttl, nil
}

// colour is for people at a terminal who have not said that they want none (https://no-color.org).
func colour(out *os.File) bool {
	info, err := out.Stat()
	terminal := err == nil && info.Mode()&os.ModeCharDevice != 0
	return terminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}
