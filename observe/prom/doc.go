// Package prom counts and times what becomes of leases and fenced writes, for Prometheus.
//
//	metrics := prom.New(prom.Config{})
//	registry.MustRegister(metrics)
//	issuer, err := lease.New(client, lease.Config{TTL: 10 * time.Second, Tracers: []lease.Tracer{metrics}})
//	db := fencedb.Traced(pool, metrics)
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
