package prom

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
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
