package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fencedb/fencedb/internal/protocol"
)

// Release releases the lease. First the context of the lease ends, with [ErrReleased]. Then the
// request is sent, and sent again while Redis does not answer or refuses it for a moment (a
// [*RefusedError] that passes), until the TTL is over. ctx, and a limit of five seconds, bound only
// how long Release waits for the outcome: the attempts go on in the background, with the values of
// ctx. If ctx has ended already, Release still waits for 30 ms, in which a working Redis answers.
//
// It returns nil if the lease is released. If Redis no longer has it, no other holder was touched,
// and the error is the cause with which the lease had ended before, or [ErrLost] or [ErrRevoked].
// If the outcome is not known yet, the error is [ErrUnreachable] or such a refusal: the release is
// still being tried, and [Issuer.Close] waits for it. After any other error it is not tried again.
// In the end, the lease expires in Redis.
//
// Release may be called again. It waits for the outcome of the first call. If that had none, it
// tries again; if it had one, it changes nothing.
func (l *Lease) Release(ctx context.Context) error {
	if err := l.granted(); err != nil {
		return err
	}
	called := time.Now()
	o, begun := l.beginRelease(ctx, ErrReleased)
	if begun {
		o.tryHere(ctx)
	}
	cause := o.wait(ctx, releaseTime-time.Since(called))
	switch {
	case cause == nil && o.gone != nil:
		return cmp.Or(o.over, o.gone)
	case cause == nil:
		return o.outcome(o.last)
	}
	if last := o.latest(); last != nil {
		cause = protocol.Also(protocol.Ended(ctx, last), cause)
	} else {
		cause = protocol.Failed(ctx, "release", cause)
	}
	return fmt.Errorf("lease: release %q is still being tried: %w", l.resource, cause)
}

// beginRelease ends the lease with why, an [ErrReleased], and returns its release. If begun, the
// caller has to make the attempts; otherwise the release is under way or was answered.
func (l *Lease) beginRelease(ctx context.Context, why error) (o *pending, begun bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	over := l.check(time.Now())
	if l.back != nil && (!l.back.isFinished() || l.back.last == nil) {
		return l.back, false
	}
	o = &pending{lease: l, trace: tracing{ctx: ctx}}
	o.calls = append(o.oneCall[:0], l.core.store.release(l.term))
	if !errors.Is(over, ErrReleased) {
		o.over = over
	}
	// The release is registered before the lease ends, or for a moment Close would see neither.
	l.core.registry.add(o, l.resource)
	defer func() {
		l.back = o
		if !begun { // a tracer has panicked
			o.goOn()
		}
	}()
	if over == nil {
		l.end(why)
	}
	o.trace = l.trace(ctx, OpRelease)
	return o, true
}

// tryHere makes the first attempt on the goroutine of the caller, because starting another and
// being woken by it takes longer. If more attempts are needed, or ctx ends meanwhile, the release
// goes on in the background.
func (o *pending) tryHere(ctx context.Context) {
	if ctx.Err() != nil {
		o.goOn()
		return
	}
	o.registry.attempt(o.trace.ctx, protocol.Attempt{Most: protocol.OneOfMany(time.Until(o.until))}, o)
	over := ctx.Err() != nil // then failed says nothing about Redis
	if o.failed != nil && (over || protocol.Transient(o.failed)) {
		if !over {
			o.note(o.failed)
		}
		o.goOn()
		return
	}
	o.end()
}

// releaseAll ends all leases, closes ended, and releases the leases: many in one request, and few
// requests at a time. The first requests are sent while other leases have yet to end.
func (r *registry) releaseAll(ctx context.Context, ended chan<- struct{}) {
	leases := r.allHeld()
	batches := make(chan []*pending, len(leases)/batchLimit+1) // room for all, so no request delays the end of a lease
	for range min(4, cap(batches)) {
		go func() {
			for all := range batches {
				r.attemptAll(context.WithoutCancel(all[0].trace.ctx), all)
			}
		}()
	}
	for some := range slices.Chunk(leases, batchLimit) {
		var begun []*pending
		for _, l := range some {
			if o, is := l.beginRelease(ctx, errReleasedByClose); is {
				begun = append(begun, o)
			}
		}
		if len(begun) > 0 {
			batches <- begun
		}
	}
	close(batches)
	close(ended)
}

// released records the answer to an attempt to release. If an earlier request went unanswered, it
// may have been carried out; then it is not an error that the lease is gone.
func (o *pending) released(answer protocol.Answer[outcome]) {
	l := o.lease
	l.unsure = l.unsure || errors.Is(answer.Err, ErrUnreachable)
	ours := o.over == nil && l.unsure && (answer.Value == gone || answer.Value == taken)
	if answer.Err == nil && answer.Value != done && !ours {
		o.gone = answer.Value.loss()
	}
}

// outcome is the error of a release of which the latest attempt has failed with err; if err is nil,
// it was answered.
func (o *pending) outcome(err error) error {
	if err == nil {
		return o.gone
	}
	return fmt.Errorf("lease: release %q: %w", o.resources[0], err)
}
