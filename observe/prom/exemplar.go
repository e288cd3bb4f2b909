package prom

import (
	"context"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
)

func (m *Metrics) observe(ctx context.Context, o prometheus.Observer, took time.Duration) {
	if labels := m.exemplar(ctx); labels != nil {
		o.(prometheus.ExemplarObserver).ObserveWithExemplar(took.Seconds(), labels)
		return
	}
	o.Observe(took.Seconds())
}

func (m *Metrics) count(ctx context.Context, c prometheus.Counter) {
	if labels := m.exemplar(ctx); labels != nil {
		c.(prometheus.ExemplarAdder).AddWithExemplar(1, labels)
		return
	}
	c.Inc()
}

// exemplar is nil if there is none, or one that client_golang would panic over.
func (m *Metrics) exemplar(ctx context.Context) prometheus.Labels {
	if m.cfg.Exemplar == nil {
		return nil
	}
	labels := m.cfg.Exemplar(ctx)
	size := 0
	for name, value := range labels {
		size += utf8.RuneCountInString(name) + utf8.RuneCountInString(value)
	}
	if len(labels) == 0 || size > prometheus.ExemplarMaxRunes {
		return nil
	}
	return labels
}
