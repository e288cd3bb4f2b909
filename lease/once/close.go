package once

import (
	"context"
	"fmt"
	"sync"
)

// Close ends the work in good order, for a program that shuts down. It waits until the results that are being recorded
// are, and then closes the claims as [lease.Issuer.Close] does: the context of every run that is still at work ends,
// its claim is given back, and calls that would run anything fail with [lease.ErrClosed]. Results are replayed as
// before.
func (o *Once) Close(ctx context.Context) error {
	if err := o.recordings.wait(ctx); err != nil {
		return fmt.Errorf("once: close: results are still being recorded: %w", err)
	}
	return o.claims.Close(ctx)
}

// recordings counts those under way.
type recordings struct {
	mu    sync.Mutex
	n     int           // guarded by mu
	quiet chan struct{} // closed when n comes to zero; guarded by mu
}

func (r *recordings) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.n++; r.n == 1 {
		r.quiet = make(chan struct{})
	}
}

func (r *recordings) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.n--; r.n == 0 {
		close(r.quiet)
	}
}

func (r *recordings) wait(ctx context.Context) error {
	r.mu.Lock()
	n, quiet := r.n, r.quiet
	r.mu.Unlock()
	if n == 0 {
		return nil
	}
	select {
	case <-quiet:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
