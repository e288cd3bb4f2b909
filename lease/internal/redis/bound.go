package protocol

import (
	"context"
	"fmt"
	"time"
)

// Within bounds requests. When the bound ends, the cause of the context is [ErrUnreachable],
// whether a request was sent by then or not. Any other cause comes from the caller.
func Within(ctx context.Context, bound time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, bound, NoAnswer(bound))
}

// NoAnswer is the [ErrUnreachable] of a bound that has ended. Every bound has one and hardly any
// text is read, so that is made when it is asked for.
type NoAnswer time.Duration

func (n NoAnswer) Error() string {
	return fmt.Sprintf("%v: no answer within %v", ErrUnreachable, time.Duration(n))
}

// Unwrap returns ErrUnreachable.
func (NoAnswer) Unwrap() error { return ErrUnreachable }

// Detached is Within for requests that do not end with ctx; they use only its values.
func Detached(ctx context.Context, bound time.Duration) (context.Context, context.CancelFunc) {
	return Within(context.WithoutCancel(ctx), bound)
}

// Bounded returns when f does or ctx ends, whichever is first. In the second case the error is
// [ErrUnreachable], and the server may still act on what f has sent: each of abandoned is called
// before the return, and the function that it returns when f has returned too. If ctx was over
// before, nothing is called, and the error is its cause. (The client library observes contexts only
// if its owner has configured that.)
func Bounded[T any](ctx context.Context, f func() T, abandoned ...func() (ended func())) (T, error) {
	var none T
	if ctx.Err() != nil {
		return none, context.Cause(ctx)
	}
	answers := make(chan T, 1)
	go func() { answers <- f() }()
	select {
	case answer := <-answers:
		return answer, nil
	case <-ctx.Done():
		var ended []func()
		for _, call := range abandoned {
			ended = append(ended, call())
		}
		if len(ended) > 0 {
			go func() {
				<-answers
				for _, call := range ended {
					call()
				}
			}()
		}
		return none, unanswered(ctx, ctx.Err())
	}
}

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
