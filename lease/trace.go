package lease

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/fencedb/fencedb/internal/protocol"
)

// Tracer is called for the events of an [Issuer]'s leases, in pairs: each start is followed by one
// end of the same [Op]. The context that the start returns goes to the work in between and to the
// end. A Tracer is called on the path of the work, by many goroutines at once. It must be quick,
// and must not call the lease or the issuer. It must not panic: on the goroutine of a caller the
// panic goes on there; in the background, as in a renewal, it ends the process.
//
// There are tracers for Prometheus (package observe/prom), logs (observe/slog), OpenTelemetry
// (observe/otel) and a stream of events (observe/feed). A type can be a tracer of package fencedb
// as well.
type Tracer interface {
	TraceLeaseStart(ctx context.Context, s TraceStart) context.Context
	TraceLeaseEnd(ctx context.Context, e TraceEnd)
}

// Op is the operation that a pair of calls to a [Tracer] is about.
type Op string

const (
	// OpAcquire is one call that acquires, with its waiting and its sealing. With several resources
	// it names the first of them. Err is nil if the lease was granted, and [ErrHeld] if it was not
	// granted in time, or not at once with [NoWait].
	OpAcquire Op = "acquire"

	// OpWait is the part of an OpAcquire from when the resource was found taken until the lease was
	// granted or the caller gave up. If the resource was free, there is no OpWait.
	OpWait Op = "wait"

	// OpHold is the life of one lease, from its grant until its context ends. Err is the cause:
	// [ErrReleased], [ErrExpired], [ErrUnreachable], [ErrLost] or [ErrRevoked]. OpHold starts
	// before OpAcquire ends.
	OpHold Op = "hold"

	// OpExtend is one renewal, by the issuer or by the caller. A renewal by the caller counts even
	// if the lease was over and nothing was sent.
	OpExtend Op = "extend"

	// OpRelease is one release. Err is nil if the lease is released; [ErrLost] if Redis found it
	// gone or taken, or [ErrRevoked]; otherwise the error of the request. If the lease ended
	// before, OpHold has the cause.
	OpRelease Op = "release"

	// OpRevoke is one revocation or take-over.
	OpRevoke Op = "revoke"

	// OpRaise is one call that raises a last token to what the data store has seen, by an operator
	// or by an acquisition whose [Config.Seal] was refused.
	OpRaise Op = "raise"
)

// TraceStart is what is known when an Op begins. Fields that do not apply to the Op, or are not
// known yet, are zero.
type TraceStart struct {
	Op        Op
	Kind      string // "lease" or "semaphore"
	Namespace string // [Config.Namespace]
	Resource  string // as the caller gave it, even with [Config.HashResources]
	Resources int    // how many the call is for; 1 unless several are acquired together
	Lead      bool   // an OpAcquire of [Issuer.Lead]: while another leads, ErrHeld once in a TTL is normal
	LeaseID   uuid.UUID
	Token     int64
}

// TraceEnd is what is known when an Op ends.
type TraceEnd struct {
	TraceStart               // with LeaseID and Token as they are now
	Took       time.Duration // since the start
	ValidFor   time.Duration // remaining validity, after an OpAcquire or OpExtend that succeeded
	Err        error         // nil: the Op succeeded
}

// Outcome is the word for Err in metrics, logs and events. It is always one of [Op.Outcomes]. For
// OpHold it is "released" if the lease was released, otherwise the cause of the loss. For
// OpAcquire, OpWait and OpExtend it is "cancelled" if the caller cancelled before a working Redis
// had to answer, or if the context was over before Redis was asked.
func (e TraceEnd) Outcome() string {
	all := outcomesOf[e.Op]
	if e.Err == nil {
		return all.success
	}
	silent := errors.Is(e.Err, ErrUnreachable) && e.Took >= firstAnswer
	for _, known := range all.errors {
		if errors.Is(e.Err, known.err) && !(silent && known.err == context.Canceled) {
			return known.word
		}
	}
	return all.failure
}

// byCaller makes err a [context.Canceled] if the caller has cancelled ctx, even if the caller gave
// another cause.
func byCaller(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != context.Canceled || errors.Is(err, context.Canceled) {
		return err
	}
	return protocol.Also(err, context.Canceled)
}

// Outcomes lists the words that [TraceEnd.Outcome] can return for this Op, each once.
func (op Op) Outcomes() []string {
	all := outcomesOf[op]
	words := []string{all.success}
	for _, known := range append(all.errors, errorWord{word: all.failure}) {
		if !slices.Contains(words, known.word) {
			words = append(words, known.word)
		}
	}
	return words
}

// outcomes are the words for the outcomes of an [Op].
type outcomes struct {
	success string
	failure string // for any error not in errors
	errors  []errorWord
}

// errorWord is the word for errors that are err. An error can match several; the first counts.
type errorWord struct {
	err  error
	word string
}

var (
	acquireOutcomes = outcomes{"granted", "error", []errorWord{
		{ErrHeld, "held"},
		{context.Canceled, "cancelled"},
		{errSeal, "not_sealed"},
		{ErrUnreachable, "unreachable"},
		{protocol.ErrUnasked, "cancelled"},
		{ErrRefused, "refused"},
	}}
	outcomesOf = map[Op]outcomes{
		OpAcquire: acquireOutcomes,
		OpWait:    acquireOutcomes,
		OpHold: {"released", "lost", []errorWord{
			{ErrReleased, "released"},
			{ErrRevoked, "revoked"},
			{ErrUnreachable, "unreachable"},
			{ErrExpired, "expired"},
		}},
		OpExtend: {"extended", "error", []errorWord{
			{errNotSent, "over"},
			{ErrReleased, "over"},
			{ErrExpired, "over"},
			{ErrRevoked, "revoked"},
			{ErrLost, "lost"},
			{context.Canceled, "cancelled"},
			{ErrUnreachable, "unreachable"},
			{protocol.ErrUnasked, "cancelled"},
		}},
		OpRelease: {"released", "error", []errorWord{
			{ErrRevoked, "revoked"},
			{errTaken, "taken"},
			{ErrLost, "gone"},
			{ErrUnreachable, "unreachable"},
		}},
		OpRevoke: {success: "done", failure: "failed"},
		OpRaise:  {success: "done", failure: "failed"},
	}
)

// errNotSent is what tracers get for a renewal that began after the end of its lease.
var errNotSent = errors.New("lease: the renewal was not sent")

// errPanicked is what tracers get after a panic.
var errPanicked = errors.New("lease: a panic came before the outcome was known; nothing is held")

// tracing is one pair of calls that has begun. Without tracers it does nothing.
type tracing struct {
	tracers []Tracer
	start   TraceStart
	at      time.Time
	ctx     context.Context // for the work in between
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

// end ends the pair. validFor is the remaining validity of the lease, or 0.
func (t *tracing) end(validFor time.Duration, err error) {
	if len(t.tracers) == 0 {
		return
	}
	e := TraceEnd{TraceStart: t.start, Took: time.Since(t.at), Err: err}
	if err == nil {
		e.ValidFor = validFor
	}
	for _, tracer := range t.tracers {
		tracer.TraceLeaseEnd(t.ctx, e)
	}
}

// kept is a copy of the pair for an end later on; nil if nobody traces.
func (t *tracing) kept() *tracing {
	if len(t.tracers) == 0 {
		return nil
	}
	own := *t // a copy, or every tracing would be on the heap
	return &own
}
