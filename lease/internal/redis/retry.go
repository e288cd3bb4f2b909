package protocol

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	attempts = 3                     // for a request that is safe to send again
	pause    = 20 * time.Millisecond // before the second attempt, doubled before the third

	longestPause = 500 * time.Millisecond
	longest      = 3 * time.Second        // for one attempt of many
	shortest     = 100 * time.Millisecond // for the same
)

// Patience bounds requests that nothing else bounds.
const Patience = 5 * time.Second

// Persist makes up to three attempts within bound, until one has an answer that is not transient.
// Otherwise the error is that of the last attempt: [ErrUnreachable] or the refusal. An attempt that
// hangs leaves half of the time to those after it.
func Persist(ctx context.Context, bound time.Duration, attempt func(ctx context.Context) error) error {
	end := time.Now().Add(bound)
	var err error
	for n := range attempts {
		if n > 0 && !sleepUntil(ctx, end, Jitter(pause<<(n-1))) {
			return Ended(ctx, err)
		}
		most := time.Until(end)
		if n < attempts-1 {
			most /= 2
		}
		answer := bounded(ctx, most, attempt)
		if !Transient(answer) {
			return answer
		}
		err = Latest(err, answer)
	}
	return err
}

// Insist makes attempts within bound, until one has an answer that is not transient, ctx ends, or
// the client is closed. It is for releases behind the caller.
func Insist(ctx context.Context, bound time.Duration, attempt func(ctx context.Context) error) error {
	end := time.Now().Add(bound)
	most := min(max(bound/4, shortest), longest)
	var err error
	for wait := pause; ; wait = min(2*wait, longestPause) {
		answer := bounded(ctx, min(most, time.Until(end)), attempt)
		if !Transient(answer) {
			return answer
		}
		err = Latest(err, answer)
		if errors.Is(err, redis.ErrClosed) || !sleepUntil(ctx, end, Jitter(wait)) {
			return err
		}
	}
}

// Ended adds the cause of the end of ctx, if it has ended, to an earlier error.
func Ended(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

func bounded(ctx context.Context, most time.Duration, attempt func(ctx context.Context) error) error {
	ctx, cancel := Within(ctx, most)
	defer cancel()
	return attempt(ctx)
}

// Jitter is between four fifths of d and d.
func Jitter(d time.Duration) time.Duration {
	return d - rand.N(d/5+1)
}

// sleepUntil is Sleep that also returns false if end comes before d is over.
func sleepUntil(ctx context.Context, end time.Time, d time.Duration) bool {
	return Sleep(ctx, min(d, time.Until(end))) && time.Now().Before(end)
}

// Sleep returns false if ctx ends before d is over.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
