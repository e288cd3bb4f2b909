package lease

import (
	"context"
	"sync"
)

// lines are the queues inside this process, one per resource that is waited for. Only the first of a line stands in Redis's queue,
// so that many goroutines cost Redis one waiter and one subscription.
type lines struct {
	open func(channel string) *ear // nil result: the store cannot wake anybody

	mu        sync.Mutex
	byChannel map[string]*line // those with someone in them; guarded by mu
}

// line is the queue for one resource. The first is at the front and talks to Redis, the others wait for front to be passed on.
type line struct {
	behind []chan struct{} // closed when its owner comes to the front; guarded by lines.mu
	ear    *ear            // belongs to whoever is at the front
}

// turn is the front of a line.
type turn struct {
	lines   *lines
	channel string
	line    *line
}

// join returns when the caller is at the front, or with the cause when ctx ends before that. It calls busy before it waits.
func (ls *lines) join(ctx context.Context, channel string, busy func(context.Context)) (*turn, error) {
	ls.mu.Lock()
	l, taken := ls.byChannel[channel]
	if !taken {
		l = &line{}
		ls.byChannel[channel] = l
		ls.mu.Unlock()
		return &turn{ls, channel, l}, nil
	}
	front := make(chan struct{})
	l.behind = append(l.behind, front)
	ls.mu.Unlock()

	busy(ctx)
	t := &turn{ls, channel, l}
	select {
	case <-front:
		return t, nil
	case <-ctx.Done():
		if !ls.quit(l, front) {
			t.leave() // it came to the front at the same moment
		}
		return nil, context.Cause(ctx)
	}
}

// quit takes a place out of the line. It answers false if that place is the front by now.
func (ls *lines) quit(l *line, place chan struct{}) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for n, p := range l.behind {
		if p == place {
			l.behind = append(l.behind[:n], l.behind[n+1:]...)
			return true
		}
	}
	return false
}

// leave lets the next come to the front. The last one closes the ear.
func (t *turn) leave() {
	t.lines.mu.Lock()
	defer t.lines.mu.Unlock()
	if len(t.line.behind) > 0 {
		next := t.line.behind[0]
		t.line.behind = t.line.behind[1:]
		close(next)
		return
	}
	delete(t.lines.byChannel, t.channel)
	if t.line.ear != nil {
		t.line.ear.close()
	}
}

// listenFor says whose wake-up counts from now on, and forgets those that came before.
func (t *turn) listenFor(waiter string) {
	if t.line.ear != nil {
		t.line.ear.listenFor(waiter)
	}
}

// woken receives when the waiter should ask again: it was called, or a call may have been missed. Nil if the store cannot call.
func (t *turn) woken(waiter string) <-chan struct{} {
	if e := t.line.ear; e != nil && e.moved() {
		e.close()
		t.line.ear = nil
	}
	if t.line.ear == nil {
		t.line.ear = t.lines.open(t.channel)
		t.listenFor(waiter)
	}
	if t.line.ear == nil {
		return nil
	}
	return t.line.ear.rings
}
