package script

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	attempts = 3                     // for a request that is safe to send again
	pause    = 20 * time.Millisecond // before the second attempt, doubled before the third
)

// Persist makes one attempt after the other until one has an answer that counts, the attempts are used up, or ctx ends.
func Persist(ctx context.Context, attempt func() error) error {
	var err error
	for n := range attempts {
		if n > 0 && !Sleep(ctx, Jitter(pause<<(n-1))) {
			return err
		}
		if err = attempt(); !Transient(err) {
			return err
		}
	}
	return err
}

// Jitter is between four fifths of d and d.
func Jitter(d time.Duration) time.Duration {
	return d - rand.N(d/5+1)
}

// Sleep reports whether it was not cut short by the end of ctx.
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
