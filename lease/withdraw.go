package lease

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/fencedb/fencedb/internal/protocol"
)

// withdrawal takes back what one call may have been granted: leases whose reply was lost, and a
// place in the queue.
type withdrawal struct {
	debt
	redis *protocol.Sender
	ctx   context.Context // gives its values to the attempts after the first
	left  []protocol.Call // one for each resource
}

// withdrawals sends together what is withdrawn at the same time. So a thousand callers that are
// cancelled at once cost a few requests.
type withdrawals struct {
	registry *registry
	redis    *protocol.Sender
	ttl      time.Duration

	mu      sync.Mutex
	waiting []*withdrawal // for the first attempt; guarded by mu
}

// add begins a withdrawal by those requests.
func (ws *withdrawals) add(ctx context.Context, calls []protocol.Call, resources []string) *debt {
	w := &withdrawal{redis: ws.redis, ctx: ctx, left: calls}
	ws.registry.owe(&w.debt, max(ws.ttl, minGiveBack), resources...)
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.waiting = append(ws.waiting, w); len(ws.waiting) == 1 {
		go ws.send()
	}
	return &w.debt
}

// send makes the first attempt for all that wait.
func (ws *withdrawals) send() {
	runtime.Gosched() // who was cancelled at the same time comes along
	ws.mu.Lock()
	all := ws.waiting
	ws.waiting = nil
	ws.mu.Unlock()
	for together := range slices.Chunk(all, batchLimit) {
		go ws.attempt(together)
	}
}

func (ws *withdrawals) attempt(all []*withdrawal) {
	ctx, cancel := protocol.Within(context.Background(), protocol.OneOfMany(ws.ttl))
	defer cancel()
	var calls []protocol.Call
	for _, w := range all {
		calls = append(calls, w.left...)
	}
	answers := protocol.QueryAll(ctx, ws.redis, calls, protocol.Only("withdrawn"))
	for _, w := range all {
		var err error
		var left []protocol.Call
		for n, call := range w.left {
			if last := answers[n].Err; last != nil {
				left, err = append(left, call), last
			}
		}
		answers, w.left = answers[len(w.left):], left
		if protocol.Transient(err) {
			go w.pay(w.ctx, err, w.again, func() {})
		} else {
			w.settle(err)
		}
	}
}

// again is each attempt after the first.
func (w *withdrawal) again(ctx context.Context) error {
	for ; len(w.left) > 0; w.left = w.left[1:] {
		if _, err := protocol.Query(ctx, w.redis, w.left[0], protocol.Only("withdrawn")); err != nil {
			return err
		}
	}
	return nil
}
