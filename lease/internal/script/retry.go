package script

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/fencedb/fencedb/lease"
)

const (
	attempts = 3
	pause    = 20 * time.Millisecond // before the second attempt, doubled before the third
)

// Persist makes one attempt after the other until one is answered, the attempts are used up, or ctx ends. It is for scripts
// that do no harm when they run twice.
func Persist(ctx context.Context, attempt func() error) error {
	var err error
	for n := range attempts {
		if n > 0 && !sleep(ctx, pause<<(n-1)) {
			return err
		}
		if err = attempt(); !errors.Is(err, lease.ErrUnreachable) {
			return err
		}
	}
	return err
}

// sleep reports whether it was not cut short by the end of ctx. It takes up to a fifth less than d.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d - rand.N(d/5+1))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
