package prom

import (
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// other is the label for all values above the limit.
const other = "other"

// table has a row for each value of a label, up to a limit. It creates rows when they are needed
// and keeps them.
type table[R any] struct {
	limit int
	make  func(value string) R

	mu   sync.RWMutex
	rows map[string]R // guarded by mu; at most limit, and other
}

func newTable[R any](limit int, make func(value string) R) *table[R] {
	return &table[R]{limit: limit, make: make, rows: map[string]R{}}
}

func (t *table[R]) row(value string) R {
	t.mu.RLock()
	r, ok := t.rows[value]
	t.mu.RUnlock()
	if ok {
		return r
	}
	return t.add(value)
}

func (t *table[R]) add(value string) R {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.rows[value]; !ok && len(t.rows) >= t.limit {
		value = other
	}
	if r, ok := t.rows[value]; ok {
		return r
	}
	r := t.make(value)
	t.rows[value] = r
	return r
}

// namer returns the type of resources.
type namer struct {
	listed map[string]bool // nil: any
}

func newNamer(types []string) namer {
	if len(types) == 0 {
		return namer{}
	}
	n := namer{listed: make(map[string]bool)}
	for _, name := range types {
		n.listed[name] = true
	}
	return n
}

func (n namer) of(resource string) string {
	name, _, typed := strings.Cut(resource, ":")
	if n.listed != nil {
		typed = n.listed[name]
	}
	if !typed || name == "" {
		return other
	}
	return name
}

// ofKind separates leases, permits and other kinds.
func (n namer) ofKind(kind, resource string) string {
	if kind == "lease" {
		return n.of(resource)
	}
	return kind + "/" + n.of(resource)
}

// population are the leases that are held now. Ages are computed by a scrape.
type population struct {
	count, oldest *prometheus.Desc

	mu     *sync.Mutex
	groups map[string]*held // by resource_type; guarded by mu
}

// held are the leases of one resource type.
type held struct {
	mu  sync.Mutex
	all map[*hold]struct{} // guarded by mu
}

// hold is one lease. It is in the context from its start to its end.
type hold struct{ since time.Time }

func newPopulation() population {
	labels := []string{resourceType}
	return population{
		count:  prometheus.NewDesc("redis_lease_held", "Leases held now.", labels, nil),
		oldest: prometheus.NewDesc("redis_lease_oldest_held_seconds", "Age of the oldest lease that is held now, 0 if there is none.", labels, nil),
		mu:     new(sync.Mutex),
		groups: make(map[string]*held),
	}
}

func (p *population) group(name string) *held {
	p.mu.Lock()
	defer p.mu.Unlock()
	g := p.groups[name]
	if g == nil {
		g = &held{all: make(map[*hold]struct{})}
		p.groups[name] = g
	}
	return g
}

func (p *population) describe(descs chan<- *prometheus.Desc) {
	descs <- p.count
	descs <- p.oldest
}

func (p *population) collect(metrics chan<- prometheus.Metric) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, g := range p.groups {
		n, age := g.count(time.Now())
		metrics <- prometheus.MustNewConstMetric(p.count, prometheus.GaugeValue, float64(n), name)
		metrics <- prometheus.MustNewConstMetric(p.oldest, prometheus.GaugeValue, age.Seconds(), name)
	}
}

func (g *held) begin() *hold {
	h := &hold{time.Now()}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all[h] = struct{}{}
	return h
}

func (g *held) end(h *hold) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.all, h)
}

func (g *held) count(now time.Time) (n int, oldest time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for h := range g.all {
		oldest = max(oldest, now.Sub(h.since))
	}
	return len(g.all), oldest
}
