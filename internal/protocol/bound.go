package protocol

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Within bounds requests in time. When the time is over, the cause of the context is
// [ErrUnreachable], whether a request was sent by then or not. Any other cause comes from the
// caller.
func Within(ctx context.Context, most time.Duration) (context.Context, context.CancelFunc) {
	b := newBound(ctx, most, false)
	return b, b.stop
}

// bound is a context that ends with that of the caller, or when its time is over. Nearly every
// request is answered long before. So the context of the standard library, with its timer, is made
// only when somebody asks for it; await does without it.
type bound struct {
	context.Context // the caller's
	most            time.Duration
	end             time.Time
	again           bool          // an earlier attempt has failed
	over            chan struct{} // closed by stop

	mu     sync.Mutex
	whole  context.Context    // nil until somebody asks for it; guarded by mu
	cancel context.CancelFunc // of whole; guarded by mu
}

func newBound(ctx context.Context, most time.Duration, again bool) *bound {
	return &bound{Context: ctx, most: most, end: time.Now().Add(most), again: again, over: make(chan struct{})}
}

// stop is called when nobody waits under the bound any more, or its time is over.
func (b *bound) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.stopped() {
		close(b.over)
	}
	if b.cancel != nil {
		b.cancel()
	}
}

func (b *bound) stopped() bool {
	select {
	case <-b.over:
		return true
	default:
		return false
	}
}

func (b *bound) made() context.Context {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.whole == nil {
		b.whole, b.cancel = context.WithDeadlineCause(b.Context, b.end, NoAnswer(b.most))
		if b.stopped() {
			b.cancel()
		}
	}
	return b.whole
}

// Deadline implements [context.Context].
func (b *bound) Deadline() (time.Time, bool) {
	if callers, has := b.Context.Deadline(); has && callers.Before(b.end) {
		return callers, true
	}
	return b.end, true
}

// Done implements [context.Context].
func (b *bound) Done() <-chan struct{} { return b.made().Done() }

// Err implements [context.Context].
func (b *bound) Err() error {
	if b.quiet() {
		return nil
	}
	if err := b.made().Err(); err != nil {
		return err
	}
	return b.Context.Err() // which ends a moment before the contexts derived from it
}

// Value implements [context.Context]. The standard library asks it for the cause too.
func (b *bound) Value(key any) any {
	if b.quiet() {
		return b.Context.Value(key)
	}
	return b.made().Value(key)
}

// Endless reports whether the context cannot end, or is a [Lasting] one.
func Endless(ctx context.Context) bool {
	done := ctx.Done()
	return done == nil || ctx.Value(lasting{}) == done
}

// Lasting marks ctx as one that counts as endless: when its owner ends it, the owner waits for the
// requests that are under way. Contexts that are derived from it and have an end of their own do
// not inherit the mark.
func Lasting(ctx context.Context) context.Context {
	return context.WithValue(ctx, lasting{}, ctx.Done())
}

type lasting struct{}

// quiet reports whether the context is still running and its Done channel was never requested.
func (b *bound) quiet() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.whole == nil && !b.stopped() && b.Context.Err() == nil && time.Now().Before(b.end)
}

// within is the bound as the client library gets it. The library asks for Done with every request;
// this Done costs nothing, and is closed when nobody waits for the answer any more.
type within bound

// Deadline implements [context.Context].
func (w *within) Deadline() (time.Time, bool) { return (*bound)(w).Deadline() }

// Done implements [context.Context].
func (w *within) Done() <-chan struct{} { return w.over }

// Err implements [context.Context].
func (w *within) Err() error {
	if (*bound)(w).stopped() {
		return context.Canceled
	}
	return nil
}

// forClient returns ctx as the client library gets it.
func forClient(ctx context.Context) context.Context {
	if b, ours := ctx.(*bound); ours {
		return (*within)(b)
	}
	return ctx
}

// NoAnswer is the [ErrUnreachable] of a bound whose time is over. Every bound has one and hardly
// any is read, so its text is made only when it is asked for.
type NoAnswer time.Duration

func (n NoAnswer) Error() string {
	return fmt.Sprintf("%v: no answer within %v", ErrUnreachable, short(time.Duration(n)))
}

// short is d in whole milliseconds, or d itself if that would be 0.
func short(d time.Duration) time.Duration { return cmp.Or(d.Round(time.Millisecond), d) }

// Unwrap returns ErrUnreachable.
func (NoAnswer) Unwrap() error { return ErrUnreachable }

// Bounded calls f, which makes a request about the key ("" if it is about none), and returns when f
// returns or ctx ends, whichever is first. It is needed because the client library respects
// contexts only if it is configured to. If ctx ends first, the error is [ErrUnreachable], and the
// server may still act on what f has sent. If ctx had ended before, f is not called, and the error
// is [ErrUnasked], with the cause of ctx. An f that panics or ends its goroutine has failed.
// [Failed] classifies all other errors.
func Bounded[T any](ctx context.Context, s *Sender, request, key string, f func() (T, error)) (answer T, err error) {
	sent := time.Now()
	if ctx.Err() != nil {
		return answer, unasked(ctx)
	}
	answered := make(chan struct{})
	result := &Answer[T]{Err: errGoexit}
	go func() {
		defer close(answered)
		defer Recover(func(err error) { result.Err = err })
		result.Value, result.Err = f()
	}()
	select {
	case <-answered:
	case <-ctx.Done():
		select {
		case <-answered: // at the same time
		default:
			return answer, s.Unanswered(ctx, key, sent)
		}
	}
	if result.Err != nil {
		return answer, s.silent(Failed(ctx, request, result.Err), key, sent)
	}
	return result.Value, nil
}

// Recover is deferred where code of the caller, such as a hook of the client, runs on a goroutine
// of this package: a panic there would end the process, and the caller could not recover it.
func Recover(failed func(error)) {
	if p := recover(); p != nil {
		failed(fmt.Errorf("a hook of the client, or a function of the caller's, panicked: %v", p))
	}
}

var errGoexit = errors.New("the function has ended its goroutine")

// Grace is how long a call whose context has ended still waits for its work in the background. A
// working Redis answers within that time.
const Grace = 30 * time.Millisecond

// Await receives an answer, or returns false when ctx has been over for Grace.
func Await[T any](ctx context.Context, answers <-chan T) (answer T, ok bool) {
	select {
	case answer = <-answers:
		return answer, true
	case <-ctx.Done():
	}
	timer := time.NewTimer(Grace)
	defer timer.Stop()
	select {
	case answer = <-answers:
		return answer, true
	case <-timer.C:
		return answer, false
	}
}
