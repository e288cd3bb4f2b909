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

	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/observe/feed"
)

func (a *app) ttl() *cli.Command {
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

The times come from the events of observe/feed, or from the histogram of
observe/prom in a Prometheus.

   fencedb ttl table
   fencedb ttl table --pause 5s        the holder may be paused for so long
   fencedb ttl table --prometheus http://prom:9090`,
		Flags: []cli.Flag{
			&cli.DurationFlag{Name: "pause", Destination: &m.pause, Usage: "a holder may be paused for this `TIME`", Value: time.Second, Validator: notNegative},
			&cli.DurationFlag{Name: "network", Destination: &m.network, Usage: "an answer of Redis may take this `TIME`", Value: 200 * time.Millisecond, Validator: notNegative},
			&cli.StringFlag{Name: "prometheus", Destination: &m.prometheus, Usage: "ask the Prometheus at `URL`", Sources: cli.EnvVars("FENCEDB_PROMETHEUS_URL")},
			&cli.DurationFlag{Name: "over", Destination: &m.over, Usage: "with --prometheus: use the last `TIME`", Value: 7 * day, Validator: atLeast(time.Minute)},
		},
		Action: func(ctx context.Context, cmd *cli.Command) error {
			if m.kind = cmd.Args().First(); strings.Contains(m.kind, ":") {
				return usage("%s takes %s, got %q", cmd.FullName(), arguments[cmd.ArgsUsage].text, m.kind)
			}
			if m.prometheus == "" {
				return a.read(ctx, onRedis, func(ctx context.Context, s *servers) (report, error) { return m.byFeed(ctx, s) })
			}
			ctx, cancel := a.bounded(ctx)
			defer cancel()
			r, err := m.byPrometheus(ctx)
			if err != nil {
				return err
			}
			return a.show(r)
		},
	}
}

// measurement holds the arguments of ttl.
type measurement struct {
	kind                 string
	pause, network, over time.Duration
	prometheus           string
}

// bucket counts the leases that were held for at most upTo seconds.
type bucket struct{ upTo, count float64 }

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

// advise takes the buckets in order. Of a quantile it takes the upper bound of the bucket: a TTL may be too long
// but not too short. Leases that were lost would have been held for longer.
func (m measurement) advise(source string, buckets []bucket, lost int64) (*advice, error) {
	var count float64
	if len(buckets) > 0 {
		count = buckets[len(buckets)-1].count
	}
	if count < leastSamples {
		return nil, fmt.Errorf("%w: %d of %s: in the %s, and p99.9 takes %d; switch observe/feed on in more of the programs or let them run on "+
			"(Redis keeps about the last 10000 events of all kinds), or have observe/prom count and name its Prometheus with --prometheus",
			errTooFew, int64(count), m.kind, source, leastSamples)
	}
	quantile := func(q float64) float64 {
		return buckets[slices.IndexFunc(buckets, func(b bucket) bool { return b.count >= q*count })].upTo
	}
	if math.IsInf(quantile(0.999), 1) {
		return nil, fmt.Errorf("prometheus: p99.9 is longer than the histogram's largest bucket, %vs; give observe/prom larger ones", buckets[max(0, len(buckets)-2)].upTo)
	}
	held := func(q float64) time.Duration { return time.Duration(quantile(q) * float64(time.Second)) }
	p999 := held(0.999)
	ttl := roundUp(max(p999+m.pause+m.network, 6*time.Millisecond))
	return &advice{
		ResourceType: m.kind, Source: source, Samples: int64(count), Lost: lost,
		P50MS: ceilMS(held(0.5)), P99MS: ceilMS(held(0.99)), P999MS: ceilMS(p999),
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

// byFeed reads the events that Redis has kept. Each lease is a bucket.
func (m measurement) byFeed(ctx context.Context, s *servers) (*advice, error) {
	var lost int64
	var all []bucket
	err := feed.Replay(ctx, s.client, "0", func(e feed.Event) error {
		if e.Kind != feed.Released && e.Kind != feed.Lost || !strings.HasPrefix(e.Resource, m.kind+":") {
			return nil
		}
		if e.Kind == feed.Lost {
			lost++
		}
		all = append(all, bucket{upTo: e.Took.Seconds()})
		return nil
	}, feed.Namespace(s.names.namespace))
	if err != nil {
		return nil, fmt.Errorf("redis: the feed: %w", err)
	}
	slices.SortFunc(all, func(a, b bucket) int { return cmp.Compare(a.upTo, b.upTo) })
	for i := range all {
		all[i].count = float64(i + 1)
	}
	return m.advise("feed", all, lost)
}

// number is one of Prometheus, which has them in quotes or as they are.
type number float64

func (n *number) UnmarshalJSON(text []byte) error {
	f, err := strconv.ParseFloat(strings.Trim(string(text), `"`), 64)
	*n = number(f)
	return err
}

// byPrometheus asks for the histogram of observe/prom.
func (m measurement) byPrometheus(ctx context.Context) (*advice, error) {
	u, err := url.Parse(m.prometheus)
	if err != nil || u.Host == "" {
		return nil, usage("--prometheus is not a URL such as http://prom:9090")
	}
	u = u.JoinPath("api/v1/query")
	u.RawQuery = url.Values{"query": {fmt.Sprintf("sum by (le) (increase(redis_lease_hold_duration_seconds_bucket{resource_type=%q}[%ds]))",
		m.kind, int(m.over.Seconds()))}}.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, usage("--prometheus: %w", err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("prometheus: %w", withoutURL(err))
	}
	defer response.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct {
			Result []struct {
				Metric struct{ LE number }
				Value  [2]number // the time and the count
			}
		}
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return nil, fmt.Errorf("prometheus: %s, and the answer is not from a Prometheus: %w", response.Status, err)
	}
	if answer.Status != "success" {
		return nil, fmt.Errorf("prometheus: %s: %s", response.Status, answer.Error)
	}
	var buckets []bucket
	for _, r := range answer.Data.Result {
		buckets = append(buckets, bucket{float64(r.Metric.LE), float64(r.Value[1])})
	}
	slices.SortFunc(buckets, func(a, b bucket) int { return cmp.Compare(a.upTo, b.upTo) })
	return m.advise("Prometheus", buckets, 0)
}
