package prom

import (
	"strings"
	"sync"
)

// other stands for all values that there is no room for.
const other = "other"

// table has a row for each value of a label, of a bounded number of them. Rows are made when they are first asked for, and stay.
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

// namer gives resources their type.
type namer struct {
	listed map[string]bool // nil: whatever comes
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

// ofKind keeps what is held in different ways apart.
func (n namer) ofKind(kind, resource string) string {
	if kind == "lease" {
		return n.of(resource)
	}
	return kind + "/" + n.of(resource)
}
