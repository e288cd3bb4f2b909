package fencedb

import (
	"context"
	"time"
)

// Tracer is told what becomes of fenced writes, in pairs: each start is followed by one end of the same Op, which gets the
// context that the start returned. So do the statements in between, and with them the tracers of pgx. It is called on the path
// of the work, by many goroutines at once, and must be quick.
//
// Package observe/prom has one for Prometheus, observe/slog one that logs, observe/otel one that makes spans, observe/feed one that
// publishes events. A type can be a tracer of package lease as well.
type Tracer interface {
	TraceWriteStart(ctx context.Context, s TraceStart) context.Context
	TraceWriteEnd(ctx context.Context, e TraceEnd)
}

// Op is what a pair of calls to a Tracer is about.
type Op string

const (
	// OpWrite is one call to Tx, Exec, Query, QueryRow, SendBatch or Seal, from its beginning until the outcome of its
	// transaction is known. Err is as Tx says: nil is committed, ErrStale a stale writer that was refused.
	OpWrite Op = "write"

	// OpCommit is the COMMIT within the OpWrite of Tx, and what was done to find out its outcome. Writes of one round trip have none.
	OpCommit Op = "commit"

	// OpEnter is one call to Enter or EnterSQL. Whether that transaction commits is not known here.
	OpEnter Op = "enter"
)

// TraceStart is what is known when something begins.
type TraceStart struct {
	Op     Op
	Grants []Grant // what is entered or carried, at least one; not to be changed
}

// TraceEnd is what is known when it is over.
type TraceEnd struct {
	TraceStart
	Took time.Duration // since the start
	Err  error         // nil: it was done
}
