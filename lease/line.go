package lease

import (
	"context"
	"fmt"
	"sync"
	"time"

	protocol "github.com/fencedb/fencedb/lease/internal/redis"
)

// lines are the queues inside this process, one per resource that is waited for. Only the first of a line stands in Redis's queue,
// so that many goroutines cost Redis one waiter and one subscription.
type lines struct {
	subscribe func(channel string) *subscription // nil result: the store cannot wake anybody

	mu        sync.Mutex
	byChannel map[string]*line // those with someone in them; guarded by mu
}

// line is the queue for one resource. The first is at the front and talks to Redis, the others wait for front to be passed on. A line
// that has emptied stays for a moment, with its ear, so that a resource under steady contention costs no subscription at each turn.
type line struct {
	behind       []chan struct{} // closed when its owner comes to the front; guarded by lines.mu
	empty        *time.Timer     // removes the line; nil while someone is at the front; guarded by lines.mu
	subscription *subscription   // belongs to whoever is at the front

	silence silence // belongs to whoever is at the front
}

// silence is how long Redis has not answered whoever was at the front of a line. An outage is sat out for as long as a
// lease lasts, and by those who stand in line meanwhile not once each, one after the other.
type silence struct {
	since time.Time // of the first request without an answer; zero if the latest was answered
	why   error
}

// left is for how long one who came at that time goes on asking. It begins with the question.
func (s *silence) left(came time.Time, patience time.Duration) time.Duration {
	if s.since.IsZero() {
		s.since, s.why = time.Now(), fmt.Errorf("%w: no answer for %v", ErrUnreachable, patience)
	}
	since := s.since
	if came.After(since) {
		since = came
	}
	return time.Until(since.Add(patience))
}

// turn is the front of a line.
type turn struct {
	lines   *lines
	channel string
	line    *line
}

// join returns when the caller is at the front, or with the cause when ctx ends before that. It calls busy before it waits.
func (ls *lines) join(ctx context.Context, channel string, busy func(context.Context)) (*turn, error) {
	t, front := ls.enter(channel)
	if front == nil {
		return t, nil
	}
	busy(ctx)
	select {
	case <-front:
		return t, nil
	case <-ctx.Done():
		if !ls.quit(t.line, front) {
			t.leave() // it came to the front at the same moment
		}
		return nil, context.Cause(ctx)
	}
}

// enter takes a place, which is closed when it is the front; nil if it is already.
func (ls *lines) enter(channel string) (t *turn, place chan struct{}) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l, known := ls.byChannel[channel]
	switch {
	case !known:
		l = &line{}
		ls.byChannel[channel] = l
	case l.empty != nil:
		l.empty.Stop()
		l.empty = nil
	default:
		place = make(chan struct{})
		l.behind = append(l.behind, place)
	}
	return &turn{ls, channel, l}, place
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

// leave lets the next come to the front. When there is none, the line stays for as long as linger.
func (t *turn) leave() {
	ls, l := t.lines, t.line
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if len(l.behind) > 0 {
		next := l.behind[0]
		l.behind = l.behind[1:]
		close(next)
		return
	}
	var empty *time.Timer
	empty = time.AfterFunc(linger, func() {
		ls.mu.Lock()
		defer ls.mu.Unlock()
		if l.empty == empty { // or someone came as the timer fired
			ls.remove(t.channel, l)
		}
	})
	l.empty = empty
}

// remove closes the line's ear with it. The caller holds mu.
func (ls *lines) remove(channel string, l *line) {
	delete(ls.byChannel, channel)
	if l.subscription != nil {
		l.subscription.close()
	}
}

// close removes the lines that are empty, without the moment that they stay. It is for when nobody joins any more.
func (ls *lines) close() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for channel, l := range ls.byChannel {
		if l.empty != nil && l.empty.Stop() {
			ls.remove(channel, l)
		}
	}
}

// listenFor says whose wake-up counts from now on, and forgets those that came before.
func (t *turn) listenFor(waiter string) {
	if t.line.subscription != nil {
		t.line.subscription.listenFor(waiter)
	}
}

// woken receives when the waiter should ask again: it was called, or a call may have been missed. Nil if the store cannot call.
func (t *turn) woken(waiter string) <-chan struct{} {
	if e := t.line.subscription; e != nil && (e.moved() || e.refusal() != nil) {
		e.close()
		t.line.subscription = nil
	}
	if t.line.subscription == nil {
		t.line.subscription = t.lines.subscribe(t.channel)
		t.listenFor(waiter)
	}
	if t.line.subscription == nil {
		return nil
	}
	return t.line.subscription.wake
}

// lookAfter is how long whoever was woken may go on sleeping, because the one before it has its turn.
func (t *turn) lookAfter() time.Duration {
	if t.line.subscription == nil {
		return 0
	}
	return t.line.subscription.lookAfter()
}

// refusal is why the waiter cannot be woken, nil if it can.
func (t *turn) refusal() error {
	if t.line.subscription == nil {
		return nil
	}
	return t.line.subscription.refusal()
}

// granted is the news of a lease that the waiter woken last has been given, if there was any.
func (t *turn) granted() *protocol.Granted {
	if t.line.subscription == nil {
		return nil
	}
	return t.line.subscription.granted()
}
