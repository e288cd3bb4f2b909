package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/urfave/cli/v3"
)

const (
	flagPause      = "pause"
	flagNetwork    = "network"
	flagPrometheus = "prometheus"
	flagOver       = "over"
)

func (a *app) ttl() *cli.Command {
	return &cli.Command{
		Name:      "ttl",
		Usage:     "advise a TTL for resources of a type, from how long they have been held",
		ArgsUsage: "TYPE",
		Description: `Takes the time that 999 of 1000 leases on TYPE:... were held, and adds how long a holder may be paused and how long Redis
may take to answer. Renewal every third of that leaves two tries; with a sixth left, work should come to an end. A longer TTL
loses fewer leases; a holder that dies blocks the resource for as long.

The times come from what programs publish with observe/feed, or from the histogram of observe/prom in a Prometheus.

   fencedb ttl table
   fencedb ttl table --pause 5s                        the garbage collector, or the hypervisor, is known for that
   fencedb ttl table --prometheus http://prom:9090`,
		Flags: []cli.Flag{
			&cli.DurationFlag{Name: flagPause, Usage: "a holder may be paused for this `TIME`", Value: time.Second},
			&cli.DurationFlag{Name: flagNetwork, Usage: "an answer of Redis may take this `TIME`", Value: 200 * time.Millisecond},
			&cli.StringFlag{Name: flagPrometheus, Usage: "`URL` of a Prometheus to ask instead of the feed", Sources: cli.EnvVars("FENCEDB_PROMETHEUS_URL")},
			&cli.DurationFlag{Name: flagOver, Usage: "with --" + flagPrometheus + ": what was measured in the last `TIME`", Value: 7 * day},
		},
		Action: a.adviseTTL,
	}
}

// holdTimes is how long leases were held.
type holdTimes struct {
	source string
	count  int64
	lost   int64 // of them: they would have been held for longer
	at     func(quantile float64) time.Duration
}

// advice is what ttl answers.
type advice struct {
	ResourceType string `json:"resource_type"`
	Source       string `json:"source"`
	Samples      int64  `json:"samples"`
	Lost         int64  `json:"lost"`
	P50MS        int64  `json:"p50_ms"`
	P99MS        int64  `json:"p99_ms"`
	P999MS       int64  `json:"p999_ms"`
	PauseMS      int64  `json:"pause_ms"`
	NetworkMS    int64  `json:"network_ms"`
	TTLMS        int64  `json:"ttl_ms"`
	RenewEveryMS int64  `json:"renew_every_ms"`
	WarnBeforeMS int64  `json:"warn_before_ms"`
}

// leastSamples is what it takes for one of them to lie above p99.9.
const leastSamples = 1000

var errTooFew = errors.New("too few hold times")

func (a *app) adviseTTL(ctx context.Context, cmd *cli.Command) error {
	kind := cmd.Args().First()
	pause, network := cmd.Duration(flagPause), cmd.Duration(flagNetwork)
	switch {
	case cmd.Args().Len() != 1 || kind == "" || strings.Contains(kind, ":"):
		return usage("%s takes one type of resources, which is what stands before the colon: table for table:12; got %q", cmd.FullName(), cmd.Args().Slice())
	case pause < 0 || network < 0 || cmd.Duration(flagOver) < time.Minute:
		return usage("--%s and --%s must not be negative, nor --%s below 1m", flagPause, flagNetwork, flagOver)
	}
	ctx, cancel, err := bounded(ctx, cmd)
	if err != nil {
		return err
	}
	defer cancel()
	measure := heldByFeed
	if cmd.String(flagPrometheus) != "" {
		measure = heldByPrometheus
	}
	held, err := measure(ctx, cmd, kind)
	if err != nil {
		return err
	}
	if held.count < leastSamples {
		return fmt.Errorf("%w: %d of %s: in the %s, and p99.9 takes %d; switch observe/feed on in more of the programs or let them run on "+
			"(Redis keeps about the last 10000 events of all kinds), or have observe/prom count and name its Prometheus with --%s",
			errTooFew, held.count, kind, held.source, leastSamples, flagPrometheus)
	}
	return a.show(cmd, advise(kind, held, pause, network))
}

func advise(kind string, held holdTimes, pause, network time.Duration) *advice {
	p999 := held.at(0.999)
	ttl := roundUp(max(p999+pause+network, 6*time.Millisecond))
	return &advice{
		ResourceType: kind, Source: held.source, Samples: held.count, Lost: held.lost,
		P50MS: ceilMS(held.at(0.5)), P99MS: ceilMS(held.at(0.99)), P999MS: ceilMS(p999),
		PauseMS: pause.Milliseconds(), NetworkMS: network.Milliseconds(),
		TTLMS: ttl.Milliseconds(), RenewEveryMS: (ttl / 3).Milliseconds(), WarnBeforeMS: (ttl / 6).Milliseconds(),
	}
}

func ceilMS(d time.Duration) int64 { return (d + time.Millisecond - 1).Milliseconds() }

// roundUp leaves two digits, so that nobody takes the result for more exact than it is.
func roundUp(d time.Duration) time.Duration {
	ms := float64(d) / float64(time.Millisecond)
	step := math.Max(1, math.Pow(10, math.Floor(math.Log10(ms))-1))
	return time.Duration(math.Ceil(ms/step)*step) * time.Millisecond
}

func (r *advice) print(p page) {
	ms := func(n int64) string { return span(time.Duration(n) * time.Millisecond) }
	from := fmt.Sprintf("%d leases on %s:..., from the %s", r.Samples, visible(r.ResourceType), r.Source)
	if r.Lost > 0 {
		from += fmt.Sprintf("; %d of them were lost, and would have been held for longer", r.Lost)
	}
	p.paragraph("", from+".", "")
	fmt.Fprintln(p.out)
	p.facts(
		[2]string{"HELD FOR", fmt.Sprintf("p50 %s, p99 %s, p99.9 %s", ms(r.P50MS), ms(r.P99MS), ms(r.P999MS))},
		[2]string{"TTL", fmt.Sprintf("%s = p99.9 %s + pause %s + network %s, rounded up", ms(r.TTLMS), ms(r.P999MS), ms(r.PauseMS), ms(r.NetworkMS))},
		[2]string{"RENEW EVERY", ms(r.RenewEveryMS) + ", a third"},
		[2]string{"STOP WORK AT", ms(r.WarnBeforeMS) + " before the end, a sixth"},
	)
	fmt.Fprintf(p.out, "\nlease.Config{TTL: %s, RenewEvery: %s, WarnBefore: %s}\n", goDuration(r.TTLMS), goDuration(r.RenewEveryMS), goDuration(r.WarnBeforeMS))
}

func goDuration(ms int64) string {
	if ms%1000 == 0 {
		return fmt.Sprintf("%d * time.Second", ms/1000)
	}
	return fmt.Sprintf("%d * time.Millisecond", ms)
}
