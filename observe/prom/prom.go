// Package prom counts and times what becomes of leases and fenced writes, for Prometheus.
//
//	metrics := prom.New(prom.Config{})
//	registry.MustRegister(metrics)
//	issuer, err := lease.New(client, lease.Config{TTL: 10 * time.Second, Tracers: []lease.Tracer{metrics}})
//	db := fencedb.With(pool, fencedb.Trace(metrics))
//
// One [Metrics] serves all issuers and pools of a process. docs/observing.md lists the metrics with their labels and what
// they mean.
//
// # Labels
//
// No label has a value that grows with the data. Resources and lease ids never become one. What does:
//
//   - resource_type is what stands before the first ':' of a resource, such as "table" of "table:12". The first
//     [Config.MaxTypes] that come are kept, or those that [Config.Types] names; every other, and a resource without ':' that
//     Types does not name, is "other". What is not a lease but built on one has its kind in front: "semaphore/render".
//   - namespace is that of the issuer, bounded likewise.
//   - outcome and cause are from fixed sets, and all of them are there from the first time on that a type is met: a rate of
//     something that has never happened is 0 and not missing.
//
// A write to several resources counts once, as one to the type of the first, or of the one that was refused.
//
// # What it costs
//
// A handful of atomic additions for each acquisition and each write, and three small allocations for each lease. BenchmarkMetrics
// measures them alone, BenchmarkOverheadOfAcquiring beside the round trips.
package prom

import (
	"context"
	"math"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
)

// Config is how [Metrics] are labelled. The zero value is a good one.
type Config struct {
	// Types are the resource types that are told apart; all others are "other". Defaults to the first MaxTypes that come.
	Types []string

	// MaxTypes bounds the resource types that come by themselves, and the namespaces. Defaults to 50.
	MaxTypes int

	// Downstream is what the metric of refused tokens calls the store that refused. Defaults to "postgres".
	Downstream string

	// HoldBuckets are those of the time that leases are held, in seconds and rising. Advice on TTLs (fencedb ttl) is as exact
	// as they are. Defaults to thirteen from a millisecond to an hour.
	HoldBuckets []float64

	// Exemplar returns what to attach to a measurement, such as the trace's id, or nil. It gets the context of the operation. With
	// OpenTelemetry:
	//
	//	func(ctx context.Context) prometheus.Labels {
	//		if s := trace.SpanContextFromContext(ctx); s.IsSampled() {
	//			return prometheus.Labels{"trace_id": s.TraceID().String()}
	//		}
	//		return nil
	//	}
	//
	// Names and values together may have 128 characters; more is not attached. Defaults to none.
	Exemplar func(ctx context.Context) prometheus.Labels
}

func (c Config) withDefaults() Config {
	if c.MaxTypes <= 0 {
		c.MaxTypes = 50
	}
	if c.Downstream == "" {
		c.Downstream = "postgres"
	}
	if len(c.HoldBuckets) == 0 {
		c.HoldBuckets = workBuckets
	}
	return c
}

// Metrics is a tracer of leases and of writes, and a collector to be registered once. It is safe for concurrent use.
type Metrics struct {
	cfg        Config
	namer      namer
	leases     *table[*leaseSeries] // by resource_type
	writes     *table[*writeSeries] // by resource_type
	notOwned   *table[prometheus.Counter]
	population population
	all        []prometheus.Collector
}

var (
	_ prometheus.Collector = (*Metrics)(nil)
	_ lease.Tracer         = (*Metrics)(nil)
	_ fencedb.Tracer       = (*Metrics)(nil)
)

// In seconds. A grant takes a round trip to Redis, waiting and holding take as long as the work, a write takes a few round
// trips to Postgres.
var (
	requestBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
	workBuckets    = []float64{.001, .01, .05, .1, .5, 1, 5, 10, 30, 60, 300, 900, 3600}
)

// New returns metrics to give to a registry, to issuers and to pools.
func New(cfg Config) *Metrics {
	m := &Metrics{cfg: cfg.withDefaults(), namer: newNamer(cfg.Types), population: newPopulation()}
	limit := m.cfg.MaxTypes
	if m.namer.listed != nil {
		limit = math.MaxInt // the list is the limit
	}
	m.leases = newTable(limit, m.leaseVectors())
	m.writes = newTable(limit, m.writeVectors())
	notOwned := m.counter("redis_lease_not_owned_total", "Renewals and releases that found the lease gone or taken.", "namespace")
	m.notOwned = newTable(m.cfg.MaxTypes, func(namespace string) prometheus.Counter { return notOwned.WithLabelValues(namespace) })
	return m
}

// Describe implements [prometheus.Collector].
func (m *Metrics) Describe(descs chan<- *prometheus.Desc) {
	for _, c := range m.all {
		c.Describe(descs)
	}
	m.population.describe(descs)
}

// Collect implements [prometheus.Collector].
func (m *Metrics) Collect(metrics chan<- prometheus.Metric) {
	for _, c := range m.all {
		c.Collect(metrics)
	}
	m.population.collect(metrics)
}

