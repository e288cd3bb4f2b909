package look

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/conn"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/term"
	"github.com/fencedb/fencedb/observe/feed"
)

// TTL is the command ttl.
func TTL(a *app.State) *cli.Command {
	var m measurement
	return &cli.Command{
		Name:      "ttl",
		Usage:     "advise a TTL for a type of resources",
		ArgsUsage: "TYPE",
		Description: `Takes the time within which 999 of 1000 leases on TYPE:... were released,
and adds how long a holder may be paused and how long Redis may take to
answer. Renewal after a third of that leaves two more tries; work should stop
when a sixth is left. A longer TTL loses fewer leases, but a holder that dies
blocks the resource for longer.

The times come from the events of observe/feed. docs/patterns.md has the
formula for the histogram of observe/prom.

   fencedb ttl table
   fencedb ttl table --pause 5s        the holder may be paused for so long`,
		Flags: []cli.Flag{
			&cli.DurationFlag{Name: "pause", Destination: &m.pause, Usage: "a holder may be paused for this `TIME`", Value: time.Second, Validator: app.NotNegative},
			&cli.DurationFlag{Name: "network", Destination: &m.network, Usage: "an answer of Redis may take this `TIME`",
				Value: 200 * time.Millisecond, Validator: app.NotNegative},
		},
		Action: conn.TimedAction(a, conn.Redis, func(cmd *cli.Command) error {
			if m.kind = a.Argument; strings.Contains(m.kind, ":") {
				return app.UsageError("%s takes %s, got %q", cmd.FullName(), app.Takes(cmd.ArgsUsage), m.kind)
			}
			return nil
		}, func(ctx context.Context, s *conn.Servers) (term.Report, error) { return m.take(ctx, s) }),
	}
}

// measurement holds the arguments of ttl.
type measurement struct {
	kind           string
	pause, network time.Duration
}

// Advice is the result of ttl.
type Advice struct {
	ResourceType string `json:"resource_type"`
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

// leastSamples is the number of samples of which one lies above p99.9.
const leastSamples = 1000

// take reads the events that Redis has kept. Leases that were lost would have been held for longer.
func (m measurement) take(ctx context.Context, s *conn.Servers) (*Advice, error) {
	var lost int64
	var held []time.Duration
	err := feed.Replay(ctx, s.Client, "0", func(e feed.Event) error {
		if e.Kind != feed.Released && e.Kind != feed.Lost || !strings.HasPrefix(e.Resource, m.kind+":") {
			return nil
		}
		if e.Kind == feed.Lost {
			lost++
		}
		held = append(held, e.Took)
		return nil
	}, feed.Namespace(s.Names.Namespace))
	if err != nil {
		return nil, fmt.Errorf("redis: the feed: %w", err)
	}
	if len(held) < leastSamples {
		return nil, fmt.Errorf("too few hold times: %d of %s: in the feed, and p99.9 takes %d; switch observe/feed on in more of the programs "+
			"or let them run on (Redis keeps about the last 10000 events of all kinds), or ask the histogram of observe/prom: see docs/patterns.md",
			len(held), term.Visible(m.kind), leastSamples)
	}
	slices.Sort(held)
	quantile := func(q float64) time.Duration { return held[int(math.Ceil(q*float64(len(held))))-1] }
	p999 := quantile(0.999)
	ttl := roundUp(max(p999+m.pause+m.network, 6*time.Millisecond))
	return &Advice{
		ResourceType: m.kind, Samples: int64(len(held)), Lost: lost,
		P50MS: ceilMS(quantile(0.5)), P99MS: ceilMS(quantile(0.99)), P999MS: ceilMS(p999),
		PauseMS: m.pause.Milliseconds(), NetworkMS: m.network.Milliseconds(),
		TTLMS: ttl.Milliseconds(), RenewEveryMS: (ttl / 3).Milliseconds(), WarnBeforeMS: (ttl / 6).Milliseconds(),
	}, nil
}

func ceilMS(d time.Duration) int64 { return (d + time.Millisecond - 1).Milliseconds() }

// roundUp leaves two digits, because the result is not more exact.
func roundUp(d time.Duration) time.Duration {
	ms := float64(d) / float64(time.Millisecond)
	step := math.Max(1, math.Pow(10, math.Floor(math.Log10(ms))-1))
	return time.Duration(math.Ceil(ms/step)*step) * time.Millisecond
}

// Print implements [term.Report].
func (r *Advice) Print(p term.Page) {
	from := fmt.Sprintf("%d leases on %s:..., from the feed", r.Samples, term.Visible(r.ResourceType))
	if r.Lost > 0 {
		from += fmt.Sprintf("; %d of them were lost, and would have been held for longer", r.Lost)
	}
	p.Say("%s.", from)
	fmt.Fprintln(p.Out)
	p.Facts(
		[2]string{"HELD FOR", fmt.Sprintf("p50 %s, p99 %s, p99.9 %s", term.Millis(r.P50MS), term.Millis(r.P99MS), term.Millis(r.P999MS))},
		[2]string{"TTL", fmt.Sprintf("%s = p99.9 %s + pause %s + network %s, rounded up", term.Millis(r.TTLMS), term.Millis(r.P999MS), term.Millis(r.PauseMS), term.Millis(r.NetworkMS))},
		[2]string{"RENEW EVERY", term.Millis(r.RenewEveryMS) + ", a third"},
		[2]string{"STOP WORK AT", term.Millis(r.WarnBeforeMS) + " before the end, a sixth"},
	)
	fmt.Fprintf(p.Out, "\nlease.Config{TTL: %s, RenewEvery: %s, WarnBefore: %s}\n", goDuration(r.TTLMS), goDuration(r.RenewEveryMS), goDuration(r.WarnBeforeMS))
}

func goDuration(ms int64) string {
	if ms%1000 == 0 {
		return fmt.Sprintf("%d * time.Second", ms/1000)
	}
	return fmt.Sprintf("%d * time.Millisecond", ms)
}
