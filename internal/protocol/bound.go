package protocol

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Within bounds requests in time. When the time is over, the cause of the context is
// [ErrUnreachable], whether a request was sent by then or not. Any other cause comes from the
// caller.
func Within(ctx context.Context, most time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, most, NoAnswer(most))
}

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