const resourceType = "resource_type"

func (m *Metrics) counter(name, help string, labels ...string) *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	m.all = append(m.all, v)
	return v
}

func (m *Metrics) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	m.all = append(m.all, v)
	return v
}

func (m *Metrics) histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	m.all = append(m.all, v)
	return v
}

// losses are the causes of redis_lease_lost_total: a release is no loss.
var losses = slices.DeleteFunc(lease.OpHold.Outcomes(), func(word string) bool { return word == "released" })

// leaseSeries are those of one resource type. Maps have every word of their kind, and are not changed.
type leaseSeries struct {
	acquired, released, extended, lost, healed map[string]prometheus.Counter
	staleReleases, contended, revoked          prometheus.Counter
	waiters                                    prometheus.Gauge
	acquireTook, waitTook, holdTook            prometheus.Observer
	held                                       *held
}

func (m *Metrics) leaseVectors() func(string) *leaseSeries {
	acquired := m.counter("redis_lease_acquire_total", "Calls that acquire, by how they ended.", resourceType, "outcome")
	released := m.counter("redis_lease_release_total", "Releases, by how they ended.", resourceType, "outcome")
	extended := m.counter("redis_lease_extend_total", "Renewals, by how they ended.", resourceType, "outcome")
	lost := m.counter("redis_lease_lost_total", "Leases that ended otherwise than by their release, by cause.", resourceType, "cause")
	healed := m.counter("redis_lease_healed_total", "Leases exchanged because their token was refused although they stood.", resourceType, "outcome")
	stale := m.counter("redis_lease_stale_release_total", "Releases of leases that were over before.", resourceType)
	contended := m.counter("redis_lease_contention_total", "Calls that acquire and found the resource taken.", resourceType)
	revoked := m.counter("redis_lease_revoked_total", "Revocations and take-overs by this process.", resourceType)
	waiters := m.gauge("redis_lease_waiters", "Calls that wait for a resource.", resourceType)
	acquireTook := m.histogram("redis_lease_acquire_duration_seconds", "Time that calls took to acquire or to fail, with waiting and sealing.", requestBuckets, resourceType)
	waitTook := m.histogram("redis_lease_wait_duration_seconds", "Time from when a resource was found taken to its grant or to giving up.", workBuckets, resourceType)
	holdTook := m.histogram("redis_lease_hold_duration_seconds", "Time from the grant of a lease to its end, however it ended.", m.cfg.HoldBuckets, resourceType)
	return func(name string) *leaseSeries {
		return &leaseSeries{
			acquired:      each(acquired, name, lease.OpAcquire.Outcomes()),
			released:      each(released, name, lease.OpRelease.Outcomes()),
			extended:      each(extended, name, lease.OpExtend.Outcomes()),
			lost:          each(lost, name, losses),
			healed:        each(healed, name, lease.OpHeal.Outcomes()),
			staleReleases: stale.WithLabelValues(name),
			contended:     contended.WithLabelValues(name),
			revoked:       revoked.WithLabelValues(name),
			waiters:       waiters.WithLabelValues(name),
			acquireTook:   acquireTook.WithLabelValues(name),
			waitTook:      waitTook.WithLabelValues(name),
			holdTook:      holdTook.WithLabelValues(name),
			held:          m.population.group(name),
		}
	}
}

// writeSeries are those of one resource type.
type writeSeries struct {
	written    map[string]prometheus.Counter
	rejected   prometheus.Counter
	writeTook  func(outcome string) prometheus.Observer // made when needed: fifteen buckets for each outcome are many
	commitTook prometheus.Observer
}

func (m *Metrics) writeVectors() func(string) *writeSeries {
	written := m.counter("fencedb_writes_total", "Fenced writes, by how they ended.", resourceType, "outcome")
	rejected := m.counter("redis_lease_fencing_rejected_total", "Fenced writes and openings that were refused because their token was stale.", resourceType, "downstream")
	writeTook := m.histogram("fencedb_write_duration_seconds", "Time of fenced writes until their outcome was known.", requestBuckets, resourceType, "outcome")
	commitTook := m.histogram("fencedb_commit_duration_seconds", "Time of COMMIT in fenced transactions until its outcome was known.", requestBuckets, resourceType)
	return func(name string) *writeSeries {
		return &writeSeries{
			written:    each(written, name, fencedb.Outcomes()),
			rejected:   rejected.WithLabelValues(name, m.cfg.Downstream),
			writeTook:  func(outcome string) prometheus.Observer { return writeTook.WithLabelValues(name, outcome) },
			commitTook: commitTook.WithLabelValues(name),
		}
	}
}

func each(vector *prometheus.CounterVec, name string, words []string) map[string]prometheus.Counter {
	counters := make(map[string]prometheus.Counter, len(words))
	for _, word := range words {
		counters[word] = vector.WithLabelValues(name, word)
	}
	return counters
}
