package fencedb

import (
	"context"
	"errors"
	"reflect"
	"time"
)

// Tracer is called for fenced writes, in pairs: each start is followed by one end of the same Op.
// The context that the start returned is passed to the statements in between, and so to the tracers
// of pgx, and to the end. A Tracer is called on the path of the work, by many goroutines at once,
// and must be quick. It must not panic: the panic goes on in the caller.
//
// Package observe/prom has one for Prometheus, observe/slog one that logs, observe/otel one that
// makes spans, observe/feed one that publishes events. A type can be a tracer of package lease as
// well.
type Tracer interface {
	TraceWriteStart(ctx context.Context, s TraceStart) context.Context
	TraceWriteEnd(ctx context.Context, e TraceEnd)
}

// Op is what a pair of calls to a [Tracer] is about.
type Op string

const (
	// OpWrite is one call to [Tx], [TxSQL], [Exec], [Query], [QueryRow] or [SendBatch], from its
	// beginning until the outcome of its transaction is known. Err is that of Tx: nil is committed,
	// [ErrStale] a stale writer that was refused.
	OpWrite Op = "write"

	// OpSeal is one call to [Seal], which writes nothing else. Err is as for [OpWrite]: nil means
	// that every earlier token is stale.
	OpSeal Op = "seal"

	// OpCommit is COMMIT inside a [Tx], with the look-up of its outcome. Writes of one round trip
	// have none.
	OpCommit Op = "commit"

	// OpEnter is one call to [Enter] or [EnterSQL]. Whether that transaction commits is not known.
	OpEnter Op = "enter"

	// OpOutcome is one call to [Entry.Outcome] or [Entry.OutcomeSQL], for the tracers of [Enter].
	// Err is as for [OpWrite].
	OpOutcome Op = "outcome"
)

// TraceStart is what is known when an Op begins.
type TraceStart struct {
	Op     Op
	Grants []Grant // those that enter, at least one; must not be changed
}

// TraceEnd is what is known when an Op ends.
type TraceEnd struct {
	TraceStart
	Took time.Duration // since the start
	Err  error         // nil: it succeeded
}

// outcomes are the words for errors. An error can match several; the first counts.
var outcomes = []struct {
	err  error
	word string
}{
	{ErrCommitted, "committed"},
	{ErrTxEnded, "tx_ended"},
	{ErrStale, "stale"},
	{ErrNoToken, "no_token"},
	{ErrWrongResource, "wrong_resource"},
	{ErrLeaseOver, "lease_over"},
	{ErrTooLong, "too_long"},
	{ErrUnsealed, "unsealed"},
	{ErrBusy, "busy"},
	{ErrCommitUnknown, "commit_unknown"},
	{ErrInvalidGrant, "invalid_grant"},
}

// Outcome returns the word for Err in metrics, logs and events, one of [Outcomes]: "committed" also
// if the write committed and its result could not be read, and "error" for an error of another
// package.
func (e TraceEnd) Outcome() string {
	if e.Err == nil {
		return "committed"
	}
	return outcomeOf(e.Err)
}

func outcomeOf(err error) string {
	for _, known := range outcomes {
		if errors.Is(err, known.err) {
			return known.word
		}
	}
	return "error"
}

// Outcomes lists the words that [TraceEnd.Outcome] can return.
func Outcomes() []string {
	var words []string
	for _, known := range outcomes {
		words = append(words, known.word)
	}
	return append(words, "error")
}

// Subject returns the grant that was refused as stale, with the token that Postgres has stored. If
// none was, it returns the first grant, and 0.
func (e TraceEnd) Subject() (grant Grant, stored int64) {
	var stale *StaleError
	if !errors.As(e.Err, &stale) {
		return e.Grants[0], 0
	}
	for _, g := range e.Grants {
		if g.Resource() == stale.Resource {
			return g, stale.Stored
		}
	}
	return e.Grants[0], stale.Stored // the server did not say which
}

// Trace adds tracers. With gives them to every write:
//
//	db := fencedb.With(pool, fencedb.Trace(metrics, logs))
//
// A grant that is refused before anything is sent for it, with [ErrInvalidGrant], is not reported.
func Trace(tracers ...Tracer) Option {
	return func(c *config) { c.tracers = append(c.tracers[:len(c.tracers):len(c.tracers)], tracers...) }
}

// tracing is a pair of calls that has begun, or nothing if there is no tracer.
type tracing struct {
	tracers []Tracer
	start   TraceStart
	at      time.Time
	ctx     context.Context // for the statements in between
	outcome error           // reported by end
}

// errPanicked is reported if a panic came before the outcome was known.
var errPanicked = errors.New("fencedb: a panic came before the outcome was known; rolled back, unless it came out of a callback of a batch")

// trace begins a pair. Without tracers it costs nothing and keeps ctx.
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

// end ends the pair. It is deferred, to run after a panic as well. Calling it again does nothing.
func (t *tracing) end() {
	if len(t.tracers) == 0 {
		return
	}
	e := TraceEnd{TraceStart: t.start, Took: time.Since(t.at), Err: t.outcome}
	for _, tracer := range t.tracers {
		tracer.TraceWriteEnd(t.ctx, e)
	}
	t.tracers = nil
}

// within returns ctx, the context of a statement in fn, with the values of the pair. fn got the
// caller's context before the pair began; without within, tracers of pgx would not see its
// statements as part of the transaction.
func (tx *fencedTx) within(ctx context.Context) context.Context {
	if len(tx.entry.tracers) == 0 {
		return ctx
	}
	return inPair{ctx, tx.caller, tx.ctx}
}

// inPair is a statement's context in which values from the caller are replaced by those of the
// pair. Values that fn has added itself, such as a span of its own, stay, and so do values that
// cannot be compared.
type inPair struct {
	context.Context
	caller, pair context.Context
}

func (c inPair) Value(key any) any {
	value := c.Context.Value(key)
	canCompare := value == nil || reflect.ValueOf(value).Comparable()
	if canCompare && value == c.caller.Value(key) {
		return c.pair.Value(key)
	}
	return value
}
