package fencedb

import (
	"context"
	"errors"
	"time"
)

// Traced returns db with tracers that are told of every write through it. Make it once, where the pool is made:
//
//	db := fencedb.Traced(pool, metrics, logs)
//	err := fencedb.Tx(ctx, db, lease, func(tx pgx.Tx) error { ... })
//
// A grant that is refused before anything is sent for it, with ErrInvalidGrant, is not told.
func Traced(db DB, tracers ...Tracer) DB {
	plain, before := untraced(db)
	return tracedDB{plain, append(before[:len(before):len(before)], tracers...)}
}

type tracedDB struct {
	DB
	tracers []Tracer
}

func untraced(db DB) (DB, []Tracer) {
	if t, ok := db.(tracedDB); ok {
		return t.DB, t.tracers
	}
	return db, nil
}

// Trace is Traced for one call. Enter and EnterSQL, which get no DB, have no other way.
func Trace(tracers ...Tracer) Option {
	return func(c *config) { c.tracers = append(c.tracers[:len(c.tracers):len(c.tracers)], tracers...) }
}

// tracing is one pair of calls that has begun, or none if nobody traces.
type tracing struct {
	tracers []Tracer
	start   TraceStart
	at      time.Time
	ctx     context.Context // for what happens in between
	outcome error           // what end tells
}

// errPanicked is told when nothing else is known: a panic came in between.
var errPanicked = errors.New("fencedb: a panic came before the outcome was known; rolled back, unless it came out of a callback of a batch")

// tracedBy adds the tracers of db to those of the call, and returns what they were put before.
func (e *entry) tracedBy(db DB) DB {
	plain, tracers := untraced(db)
	e.tracers = append(tracers[:len(tracers):len(tracers)], e.tracers...)
	e.db = plain
	return plain
}

// trace begins a pair. Without tracers it costs nothing and hands ctx back.
func (e *entry) trace(ctx context.Context, op Op) tracing {
	t := tracing{ctx: ctx, outcome: errPanicked}
	if len(e.tracers) == 0 {
		return t
	}
	t.tracers, t.start, t.at = e.tracers, TraceStart{Op: op, Grants: e.grants}, time.Now()
	for _, tracer := range t.tracers {
		t.ctx = tracer.TraceWriteStart(t.ctx, t.start)
	}
	return t
}

// is notes the outcome, and returns it.
func (t *tracing) is(err error) error {
	t.outcome = err
	return err
}

// end ends the pair. It is deferred, to run after a panic as well.
func (t *tracing) end() {
	if len(t.tracers) == 0 {
		return
	}
	e := TraceEnd{TraceStart: t.start, Took: time.Since(t.at), Err: t.outcome}
	for _, tracer := range t.tracers {
		tracer.TraceWriteEnd(t.ctx, e)
	}
}
