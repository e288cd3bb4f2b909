package protocol

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Within bounds requests. When the bound ends, the cause of the context is [ErrUnreachable],
// whether a request was sent by then or not. Any other cause comes from the caller.
func Within(ctx context.Context, most time.Duration) (context.Context, context.CancelFunc) {
	b := newBound(ctx, most, false)
	return b, b.stop
}

// bound is a context that ends with the caller's or when its time is over. Nearly every request is
// answered long before. So what the standard library prepares for the end is made when somebody
// asks for it; await does without.
type bound struct {
	context.Context // the caller's
	most            time.Duration
	end             time.Time
	again           bool          // an attempt has failed before
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
	return b.Context.Err() // which tells those that were made of it a moment later
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

// Lasting is ctx, which is ended only by an owner who then waits for the requests that are under
// way. What is derived from it and has an end of its own is not.
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

// within is the bound for the client library, which asks for Done with every request: it ends when
// nobody waits for the answer any more.
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

// forClient is ctx as the client library gets it.
func forClient(ctx context.Context) context.Context {
	if b, ours := ctx.(*bound); ours {
		return (*within)(b)
	}
	return ctx
}

// NoAnswer is the [ErrUnreachable] of a bound that has ended. Every bound has one and hardly any
// text is read, so that is made when it is asked for.
type NoAnswer time.Duration

func (n NoAnswer) Error() string {
	return fmt.Sprintf("%v: no answer within %v", ErrUnreachable, short(time.Duration(n)))
}

// short is d in whole milliseconds, unless that is nothing.
func short(d time.Duration) time.Duration { return cmp.Or(d.Round(time.Millisecond), d) }

// Unwrap returns ErrUnreachable.
func (NoAnswer) Unwrap() error { return ErrUnreachable }

// Bounded returns when f does or ctx ends, whichever is first. f makes a request about the key, or
// one that is about none. In the second case the error is [ErrUnreachable], and the server may
// still act on what f has sent. If ctx was over before, f is not called, and the error is
// [ErrUnasked], with its cause. (The client library observes contexts only if its owner has
// configured that.) An f that ends its goroutine or panics has failed. Other errors are sorted as
// [Failed] does.
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

// Recover is deferred where code of the caller's runs on a goroutine of ours, such as a hook of the
// client: a panic there would end the process, and nobody could recover it.
func Recover(failed func(error)) {
	if p := recover(); p != nil {
		failed(fmt.Errorf("a hook of the client, or a function of the caller's, panicked: %v", p))
	}
}

var errGoexit = errors.New("the function has ended its goroutine")

// Grace is how long a call whose time is over still waits for what goes on behind it. A working
// Redis answers within that time.
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
