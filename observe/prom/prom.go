// Package prom counts and times leases and fenced writes for Prometheus.
//
//	metrics := prom.New(prom.Config{})
//	registry.MustRegister(metrics)
//	issuer, err := lease.New(client, lease.Config{TTL: 10 * time.Second, Tracers: []lease.Tracer{metrics}})
//	db := fencedb.With(pool, fencedb.Trace(metrics))
//
// One [Metrics] serves all issuers and pools of a process. docs/observing.md lists the metrics with
// their labels and what they mean.
//
// # Labels
//
// No label has values that grow with the data. Resources and lease ids never become labels. The
// labels are:
//
//   - resource_type is the part of a resource before the first ':', such as "table" in
//     "table:12". The first 50 types are kept, or those in [Config.Types]. Every
//     other resource is "other". Permits of semaphores and the like have their kind in front:
//     "semaphore/render".
//   - namespace is the namespace of the issuer, with the same bound.
//   - outcome, cause and failure have fixed sets of values. All values exist as soon as their type
//     does, so the rate of something that never happened is 0 and not missing.
//
// A rate over all resources of a type hides one that is stuck among a hundred that are not. So
// redis_lease_failing_seconds and fencedb_writes_failing_seconds show for how long one resource has
// had failures and no success in this process. For each type and failure, a thousand failing
// resources are remembered, each until nobody has asked for it for five minutes.
//
// A write to several resources counts once, for the type of the refused resource or of the first.
//
// # What it costs
//
// A handful of atomic additions for each acquisition and each write, and three small allocations
// for each lease. BenchmarkMetrics measures them alone, BenchmarkOverheadOfAcquiring beside the
// round trips.
package prom

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/observe/internal/tally"
)

// Config says how to label [Metrics]. The zero value is usable.
type Config struct {
	// Types are the resource types with labels of their own; all others are "other". Defaults to
	// the first 50.
	Types []string

	// HoldBuckets are the buckets of the hold time, in seconds and rising. They limit the precision of
	// its percentiles, from which a TTL follows. Defaults to thirteen buckets from a millisecond to an
	// hour.
	HoldBuckets []float64

	// Dropped returns the number of events that were lost, such as feed.Feed.Dropped. Defaults to 0.
	Dropped func() int64

	// Exemplar returns the exemplar of a measurement, such as the id of the trace, or nil. It gets
	// the context of the operation. With OpenTelemetry:
	//
	//	func(ctx context.Context) prometheus.Labels {
	//		if s := trace.SpanContextFromContext(ctx); s.IsSampled() {
	//			return prometheus.Labels{"trace_id": s.TraceID().String()}
	//		}
	//		return nil
	//	}
	//
	// An exemplar with more than 128 characters in names and values, or with a name or value that
	// Prometheus refuses, such as bytes that are not UTF-8, is not attached. Like a tracer, the
	// function must not call a lease, which may be locked. Defaults to none.
	Exemplar func(ctx context.Context) prometheus.Labels
}

// Metrics is a tracer of leases and of writes, and a collector to be registered once. It is safe
// for concurrent use.
type Metrics struct {
	cfg        Config
	tally      *tally.Tally[*leaseSeries, *writeSeries]
	namespaces *tally.Table[string]
	all        *prometheus.Registry

	mu       sync.Mutex
	computed []func(now time.Time) // guarded by mu; they set gauges before a scrape
}

var (
	_ prometheus.Collector = (*Metrics)(nil)
	_ lease.Tracer         = (*Metrics)(nil)
	_ fencedb.Tracer       = (*Metrics)(nil)
)

// New returns metrics for a registry, for issuers and for pools.
func New(cfg Config) *Metrics {
	if len(cfg.HoldBuckets) == 0 {
		cfg.HoldBuckets = tally.WorkBuckets
	}
	if cfg.Dropped == nil {
		cfg.Dropped = func() int64 { return 0 }
	}
	m := &Metrics{cfg: cfg, all: prometheus.NewRegistry()}
	m.tally = tally.New(cfg.Types, m.leaseVectors(), m.writeVectors())
	m.namespaces = tally.NewTable(tally.MaxTypes, func(namespace string) string { return namespace })
	promauto.With(m.all).NewCounterFunc(prometheus.CounterOpts{Name: "fencedb_events_dropped_total",
		Help: "Events of observe/feed that were not published."}, func() float64 { return float64(cfg.Dropped()) })
	return m
}

