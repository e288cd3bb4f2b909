package lease

import (
	"context"
	"sync"
	"time"

	"github.com/fencedb/fencedb/internal/protocol"
)

// core is what the leases and acquisitions of one Issuer have in common.
type core struct {
	cfg         Config
	label       string // of Config.Holder, as it is stored
	store       *store
	watchdog    *watchdog
	lines       *lines
	registry    *registry
	withdrawals *withdrawals
	names       *names
}

// names remembers the names of the resources that were used lately.
type names struct {
	mu   sync.Mutex
	keys map[string]*protocol.Keys // guarded by mu
}

// trustedUntil is the trust window: the clock read before the request was sent, plus the TTL asked
// for, less the margin.
func (c *core) trustedUntil(sent time.Time, ttl time.Duration) time.Time {
	return sent.Add(ttl - c.cfg.Margin)
}

// trace begins a pair. Without tracers it is free, and its context is ctx.
func (c *core) trace(ctx context.Context, s TraceStart) tracing {
	if len(c.cfg.Tracers) == 0 {
		return tracing{ctx: ctx}
	}
	s.Kind, s.Namespace, s.Resources = c.cfg.kind(), c.cfg.Namespace, max(s.Resources, 1)
	t := tracing{tracers: c.cfg.Tracers, start: s, at: time.Now(), ctx: ctx}
	for _, tracer := range t.tracers {
		t.ctx = tracer.TraceLeaseStart(t.ctx, s)
	}
	return t
}

// keys are the names of a resource in Redis.
func (c *core) keys(resource string) *protocol.Keys {
	c.names.mu.Lock()
	defer c.names.mu.Unlock()
	k, known := c.names.keys[resource]
	if !known {
		if len(c.names.keys) == mostNames {
			clear(c.names.keys)
		}
		k = protocol.KeysOf(c.cfg.kind(), c.cfg.Namespace, resource, c.cfg.HashResources)
		c.names.keys[resource] = k
	}
	return k
}

const mostNames = 1000

// together asks about all at once, so that one that hangs does not delay the others.
func together[A, T any](about []A, ask func(n int, a A) (T, error)) []protocol.Answer[T] {
	answers := make([]protocol.Answer[T], len(about))
	var all sync.WaitGroup
	for n, a := range about {
		all.Go(func() { answers[n].Value, answers[n].Err = ask(n, a) })
	}
	all.Wait()
	return answers
}
