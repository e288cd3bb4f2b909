package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fencedb/fencedb/internal/protocol"
)

// Release gives the lease back. First its context ends, with [ErrReleased]. Then the request is
// sent, and sent again while Redis does not answer or refuses it for a moment (a [*RefusedError]
// that passes), until the TTL is over. That goes on in the background: ctx, and five seconds, bound
// only how long Release waits for the outcome. The request uses only the values of ctx. If ctx is
// over already, Release still waits for 30 ms, in which a working Redis answers.
//
// It returns nil when the lease is released. If the lease was over before, the error is the cause
// of [Lease.Context], and no other holder was touched. If the outcome is not known yet, the error
// is the refusal of Redis, or [ErrUnreachable]: the release is still being tried, and in the end
// the lease expires in Redis; [Issuer.Close] waits for that. Release may be called again: it waits
// for the same outcome, tries once more if there was none, and changes nothing after an answer.
func (l *Lease) Release(ctx context.Context) error {
	if err := l.granted(); err != nil {
		return err
	}
	called := time.Now()
	r, begun := l.beginRelease(ctx, ErrReleased)
	if begun {
		r.tryHere(ctx)
	}
	cause := r.wait(ctx, releaseTime-time.Since(called))
	switch {
	case cause == nil && r.done && r.err != nil:
		return cmp.Or(r.over, r.err)
	case cause == nil:
		return r.err
	}
	if last := r.latest(); last != nil {
		cause = protocol.Also(protocol.Ended(ctx, last), cause)
	} else {
		cause = protocol.Failed(ctx, "release", cause)
	}
	return fmt.Errorf("lease: release %q is still being tried: %w", l.resource, cause)
}

// release is a release that was begun.
type release struct {
	debt
	lease *Lease
	over  error // why the lease was lost before; nil if its holder trusted it until a release
	trace tracing
	err   error // what became of it; set before the debt is settled
	done  bool  // it was answered; set before the debt is settled
}

// release ends the lease for that reason and gives it back in the background.
func (l *Lease) release(ctx context.Context, why error) *release {
	r, begun := l.beginRelease(ctx, why)
	if begun {
		r.goOn(nil)
	}
	return r
}

// beginRelease ends the lease for that reason, an [ErrReleased]. The caller gives it back, unless
// that has happened or is under way.
func (l *Lease) beginRelease(ctx context.Context, why error) (r *release, begun bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	over := l.check(time.Now())
	if l.back != nil && !l.back.unanswered() {
		return l.back, false
	}
	r = &release{lease: l, trace: tracing{ctx: ctx}}
	if !errors.Is(over, ErrReleased) {
		r.over = over
	}
	// Before the lease ends, or Close would see neither.
	l.core.registry.owe(&r.debt, l.resource)
	defer func() {
		l.back = r
		if !begun { // but a tracer panicked
			r.goOn(nil)
		}
	}()
	if over == nil {
		l.end(why)
	}
	r.trace = l.trace(ctx, OpRelease)
	return r, true
}

// tryHere makes the first attempt. The caller does that itself, because it takes longer to start a
// goroutine and to be woken by it. What is left to do goes on in the background, also when ctx ends
// meanwhile.
func (r *release) tryHere(ctx context.Context) {
	if ctx.Err() != nil {
		r.goOn(nil)
		return
	}
	b, cancel := protocol.Within(r.trace.ctx, protocol.OneOfMany(time.Until(r.until)))
	defer cancel()
	err := r.attempt(b)
	over := ctx.Err() != nil // which says nothing about Redis
	if err != nil && (over || protocol.Transient(err)) {
		if !over {
			r.note(err)
		}
		r.goOn(err)
		return
	}
	defer r.settle(err) // also if a tracer panics
	r.ended()
}

// releaseAll ends all leases, closes ended, and gives them back, many in one request and few
// requests at a time. The first are sent while others end.
func (c *core) releaseAll(ctx context.Context, ended chan<- struct{}) {
	leases := c.registry.allHeld()
	batches := make(chan []*release, len(leases)/batchLimit+1) // so that no request keeps a lease from its end
	for range min(4, cap(batches)) {
		go func() {
			for all := range batches {
				c.releaseTogether(all)
			}
		}()
	}
	for some := range slices.Chunk(leases, batchLimit) {
		var begun []*release
		for _, l := range some {
			if r, is := l.beginRelease(ctx, errReleasedByClose); is {
				begun = append(begun, r)
			}
		}
		if len(begun) > 0 {
			batches <- begun
		}
	}
	close(batches)
	close(ended)
}

