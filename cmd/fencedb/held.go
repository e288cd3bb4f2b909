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

// heldByFeed reads what is kept of the stream.
func heldByFeed(ctx context.Context, cmd *cli.Command, kind string) (holdTimes, error) {
	client, err := redisClient(ctx, cmd)
	if err != nil {
		return holdTimes{}, err
	}
	defer client.Close()
	held := holdTimes{source: "feed"}
	var all []time.Duration
	err = feed.Replay(ctx, client, "0", func(e feed.Event) error {
		if e.Kind != feed.Released && e.Kind != feed.Lost || !strings.HasPrefix(e.Resource, kind+":") {
			return nil
		}
		if e.Kind == feed.Lost {
			held.lost++
		}
		all = append(all, e.Took)
		return nil
	}, feed.Namespace(cmd.String(flagNamespace)))
	if err != nil {
		return holdTimes{}, fmt.Errorf("redis: the feed: %w", err)
	}
	slices.Sort(all)
	held.count = int64(len(all))
	held.at = func(q float64) time.Duration { return all[int(math.Ceil(q*float64(len(all))))-1] }
	return held, nil
}

// holdHistogram is what observe/prom counts hold times in.
const holdHistogram = "redis_lease_hold_duration_seconds_bucket"

// bucket is how many leases were held for at most that long.
type bucket struct{ upTo, count float64 }

// heldByPrometheus takes the upper bound of the bucket in which a quantile lies: a TTL may be too long, not too short.
func heldByPrometheus(ctx context.Context, cmd *cli.Command, kind string) (holdTimes, error) {
	query := fmt.Sprintf("sum by (le) (increase(%s{resource_type=%q}[%ds]))", holdHistogram, kind, int(cmd.Duration(flagOver).Seconds()))
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
		return nil, fmt.Errorf("prometheus: %s, and an answer that is none of Prometheus's: %w", response.Status, err)
	}
	if answer.Status != "success" {
		return nil, fmt.Errorf("prometheus: %s: %s", response.Status, answer.Error)
	}
	return sorted(answer.Data.Result)
}

// sample is one value of the answer: [when, "what"].
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
			return nil, fmt.Errorf("prometheus: a bucket that is none: %w", err)
		}
		buckets = append(buckets, bucket{upTo, count})
	}
	slices.SortFunc(buckets, func(a, b bucket) int { return cmp.Compare(a.upTo, b.upTo) })
	return buckets, nil
}
