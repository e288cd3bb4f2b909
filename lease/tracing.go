package lease

import (
	"context"
	"time"
)

// tracing is one pair of calls that has begun, or none if nobody traces.
type tracing struct {
	tracers []Tracer
	start   TraceStart
	at      time.Time
	ctx     context.Context // for the work in between
}

// trace begins a pair. Without tracers it costs nothing and hands ctx back.
func (i *Issuer) trace(ctx context.Context, s TraceStart) tracing {
	if len(i.cfg.Tracers) == 0 {
		return tracing{ctx: ctx}
	}
	s.Kind, s.Namespace = i.cfg.kind(), i.cfg.Namespace
	s.Resources = max(s.Resources, 1)
	t := tracing{tracers: i.cfg.Tracers, start: s, at: time.Now(), ctx: ctx}
	for _, tracer := range t.tracers {
		t.ctx = tracer.TraceLeaseStart(t.ctx, s)
	}
	return t
}

// granted adds to the end what is known of the lease by then; l may be nil.
func (t *tracing) granted(l *Lease) *tracing {
	if len(t.tracers) > 0 && l != nil {
		t.start.LeaseID, t.start.Token = l.term.id, l.term.token
	}
	return t
}

// end ends the pair. The lease, if there is one, says how long it may be believed in.
func (t *tracing) end(l *Lease, err error) {
	if len(t.tracers) == 0 {
		return
	}
	e := TraceEnd{TraceStart: t.start, Took: time.Since(t.at), Err: err}
	if l != nil && err == nil {
		e.ValidFor = time.Until(l.validity())
	}
	for _, tracer := range t.tracers {
		tracer.TraceLeaseEnd(t.ctx, e)
	}
}

// endWith leaves it to the end of the lease to end the pair, with the cause. Not with a context.AfterFunc: its goroutine costs as much
// as all else that metrics do.
func (t *tracing) endWith(l *Lease) {
	if len(t.tracers) > 0 {
		own := *t // or the lease would put every tracing on the heap
		l.life = &own
	}
}
