package otel

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/observe/internal/tally"
)

const (
	keyType    = attribute.Key("fencedb.resource_type")
	keyFailure = attribute.Key("fencedb.failure")
)

// marks are the attributes of one type of resources, by outcome; "" is for what has none. They are
// never changed.
type marks map[string]metric.MeasurementOption

func marksOf(r *tally.Row[marks], outcomes []string) marks {
	all := marks{"": metric.WithAttributeSet(attribute.NewSet(keyType.String(r.Type)))}
	for _, word := range outcomes {
		all[word] = metric.WithAttributeSet(attribute.NewSet(keyType.String(r.Type), keyOutcome.String(word)))
	}
	return all
}

// metrics are the instruments. Time that passed is a histogram, which counts as well.
type metrics struct {
	tally                       *tally.Tally[marks, marks]
	took                        map[lease.Op]metric.Float64Histogram
	ended                       map[lease.Op]metric.Int64Counter
	overtaken                   metric.Int64Counter
	writeTook, commitTook       metric.Float64Histogram
	entries                     metric.Int64Counter
	held, waiting               metric.Int64ObservableUpDownCounter
	oldestHeld, oldestWait      metric.Float64ObservableGauge
	leasesFailing, writeFailing metric.Float64ObservableGauge
}

// newMetrics hands errors to the handler of OpenTelemetry: work goes on without metrics.
func newMetrics(meter metric.Meter, types []string, dropped func() int64) *metrics {
	var errs []error
	seconds := func(name, text string, buckets []float64) metric.Float64Histogram {
		h, err := meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(text), metric.WithExplicitBucketBoundaries(buckets...))
		errs = append(errs, err)
		return h
	}
	counter := func(name, unit, text string) metric.Int64Counter {
		c, err := meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(text))
		errs = append(errs, err)
		return c
	}
	now := func(name, unit, text string) metric.Int64ObservableUpDownCounter {
		c, err := meter.Int64ObservableUpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(text))
		errs = append(errs, err)
		return c
	}
	age := func(name, text string) metric.Float64ObservableGauge {
		g, err := meter.Float64ObservableGauge(name, metric.WithUnit("s"), metric.WithDescription(text))
		errs = append(errs, err)
		return g
	}
	m := &metrics{
		took: map[lease.Op]metric.Float64Histogram{
			lease.OpAcquire: seconds("fencedb.lease.acquire.duration", "Time that calls took to acquire or to fail, with waiting and sealing.", tally.RequestBuckets),
			lease.OpWait:    seconds("fencedb.lease.wait.duration", "Time from when a resource was found taken to its grant or to giving up.", tally.WorkBuckets),
			lease.OpHold:    seconds("fencedb.lease.hold.duration", "Time from the grant of a lease to its end, by how it ended.", tally.WorkBuckets),
		},
		ended: map[lease.Op]metric.Int64Counter{
			lease.OpExtend:  counter("fencedb.lease.renewals", "{renewal}", "Renewals, by how they ended."),
			lease.OpRelease: counter("fencedb.lease.releases", "{release}", "Releases, by how they ended."),
			lease.OpRevoke:  counter("fencedb.lease.revocations", "{revocation}", "Revocations and take-overs by this process."),
			lease.OpRaise:   counter("fencedb.lease.raises", "{token}", "Last tokens raised because the data store had seen greater ones."),
		},
		overtaken:     counter("fencedb.lease.overtaken", "{write}", "Writes refused as stale because another lease was issued while this process held its own."),
		writeTook:     seconds("fencedb.write.duration", "Time of fenced writes until their outcome was known.", tally.RequestBuckets),
		commitTook:    seconds("fencedb.commit.duration", "Time of COMMIT in fenced transactions until its outcome was known.", tally.RequestBuckets),
		entries:       counter("fencedb.entries", "{transaction}", "Transactions of the application that entered, and those of them that are known not to have committed."),
		held:          now("fencedb.lease.count", "{lease}", "Leases held now."),
		waiting:       now("fencedb.waiter.count", "{call}", "Calls that wait for a resource."),
		oldestHeld:    age("fencedb.lease.oldest", "Age of the oldest lease that is held now, 0 if there is none."),
		oldestWait:    age("fencedb.waiter.oldest", "Age of the oldest call that waits now, 0 if there is none."),
		leasesFailing: age("fencedb.lease.failing", "Longest time for which one resource has had this failure and no success."),
		writeFailing:  age("fencedb.write.failing", "Longest time for which the writes to one resource have had this outcome and none has committed."),
	}
	var outcomes []string
	for _, op := range []lease.Op{lease.OpAcquire, lease.OpHold, lease.OpExtend, lease.OpRelease, lease.OpRaise} {
		outcomes = append(outcomes, op.Outcomes()...)
	}
	m.tally = tally.New(types,
		func(r *tally.Row[marks]) marks { return marksOf(r, outcomes) },
		func(r *tally.Row[marks]) marks { return marksOf(r, append(fencedb.Outcomes(), tally.Entered)) })
	_, err := meter.Int64ObservableCounter("fencedb.events.dropped", metric.WithUnit("{event}"), metric.WithDescription("Events of observe/feed that were not published."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(dropped())
			return nil
		}))
	errs = append(errs, err)
	_, err = meter.RegisterCallback(m.observe, m.held, m.waiting, m.oldestHeld, m.oldestWait,
		m.leasesFailing, m.writeFailing)
	if err = errors.Join(append(errs, err)...); err != nil {
		otel.Handle(err)
	}
	return m
}

