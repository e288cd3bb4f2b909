// Command bench measures what fenced writes and leases cost, side by side with the same work
// without a fence and with other lock libraries; then what it costs to wait for a lease.
//
//	go run .                 # about fifteen minutes
//	go run . -quick          # the costs in a minute
//	go run . -only service   # or costs, growth, compare
//	go run . -d 2s -rounds 1
//
// It starts a Postgres and a redis-server of its own, and for the waiting four processes, which
// share the waiters. README.md says what the columns mean.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/internal/worker"
)

func main() {
	worker.Become(map[string]worker.Life{kind: serve})
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// bench is one run of the program.
type bench struct {
	client   *redis.Client
	postgres string        // the URL of an empty database
	during   time.Duration // of one round
	rounds   int
	quick    bool           // costs only, and fewer of them
	works    *regexp.Regexp // the works that are measured, by their names
	// files to write the costs to, or ""
	json, benchstat, svg string
	out                  io.Writer
}

func run(ctx context.Context, out io.Writer) (err error) {
	b := bench{out: out}
	flag.DurationVar(&b.during, "d", 10*time.Second, "how long one round lasts")
	flag.IntVar(&b.rounds, "rounds", 3, "rounds for each library, interleaved")
	flag.BoolVar(&b.quick, "quick", false, "what things cost alone, in shorter rounds on smaller tables: about a minute")
	only := flag.String("only", "", "this part alone: costs, service, growth or compare")
	works := flag.String("works", "", "of the costs, those alone whose work matches this regular expression")
	flag.StringVar(&b.json, "json", "", "file for the costs of all rounds, as JSON")
	flag.StringVar(&b.svg, "svg", "", "file for the same, as a picture")
	flag.StringVar(&b.benchstat, "benchstat", "", "file for the same, in the form that benchstat reads")
	flag.Parse()
	if b.works, err = regexp.Compile(*works); err != nil {
		return fmt.Errorf("-works: %w", err)
	}
	parts := []part{{"costs", b.costs}, {"service", b.service}, {"growth", b.growth}, {"compare", b.compare}}
	switch {
	case b.quick, *works != "":
		parts = parts[:1]
	case *only != "":
		parts = slices.DeleteFunc(parts, func(p part) bool { return p.name != *only })
	}
	if flag.NArg() > 0 || b.during <= 0 || b.rounds < 1 || len(parts) == 0 {
		return errors.New("needs a positive -d, at least one of -rounds, for -only a part, and nothing else; see -help")
	}
	// As in production: safe from crashes, and on a disk, since testenv would take memory.
	if err := os.Setenv("TMPDIR", os.TempDir()); err != nil {
		return err
	}
	env, err := testenv.Start(ctx, testenv.Options{PrivateRedis: true, Postgres: []string{"fsync=on", "full_page_writes=on", "max_wal_size=1GB"}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, env.Close()) }()
	options, err := redis.ParseURL(env.RedisURL)
	if err != nil {
		return err
	}
	b.client, b.postgres = redis.NewClient(options), env.PostgresURL
	defer b.client.Close()
	for _, part := range parts {
		if err := part.run(ctx); err != nil {
			return err
		}
	}
	return nil
}

// part is one that can be run alone.
type part struct {
	name string
	run  func(context.Context) error
}

// job is the load that all share, on a resource of its own.
func (b *bench) job(lock string, waiters int) job {
	return job{
		Lock: lock, Addr: b.client.Options().Addr, Resource: fmt.Sprintf("bench:%d", time.Now().UnixNano()),
		Waiters: waiters, Work: time.Millisecond,
	}
}

// growth shows what more waiters cost.
func (b *bench) growth(ctx context.Context) error {
	rows := []string{"waiters\thand-overs/s\tcommands\treads\tmedian gap\tp99 gap\tPING\tgap in PINGs\tlongest wait\tof FIFO"}
	for _, waiters := range []int{5, 50, 500} {
		r, err := measure(ctx, b.client, b.job(ours, waiters), b.during)
		if err != nil {
			return err
		}
		gap, ping := quantile(r.gaps, 0.5), quantile(r.pings, 0.5)
		rows = append(rows, fmt.Sprintf("%d\t%.0f\t%.1f\t%.2f\t%s\t%s\t%s\t%.1f\t%s\t%.2f", waiters, r.perSecond, r.commands, r.reads,
			micro(gap), micro(quantile(r.gaps, 0.99)), micro(ping), float64(gap)/float64(ping), milli(quantile(r.waits, 1)),
			r.ofFIFO()))
	}
	fmt.Fprintf(b.out, "%s as waiters grow; commands and reads for each hand-over\n", ours)
	err := table(b.out, rows...)
	fmt.Fprintln(b.out)
	return err
}

// waiters of each library that is compared, in all processes together.
const waiters = 50

// fairness is the bar for the longest wait of ours, as a multiple of the FIFO ideal.
const fairness = 1.40

func verdict(longest float64) string {
	missed := ""
	if longest > fairness {
		missed = ", missed"
	}
	return fmt.Sprintf("%s: the longest wait is %.2f of the FIFO ideal, bar %.2f%s", ours, longest, fairness, missed)
}

// compare runs the libraries beside each other.
func (b *bench) compare(ctx context.Context) error {
	results, err := inTurns(b.rounds, contenders, func(c contender) (result, error) {
		return measure(ctx, b.client, b.job(c.name, waiters), b.during)
	})
	if err != nil {
		return err
	}
	rows := []string{"\thand-overs/s\tmedian gap\tp99 gap\tmedian wait\tlongest wait\tof FIFO\tmost overtaken\tcommands\treads"}
	for n, c := range contenders {
		rounds := results[n]
		rows = append(rows, fmt.Sprintf("%s\t%.0f\t%s\t%s\t%s\t%s\t%.2f\t%d\t%.1f\t%.2f", c.name,
			over(rounds, 0.5, func(r result) float64 { return r.perSecond }),
			micro(over(rounds, 0.5, func(r result) time.Duration { return quantile(r.gaps, 0.5) })),
			micro(over(rounds, 0.5, func(r result) time.Duration { return quantile(r.gaps, 0.99) })),
			milli(over(rounds, 0.5, func(r result) time.Duration { return quantile(r.waits, 0.5) })),
			milli(over(rounds, 1, func(r result) time.Duration { return quantile(r.waits, 1) })),
			over(rounds, 1, result.ofFIFO),
			over(rounds, 0.5, func(r result) int { return r.overtaken }),
			over(rounds, 0.5, func(r result) float64 { return r.commands }),
			over(rounds, 0.5, func(r result) float64 { return r.reads })))
	}
	fmt.Fprintf(b.out, "%d waiters in %d processes; medians of %d rounds of %v, the longest wait of all rounds\n",
		waiters, processes, b.rounds, b.during)
	if err := table(b.out, rows...); err != nil {
		return err
	}
	longest := over(results[0], 1, result.ofFIFO)
	fmt.Fprintf(b.out, "  %s\n", verdict(longest))
	for _, c := range contenders[1:] {
		fmt.Fprintf(b.out, "  %s: %s\n", c.name, c.not)
	}
	return nil
}