// Describe implements [prometheus.Collector].
func (m *Metrics) Describe(descs chan<- *prometheus.Desc) { m.all.Describe(descs) }

// Collect implements [prometheus.Collector].
func (m *Metrics) Collect(metrics chan<- prometheus.Metric) {
	now := time.Now()
	m.mu.Lock()
	for _, compute := range m.computed {
		compute(now)
	}
	m.mu.Unlock()
	m.all.Collect(metrics)
}

const resourceType = "resource_type"

func (m *Metrics) counter(name, help string, labels ...string) *prometheus.CounterVec {
	return promauto.With(m.all).NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

func (m *Metrics) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	return promauto.With(m.all).NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
}

// compute sets a gauge at each scrape.
func (m *Metrics) compute(gauge prometheus.Gauge, read func(now time.Time) float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.computed = append(m.computed, func(now time.Time) { gauge.Set(read(now)) })
}

func (m *Metrics) histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return promauto.With(m.all).NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
}

// losses are the causes of redis_lease_lost_total: a release is no loss.
var losses = slices.DeleteFunc(lease.OpHold.Outcomes(), func(word string) bool { return word == "released" })

// leaseSeries are the series of one resource type. The maps have every outcome and are never
// changed.
type leaseSeries struct {
	ended                             map[lease.Op]map[string]prometheus.Counter // by outcome
	took                              map[lease.Op]prometheus.Observer
	staleReleases, contended, revoked prometheus.Counter
	overtaken                         prometheus.Counter
	notOwned                          func(namespace string) prometheus.Counter
}

func (m *Metrics) leaseVectors() func(*tally.Row[*leaseSeries]) *leaseSeries {
	acquired := m.counter("redis_lease_acquire_total", "Calls that acquire, by how they ended.", resourceType, "outcome")
	released := m.counter("redis_lease_release_total", "Releases, by how they ended.", resourceType, "outcome")
	extended := m.counter("redis_lease_extend_total", "Renewals, by how they ended.", resourceType, "outcome")
	lost := m.counter("redis_lease_lost_total", "Leases that ended otherwise than by their release, by cause.", resourceType, "cause")
	raised := m.counter("redis_lease_raised_total", "Last tokens raised because the data store had seen greater ones.", resourceType, "outcome")
	stale := m.counter("redis_lease_stale_release_total", "Releases that found the lease gone, taken or revoked.", resourceType)
	contended := m.counter("redis_lease_contention_total", "Calls that acquire and found the resource taken.", resourceType)
	revoked := m.counter("redis_lease_revoked_total", "Revocations and take-overs by this process.", resourceType)
	overtaken := m.counter("redis_lease_overtaken_total", "Writes refused as stale because another lease was issued while this process held its own.", resourceType)
	notOwned := m.counter("redis_lease_not_owned_total", "Renewals and releases of leases that were over, gone, taken or revoked.", "namespace", resourceType)
	held := m.gauge("redis_lease_held", "Leases held now.", resourceType)
	oldestHeld := m.gauge("redis_lease_oldest_held_seconds", "Age of the oldest lease that is held now, 0 if there is none.", resourceType)
	waiters := m.gauge("redis_lease_waiters", "Calls that wait for a resource.", resourceType)
	oldestWait := m.gauge("redis_lease_oldest_wait_seconds", "Age of the oldest call that waits now, 0 if there is none.", resourceType)
	longest := m.gauge("redis_lease_failing_seconds",
		"Longest time for which one resource has had this failure and no success.", "failure", resourceType)
	acquireTook := m.histogram("redis_lease_acquire_duration_seconds",
		"Time that calls took to acquire or to fail, with waiting and sealing.", tally.RequestBuckets, resourceType)
	waitTook := m.histogram("redis_lease_wait_duration_seconds",
		"Time from when a resource was found taken to its grant or to giving up.", tally.WorkBuckets, resourceType)
	holdTook := m.histogram("redis_lease_hold_duration_seconds", "Time from the grant of a lease to its end, however it ended.", m.cfg.HoldBuckets, resourceType)
	return func(row *tally.Row[*leaseSeries]) *leaseSeries {
		name := row.Type
		m.compute(held.WithLabelValues(name), row.Held.Count)
		m.compute(oldestHeld.WithLabelValues(name), row.Held.Oldest)
		m.compute(waiters.WithLabelValues(name), row.Waiting.Count)
		m.compute(oldestWait.WithLabelValues(name), row.Waiting.Oldest)
		m.watch(longest, name, row.Failing)
		return &leaseSeries{
			ended: map[lease.Op]map[string]prometheus.Counter{
				lease.OpAcquire: each(acquired, name, lease.OpAcquire.Outcomes()),
				lease.OpRelease: each(released, name, lease.OpRelease.Outcomes()),
				lease.OpExtend:  each(extended, name, lease.OpExtend.Outcomes()),
				lease.OpHold:    each(lost, name, losses),
				lease.OpRaise:   each(raised, name, lease.OpRaise.Outcomes()),
			},
			took: map[lease.Op]prometheus.Observer{
				lease.OpAcquire: acquireTook.WithLabelValues(name),
				lease.OpWait:    waitTook.WithLabelValues(name),
				lease.OpHold:    holdTook.WithLabelValues(name),
			},
			staleReleases: stale.WithLabelValues(name),
			contended:     contended.WithLabelValues(name),
			revoked:       revoked.WithLabelValues(name),
			overtaken:     overtaken.WithLabelValues(name),
			notOwned:      func(namespace string) prometheus.Counter { return notOwned.WithLabelValues(namespace, name) },
		}
	}
}