func (m *metrics) observe(_ context.Context, o metric.Observer) error {
	now := time.Now()
	m.tally.Rows(func(r *tally.Row[marks]) {
		all := r.Series[""]
		o.ObserveInt64(m.held, int64(r.Held.Count(now)), all)
		o.ObserveInt64(m.waiting, int64(r.Waiting.Count(now)), all)
		o.ObserveFloat64(m.oldestHeld, r.Held.Oldest(now), all)
		o.ObserveFloat64(m.oldestWait, r.Waiting.Oldest(now), all)
		failing(o, m.leasesFailing, r, now)
	}, func(r *tally.Row[marks]) { failing(o, m.writeFailing, r, now) })
	return nil
}

func failing(o metric.Observer, gauge metric.Float64Observable, r *tally.Row[marks], now time.Time) {
	for word, f := range r.Failing {
		o.ObserveFloat64(gauge, f.Longest(now), metric.WithAttributes(keyType.String(r.Type), keyFailure.String(word)))
	}
}

func (m *metrics) leaseEnd(ctx context.Context, e lease.TraceEnd) {
	if !m.tally.LeaseEnd(ctx, e) {
		return
	}
	mark := m.tally.Lease(e.TraceStart).Series[e.Outcome()]
	if histogram, ok := m.took[e.Op]; ok {
		histogram.Record(ctx, e.Took.Seconds(), mark)
	}
	if counter, ok := m.ended[e.Op]; ok {
		counter.Add(ctx, 1, mark)
	}
}

// writeEnd does not count a seal, which counts only as a part of its acquisition.
func (m *metrics) writeEnd(ctx context.Context, e fencedb.TraceEnd) {
	if e.Op == fencedb.OpSeal {
		return
	}
	if overtaken := m.tally.WriteEnd(e); overtaken != nil {
		m.overtaken.Add(ctx, 1, overtaken.Series[""])
	}
	about, _ := e.Subject()
	all, result := m.tally.Write(about.Resource()).Series, e.Outcome()
	switch {
	case e.Op == fencedb.OpCommit:
		m.commitTook.Record(ctx, e.Took.Seconds(), all[""])
	case e.Op == fencedb.OpWrite:
		m.writeTook.Record(ctx, e.Took.Seconds(), all[result])
	case result != "committed":
		m.entries.Add(ctx, 1, all[result])
	case e.Op == fencedb.OpEnter:
		m.entries.Add(ctx, 1, all[tally.Entered])
	}
}
