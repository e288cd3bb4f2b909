package chaos

import (
	"context"
	"sync"
	"time"
)

// board is where workers post what they were told, for others to wait for.
type board struct {
	mu      sync.Mutex
	changed chan struct{} // closed and replaced with every post
	of      map[string]tally
}

// tally is what was posted about one resource.
type tally struct {
	commits int        // answered with nil
	latest  time.Time  // when the attempt began, before it asked for a lease, that began last of those committed
	refused [kinds]int // late writes of each kind of oversleeper after others had committed
	written [kinds]int // the same, but not refused
}

func newBoard() *board {
	return &board{changed: make(chan struct{}), of: make(map[string]tally)}
}

func (b *board) post(resource string, change func(*tally)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.of[resource]
	change(&t)
	b.of[resource] = t
	close(b.changed)
	b.changed = make(chan struct{})
}

func (b *board) committed(resource string, began time.Time) {
	b.post(resource, func(t *tally) {
		t.commits++
		if began.After(t.latest) {
			t.latest = began
		}
	})
}

func (b *board) read(resource string) tally {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.of[resource]
}

// await reports whether what is posted about a resource came to satisfy done before ctx ended.
func (b *board) await(ctx context.Context, resource string, done func(tally) bool) bool {
	for {
		b.mu.Lock()
		now, changed := b.of[resource], b.changed
		b.mu.Unlock()
		if done(now) {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// overtaken waits until an attempt has committed that has yet to begin.
func (b *board) overtaken(ctx context.Context, resource string) bool {
	now := time.Now()
	return b.await(ctx, resource, func(t tally) bool { return t.latest.After(now) })
}