// releaseTogether sends the releases in one request. Those without an answer go on by themselves.
func (c *core) releaseTogether(all []*release) {
	most := protocol.OneOfMany(c.cfg.TTL)
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(all[0].trace.ctx), most, protocol.NoAnswer(most))
	defer cancel()
	calls := make([]protocol.Call, len(all))
	for n, r := range all {
		calls[n] = c.store.release(r.lease.term)
	}
	for n, answer := range protocol.QueryAll(ctx, c.store.redis, calls, decodeRelease) {
		r := all[n]
		if err := r.take(answer.Value, answer.Err); protocol.Transient(err) {
			r.goOn(err)
		} else {
			r.ended()
			r.settle(err)
		}
	}
}

// goOn gives it back in the background. err is that of the first attempt.
func (r *release) goOn(err error) { go r.pay(r.trace.ctx, err, r.attempt, r.ended) }

func (r *release) attempt(ctx context.Context) error {
	s := r.lease.core.store
	return r.take(protocol.Query(ctx, s.redis, s.release(r.lease.term), decodeRelease))
}

// take takes the outcome of an attempt in.
func (r *release) take(result outcome, err error) error {
	l := r.lease
	l.unsure = l.unsure || errors.Is(err, ErrUnreachable)
	if err == nil {
		r.done, r.err = true, r.outcome(result)
	} else {
		r.err = fmt.Errorf("lease: release %q: %w", l.resource, protocol.Latest(r.err, err))
	}
	return err
}

// ended is called after the last attempt.
func (r *release) ended() {
	r.trace.end(0, r.err)
}

// unanswered reports whether the release is over without an answer.
func (r *release) unanswered() bool { return r.isPaid() && !r.done }

// outcome is what became of the release. If an earlier request went unanswered, it may have been
// carried out; then a lease that is gone is no error.
func (r *release) outcome(result outcome) error {
	if result == done || r.over == nil && r.lease.unsure && (result == gone || result == taken) {
		return nil
	}
	return result.loss()
}

// withdrawal takes back what one call may have been granted: leases whose reply was lost, and a
// place in the queue.
type withdrawal struct {
	debt
	ctx   context.Context // gives its values to the attempts after the first
	calls []protocol.Call // one for each resource
}

// withdrawals sends together what is withdrawn within a millisecond. So a thousand callers that are
// cancelled at once cost a few requests, however busy their process is.
type withdrawals struct {
	registry *registry
	redis    *protocol.Sender
	ttl      time.Duration

	mu      sync.Mutex
	waiting []*withdrawal // for the first attempt; guarded by mu
}

// add begins a withdrawal by those requests.
func (ws *withdrawals) add(ctx context.Context, calls []protocol.Call, resources []string) *debt {
	w := &withdrawal{ctx: ctx, calls: calls}
	ws.registry.owe(&w.debt, resources...)
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.waiting = append(ws.waiting, w); len(ws.waiting) == 1 {
		time.AfterFunc(time.Millisecond, ws.send)
	}
	return &w.debt
}

// send makes the first attempt for all that wait. Those that need another make it on their own.
func (ws *withdrawals) send() {
	ws.mu.Lock()
	all := ws.waiting
	ws.waiting = nil
	ws.mu.Unlock()
	for some := range slices.Chunk(all, batchLimit) {
		go func() {
			ctx, cancel := protocol.Within(context.Background(), protocol.OneOfMany(ws.ttl))
			defer cancel()
			for n, err := range ws.attempt(ctx, some...) {
				w := some[n]
				if protocol.Transient(err) {
					again := func(ctx context.Context) error { return ws.attempt(ctx, w)[0] }
					go w.pay(w.ctx, err, again, func() {})
				} else {
					w.settle(err)
				}
			}
		}()
	}
}

// attempt sends the requests of all in one round trip. The error of each withdrawal is that of one
// of its requests, and transient if any is.
func (ws *withdrawals) attempt(ctx context.Context, all ...*withdrawal) []error {
	var calls []protocol.Call
	for _, w := range all {
		calls = append(calls, w.calls...)
	}
	answers := protocol.QueryAll(ctx, ws.redis, calls, protocol.Only("withdrawn"))
	errs := make([]error, len(all))
	for n, w := range all {
		for _, answer := range answers[:len(w.calls)] {
			if answer.Err != nil && !protocol.Transient(errs[n]) {
				errs[n] = answer.Err
			}
		}
		answers = answers[len(w.calls):]
	}
	return errs
}
