package lease

import (
	"time"

	"github.com/fencedb/fencedb/internal/protocol"
)

const (
	// How long a lease lasts that was handed over, if its TTL is not shorter; holder.lua has it too.
	provisionally = time.Second

	// After settleAfter, or a sixth of its TTL, a lease that was handed over is made full, or before
	// if its validity is asked for.
	settleAfter = 50 * time.Millisecond
	settleTry   = 250 * time.Millisecond // for one attempt
)

// settleLater makes a lease that was handed over last for its TTL, beside the work. Work that is
// done before costs no request for it.
func (l *Lease) settleLater() {
	for wait := min(settleAfter, l.core.cfg.TTL/6); protocol.Sleep(l.ctx, wait) && l.pending(); {
		l.settle()
	}
}

// settle makes one attempt. A refusal leaves the lease as short as it was, so another follows.
func (l *Lease) settle() {
	ctx, cancel := protocol.Within(l.ctx, settleTry)
	defer cancel()
	err := l.Extend(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.provisional = l.provisional && err != nil
}

// pending is true for a lease that was handed over, until a renewal has succeeded or it is over.
func (l *Lease) pending() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.provisional
}
