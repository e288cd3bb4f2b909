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
// end of the same [Op]. The context that the start returned goes to the work in between and the
// end. It is called on the path of the work, by many goroutines at once; it must be quick, and must
// not call the lease or the issuer.
//
// Package observe/prom has one for Prometheus, observe/slog one that logs, observe/otel one that
// makes spans, observe/feed one that publishes events. A type can be a tracer of package fencedb as
// well.
type Tracer interface {
	TraceLeaseStart(ctx context.Context, s TraceStart) context.Context
	TraceLeaseEnd(ctx context.Context, e TraceEnd)
}

// Op is what a pair of calls to a [Tracer] is about.
type Op string

const (
	// OpAcquire is one call that acquires, whether it waits or not, with its sealing. With several
	// resources it names the first of them. Err is nil if the lease was granted, and [ErrHeld] if
	// it was not granted (in time).
	OpAcquire Op = "acquire"

	// OpWait is the time within OpAcquire from when the resource was found taken until it was
	// granted or the caller gave up. There is none if it was free.
	OpWait Op = "wait"

	// OpHold is the life of one lease, from its grant until its context ends. Err is the cause:
	// [ErrReleased], [ErrExpired], [ErrUnreachable], [ErrLost] or [ErrRevoked]. It starts before
	// OpAcquire ends.
	OpHold Op = "hold"

	// OpExtend is one renewal, by the issuer or by the caller, even if the lease was over and
	// nothing was sent.
	OpExtend Op = "extend"

	// OpRelease is one release. Err is nil if the lease is released, [ErrLost] if Redis found it
	// gone or taken, or [ErrRevoked]; otherwise why there is no answer. OpHold says how the lease
	// had ended before.
	OpRelease Op = "release"

	// OpRevoke is one revocation or take-over.
	OpRevoke Op = "revoke"

	// OpRaise is one raise of a last token above what the data store has seen, by an operator or by
	// an acquisition whose [Config.Seal] was refused.
	OpRaise Op = "raise"
)

// TraceStart is what is known when an Op begins. Fields that do not belong to the Op, or are not
// known yet, are zero.
type TraceStart struct {
	Op        Op
	Kind      string // "lease" or "semaphore"
	Namespace string // [Config.Namespace]
	Resource  string // as the caller gave it, also where keys are hashed
	Resources int    // how many the call is for; 1 unless several are acquired together
	Lead      bool   // an OpAcquire of [Issuer.Lead]: while another leads, it is refused once in a TTL, as it should be
	LeaseID   uuid.UUID
	Token     int64
}

// TraceEnd is what is known when an Op ends.
type TraceEnd struct {
	TraceStart               // with LeaseID and Token as they are now
	Took       time.Duration // since the start
	ValidFor   time.Duration // remaining validity, of an OpAcquire or OpExtend that has succeeded
	Err        error         // nil: it was done
}

// Outcome is the word for Err in metrics, logs and events: one of [Op.Outcomes], whatever the error
// is. For OpHold it is "released" if the holder gave the lease back, otherwise the cause of the
// loss. It is "cancelled" if the caller has cancelled before a working Redis had to answer,
// or its context was over before Redis was asked.
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

// byCaller makes an error that comes when the caller has cancelled a [context.Canceled], whatever
// cause the caller gave.
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

// outcomes are the words for the ends of an [Op].
type outcomes struct {
	success string
	failure string // any other error
	errors  []errorWord
}

// errorWord is the word for errors that are err. The first that matches counts, for an error can be
// several.
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

// errNotSent is told of a renewal that came after the end of its lease.
var errNotSent = errors.New("lease: the renewal was not sent")

// errPanicked is told when nothing else is known: a panic came in between.
var errPanicked = errors.New("lease: a panic came before the outcome was known; nothing is held")

// tracing is one pair of calls that has begun, or none if nobody traces.
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

// end ends the pair. validFor is the remaining validity of the lease, if there is one.
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

// kept is for a pair that ends later; nil if nobody traces.
func (t *tracing) kept() *tracing {
	if len(t.tracers) == 0 {
		return nil
	}
	own := *t // or every tracing would be on the heap
	return &own
}