type writeSeries struct {
	written    map[string]prometheus.Counter
	rejected   prometheus.Counter
	writeTook  func(outcome string) prometheus.Observer // created when needed, because each has fifteen buckets
	commitTook prometheus.Observer
}

func (m *Metrics) writeVectors() func(*tally.Row[*writeSeries]) *writeSeries {
	written := m.counter("fencedb_writes_total", "Fenced writes, by how they ended.", resourceType, "outcome")
	rejected := m.counter("redis_lease_fencing_rejected_total",
		"Fenced writes and calls of Enter that were refused because their token was stale.", resourceType, "downstream")
	writeTook := m.histogram("fencedb_write_duration_seconds", "Time of fenced writes until their outcome was known.", tally.RequestBuckets, resourceType, "outcome")
	commitTook := m.histogram("fencedb_commit_duration_seconds",
		"Time of COMMIT in fenced transactions until its outcome was known.", tally.RequestBuckets, resourceType)
	longest := m.gauge("fencedb_writes_failing_seconds",
		"Longest time for which the writes to one resource have had this outcome and none has committed.", "outcome", resourceType)
	return func(row *tally.Row[*writeSeries]) *writeSeries {
		name := row.Type
		m.watch(longest, name, row.Failing)
		return &writeSeries{
			written:    each(written, name, append(fencedb.Outcomes(), tally.Entered)),
			rejected:   rejected.WithLabelValues(name, "postgres"),
			writeTook:  func(outcome string) prometheus.Observer { return writeTook.WithLabelValues(name, outcome) },
			commitTook: commitTook.WithLabelValues(name),
		}
	}
}

func (m *Metrics) watch(longest *prometheus.GaugeVec, name string, failing map[string]*tally.Failures) {
	for word, f := range failing {
		m.compute(longest.WithLabelValues(word, name), f.Longest)
	}
}

func each(vector *prometheus.CounterVec, name string, words []string) map[string]prometheus.Counter {
	counters := make(map[string]prometheus.Counter, len(words))
	for _, word := range words {
		counters[word] = vector.WithLabelValues(name, word)
	}
	return counters
}
