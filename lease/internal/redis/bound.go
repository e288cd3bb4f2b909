package protocol

import (
	"context"
	"fmt"
	"time"
)

// Within bounds requests. Its end is [ErrUnreachable] to whoever asks for the cause, whether a request was sent by then or not:
// a cause without that is the caller's own.
func Within(ctx context.Context, bound time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, bound, fmt.Errorf("%w: no answer within %v", ErrUnreachable, bound))
}

// Detached is Within for requests that the end of ctx must not end; only its values are kept.
func Detached(ctx context.Context, bound time.Duration) (context.Context, context.CancelFunc) {
	return Within(context.WithoutCancel(ctx), bound)
}

// Bounded returns when f does or ctx ends, whichever is first; in the second case it is [ErrUnreachable], and the
// server may still act on what f has sent. Then each of abandoned is called before the return, and what it returns once
// f has returned as well. If ctx was over before, nothing is called, and the error is its cause. (The client library
// honours a context only when told to, and is not ours to configure.)
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

// Grace is how long a call whose time is over still waits for what goes on behind it: a Redis that works has answered
// by then.
const Grace = 30 * time.Millisecond

// Await receives, or answers false when ctx has been over for Grace.
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
