package lease

import (
	"context"
	"time"

	protocol "github.com/fencedb/fencedb/lease/internal/redis"
)

const (
	provisionally = time.Second // how long a lease lasts that was handed over, if its TTL is not shorter; holder.lua has it too

	settleAfter = 50 * time.Millisecond  // a lease that was handed over is made full, or before if its validity is asked for
	settleTry   = 250 * time.Millisecond // for one attempt
)

// provisional is the state of a lease that was handed over, until its first renewal is answered.
type provisional struct {
	wanted  chan struct{}   // holds one token when the validity was asked for
	settled context.Context // over when that is known: a renewal has succeeded, or the lease is over
	known   context.CancelFunc
}

func newProvisional() *provisional {
	p := &provisional{wanted: make(chan struct{}, 1)}
	p.settled, p.known = context.WithCancel(context.Background())
	return p
}

// run makes the lease last for its TTL, beside the work, by extend. Work that is done before costs
// no request for it. ctx is that of the lease.
func (p *provisional) run(ctx context.Context, extend func(context.Context) error) {
	timer := time.NewTimer(settleAfter)
	defer timer.Stop()
	select {
	case <-p.wanted:
	case <-timer.C:
	case <-ctx.Done():
		return
	}
	for p.pending() {
		attempt, cancel := protocol.Within(ctx, settleTry)
		err := extend(attempt)
		cancel()
		if !protocol.Transient(err) {
			p.settle()
		}
	}
}

// settle ends the provisional state: it is known how long the lease lasts.
func (p *provisional) settle() {
	if p != nil {
		p.known()
	}
}

// await waits until that is known, for one attempt at most.
func (p *provisional) await() {
	signal(p.wanted)
	ctx, cancel := context.WithTimeout(p.settled, settleTry)
	defer cancel()
	<-ctx.Done()
}

// pending is true until then. A lease that was not handed over has no provisional state.
func (p *provisional) pending() bool { return p != nil && p.settled.Err() == nil }
