package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/observe/feed"
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
		Usage:     "advise a TTL for a type of resources",
		ArgsUsage: "TYPE",
		Description: `Takes the time within which 999 of 1000 leases on TYPE:... were released,
and adds how long a holder may be paused and how long Redis may take to
answer. Renewal after a third of that leaves two more tries; work should stop
when a sixth is left. A longer TTL loses fewer leases, but a holder that dies
blocks the resource for longer.

The times come from the events of observe/feed, or from the histogram of
observe/prom in a Prometheus.

   fencedb ttl table
   fencedb ttl table --pause 5s        the holder may be paused for so long
   fencedb ttl table --prometheus http://prom:9090`,
		Flags: []cli.Flag{
			&cli.DurationFlag{Name: flagPause, Usage: "a holder may be paused for this `TIME`", Value: time.Second},
			&cli.DurationFlag{Name: flagNetwork, Usage: "an answer of Redis may take this `TIME`", Value: 200 * time.Millisecond},
			&cli.StringFlag{Name: flagPrometheus, Usage: "ask the Prometheus at `URL`", Sources: cli.EnvVars("FENCEDB_PROMETHEUS_URL")},
			&cli.DurationFlag{Name: flagOver, Usage: "with --" + flagPrometheus + ": use the last `TIME`", Value: 7 * day},
		},
		Action: a.adviseTTL,
	}
}

// holdTimes are the times that leases were held.
type holdTimes struct {
	source string
	count  int64
	lost   int64 // how many of them were lost, and would have been held for longer
	at     func(quantile float64) time.Duration
}

// advice is the result of ttl.
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

// leastSamples is the number of samples of which one lies above p99.9.
const leastSamples = 1000

var errTooFew = errors.New("too few hold times")

