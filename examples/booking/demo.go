package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"time"

	"github.com/fencedb/fencedb/examples/booking/server"
	"github.com/fencedb/fencedb/examples/booking/story"
	"github.com/fencedb/fencedb/internal/testenv"
)

// demo tells the stories.
func demo(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("booking", flag.ContinueOnError)
	unprotected := flags.Bool("unprotected", false, "take the fence away, to see that the demo notices")
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), "booking: five stories, and how they ended. With serve it is the HTTP service, with migrate it sets up the service's database.\n\n")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unknown argument %q; there are serve and migrate, and see -help", flags.Arg(0))
	}
	ttl, err := storyTTL()
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

// storyTTL is short unless told otherwise, because the stories wait for it to pass.
func storyTTL() (time.Duration, error) {
	text := cmp.Or(os.Getenv(server.TTLVar), "1.5s")
	ttl, err := time.ParseDuration(text)
	if err != nil || ttl < time.Millisecond {
		return 0, fmt.Errorf("%s is %q; it must be a duration of at least 1ms, such as 1.5s", server.TTLVar, text)
	}
	return ttl, nil
}

// colour is for people at a terminal who have not said that they want none (https://no-color.org).
func colour(out *os.File) bool {
	info, err := out.Stat()
	terminal := err == nil && info.Mode()&os.ModeCharDevice != 0
	return terminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}