func (a *app) adviseTTL(ctx context.Context, cmd *cli.Command) error {
	kind := cmd.Args().First()
	pause, network := cmd.Duration(flagPause), cmd.Duration(flagNetwork)
	switch {
	case strings.Contains(kind, ":"):
		return usage("%s takes %s, got %q", cmd.FullName(), arguments[cmd.ArgsUsage].text, kind)
	case pause < 0 || network < 0 || cmd.Duration(flagOver) < time.Minute:
		return usage("--%s and --%s must not be negative, nor --%s below 1m", flagPause, flagNetwork, flagOver)
	}
	measure := a.heldByFeed
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

// roundUp leaves two digits, because the result is not more exact.
func roundUp(d time.Duration) time.Duration {
	ms := float64(d) / float64(time.Millisecond)
	step := math.Max(1, math.Pow(10, math.Floor(math.Log10(ms))-1))
	return time.Duration(math.Ceil(ms/step)*step) * time.Millisecond
}

func (r *advice) print(p page) {
	from := fmt.Sprintf("%d leases on %s:..., from the %s", r.Samples, visible(r.ResourceType), r.Source)
	if r.Lost > 0 {
		from += fmt.Sprintf("; %d of them were lost, and would have been held for longer", r.Lost)
	}
	p.say("%s.", from)
	fmt.Fprintln(p.out)
	p.facts(
		[2]string{"HELD FOR", fmt.Sprintf("p50 %s, p99 %s, p99.9 %s", millis(r.P50MS), millis(r.P99MS), millis(r.P999MS))},
		[2]string{"TTL", fmt.Sprintf("%s = p99.9 %s + pause %s + network %s, rounded up", millis(r.TTLMS), millis(r.P999MS), millis(r.PauseMS), millis(r.NetworkMS))},
		[2]string{"RENEW EVERY", millis(r.RenewEveryMS) + ", a third"},
		[2]string{"STOP WORK AT", millis(r.WarnBeforeMS) + " before the end, a sixth"},
	)
	fmt.Fprintf(p.out, "\nlease.Config{TTL: %s, RenewEvery: %s, WarnBefore: %s}\n", goDuration(r.TTLMS), goDuration(r.RenewEveryMS), goDuration(r.WarnBeforeMS))
}

func goDuration(ms int64) string {
	if ms%1000 == 0 {
		return fmt.Sprintf("%d * time.Second", ms/1000)
	}
	return fmt.Sprintf("%d * time.Millisecond", ms)
}

// heldByFeed reads the events that Redis has kept.
func (a *app) heldByFeed(ctx context.Context, cmd *cli.Command, kind string) (holdTimes, error) {
	held := holdTimes{source: "feed"}
	var all []time.Duration
	note := func(e feed.Event) error {
		if e.Kind != feed.Released && e.Kind != feed.Lost || !strings.HasPrefix(e.Resource, kind+":") {
			return nil
		}
		if e.Kind == feed.Lost {
			held.lost++
		}
		all = append(all, e.Took)
		return nil
	}
	err := a.onRedis(ctx, cmd, func(ctx context.Context, client redis.UniversalClient) error {
		if err := feed.Replay(ctx, client, "0", note, feed.Namespace(cmd.String(flagNamespace))); err != nil {
			return fmt.Errorf("redis: the feed: %w", err)
		}
		return nil
	})
	if err != nil {
		return holdTimes{}, err
	}
	slices.Sort(all)
	held.count = int64(len(all))
	held.at = func(q float64) time.Duration { return all[int(math.Ceil(q*float64(len(all))))-1] }
	return held, nil
}

// holdHistogram is the metric of observe/prom for hold times.
const holdHistogram = "redis_lease_hold_duration_seconds_bucket"

// bucket counts the leases that were held for at most upTo seconds.
type bucket struct{ upTo, count float64 }

// heldByPrometheus returns the upper bound of the bucket of a quantile: a TTL may be too long but
// not too short.
func heldByPrometheus(ctx context.Context, cmd *cli.Command, kind string) (holdTimes, error) {
	query := fmt.Sprintf("sum by (le) (increase(%s{resource_type=%q}[%ds]))", holdHistogram, kind, int(cmd.Duration(flagOver).Seconds()))
	ctx, cancel := bounded(ctx, cmd)
	defer cancel()
	buckets, err := askPrometheus(ctx, cmd.String(flagPrometheus), query)
	if err != nil {
		return holdTimes{}, err
	}
	held := holdTimes{source: "Prometheus"}
	if len(buckets) == 0 {
		return held, nil
	}
	total := buckets[len(buckets)-1].count
	held.count = int64(total)
	quantile := func(q float64) float64 {
		i := slices.IndexFunc(buckets, func(b bucket) bool { return b.count >= q*total })
		return buckets[i].upTo
	}
	if total > 0 && math.IsInf(quantile(0.999), 1) {
		return holdTimes{}, fmt.Errorf("prometheus: p99.9 is longer than the histogram's largest bucket, %vs; give observe/prom larger ones", buckets[max(0, len(buckets)-2)].upTo)
	}
	held.at = func(q float64) time.Duration { return time.Duration(quantile(q) * float64(time.Second)) }
	return held, nil
}

// askPrometheus returns the buckets of a histogram, the smallest first.
func askPrometheus(ctx context.Context, address, query string) ([]bucket, error) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return nil, usage("--%s is not a URL such as http://prom:9090", flagPrometheus)
	}
	u = u.JoinPath("api/v1/query")
	u.RawQuery = url.Values{"query": {query}}.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, usage("--%s: %w", flagPrometheus, err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("prometheus: %w", withoutURL(err))
	}
	defer response.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct{ Result []sample }
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return nil, fmt.Errorf("prometheus: %s, and the answer is not from a Prometheus: %w", response.Status, err)
	}
	if answer.Status != "success" {
		return nil, fmt.Errorf("prometheus: %s: %s", response.Status, answer.Error)
	}
	return sorted(answer.Data.Result)
}

// sample is one value of the answer: a time and a number in quotes.
type sample struct {
	Metric struct{ LE string }
	Value  [2]any
}

func sorted(samples []sample) (buckets []bucket, err error) {
	for _, s := range samples {
		text, _ := s.Value[1].(string)
		upTo, err1 := strconv.ParseFloat(s.Metric.LE, 64)
		count, err2 := strconv.ParseFloat(text, 64)
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("prometheus: invalid bucket: %w", err)
		}
		buckets = append(buckets, bucket{upTo, count})
	}
	slices.SortFunc(buckets, func(a, b bucket) int { return cmp.Compare(a.upTo, b.upTo) })
	return buckets, nil
}
