package lease

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/fencedb/fencedb/internal/protocol"
)

// lines are the queues inside this process, one per resource with waiters. Only the first of a line
// stands in Redis's queue, so many goroutines cost Redis one waiter and one subscription.
type lines struct {
	subscribe func(channel, waiter string) *subscription // nil result: the store cannot wake waiters

	mu        sync.Mutex       // before that of a line
	byChannel map[string]*line // those with waiters; guarded by mu
}

// line is the queue for one resource. The waiter at the front talks to Redis; the others wait until
// they come to the front. An empty line stays for a moment, with its subscription, so a resource
// under steady contention costs no subscription at each turn.
type line struct {
	lines   *lines
	channel string

	subscription *subscription // belongs to whoever is at the front

	mu     sync.Mutex
	behind []*place    // guarded by mu
	gone   int         // how many of those have given up; guarded by mu
	empty  *time.Timer // removes the line; nil while someone is at the front; guarded by mu and by that of the lines

	// Since when Redis has not answered the front of the line, zero if it has answered, and what it
	// said last. A line waits through an outage for one TTL, and its waiters share that time: they do
	// not spend it one after the other. Guarded by mu.
	unanswered time.Time
	why        error
}

// place is the place of a waiter after the front of a line. A waiter that gives up marks its place:
// thousands that are cancelled at once would wait for each other if each searched for its own.
type place struct {
	front chan struct{} // closed when it is the front
	gone  bool          // guarded by the mu of the line
}

// asks notes that the front asks now.
func (l *line) asks() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unanswered.IsZero() {
		l.unanswered = time.Now()
	}
}

// note records the outcome of the front's request, and adds to it what Redis said before. An error
// that comes when ctx has ended is about this caller and says nothing about Redis.
func (l *line) note(ctx context.Context, err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !protocol.Transient(err):
		l.unanswered, l.why = time.Time{}, nil
	case ctx.Err() == nil:
		l.why = protocol.Latest(l.why, err)
		return l.why
	}
	return err
}

// silent returns since when Redis has not answered the front, for a waiter that came at that time,
// and what is known of the silence. If Redis has answered, the time is now.
func (l *line) silent(came time.Time) (since time.Time, why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.unanswered.IsZero():
		return time.Now(), nil
	case came.After(l.unanswered):
		return came, l.why
	default:
		return l.unanswered, l.why
	}
}

// join returns when the caller is at the front, or when ctx ends before that, with the cause. It
// calls busy before it waits.
func (ls *lines) join(ctx context.Context, channel string, busy func(context.Context)) (*line, error) {
	l, p := ls.enter(channel)
	if p == nil {
		return l, nil
	}
	busy(ctx)
	select {
	case <-p.front:
		return l, nil
	case <-ctx.Done():
		if !l.quit(p) {
			l.leave() // the caller came to the front at the same moment
		}
		return l, context.Cause(ctx)
	}
}

// enter takes a place and returns it; nil if the caller is at the front already.
func (ls *lines) enter(channel string) (*line, *place) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l, known := ls.byChannel[channel]
	if !known {
		l = &line{lines: ls, channel: channel}
		ls.byChannel[channel] = l
		return l, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.empty != nil {
		l.empty.Stop()
		l.empty = nil
		return l, nil
	}
	p := &place{front: make(chan struct{})}
	l.behind = append(l.behind, p)
	return l, p
}

// quit gives a place up. It returns false if that place is the front by now.
func (l *line) quit(p *place) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-p.front:
		return false
	default:
	}
	p.gone = true
	if l.gone++; l.gone > len(l.behind)/2 { // so each is moved once for each that gives up
		l.behind = slices.DeleteFunc(l.behind, func(p *place) bool { return p.gone })
		l.gone = 0
	}
	return true
}

// next lets the next waiter come to the front; it returns false if there is none. The caller holds
// mu.
func (l *line) next() bool {
	for len(l.behind) > 0 {
		p := l.behind[0]
		l.behind = l.behind[1:]
		if !p.gone {
			close(p.front)
			return true
		}
		l.gone--
	}
	return false
}

// leave lets the next waiter come to the front. If there is none, the line ends, or stays for the
// time linger, with its subscription.
func (l *line) leave() {
	l.mu.Lock()
	more := l.next()
	l.mu.Unlock()
	if more {
		return
	}
	ls := l.lines
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.next(): // who came meanwhile
	case l.subscription == nil:
		l.remove()
	default:
		var empty *time.Timer
		empty = time.AfterFunc(linger, func() {
			ls.mu.Lock()
			defer ls.mu.Unlock()
			l.mu.Lock()
			defer l.mu.Unlock()
			if l.empty == empty { // or someone came as the timer fired
				l.remove()
			}
		})
		l.empty = empty
	}
}

// remove ends the line and its subscription. The caller holds the mu of the lines and of the line.
func (l *line) remove() {
	delete(l.lines.byChannel, l.channel)
	if l.subscription != nil {
		l.subscription.close()
	}
}

// close removes empty lines at once. It is called when no caller joins any more.
func (ls *lines) close() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, l := range ls.byChannel {
		l.mu.Lock()
		if l.empty != nil && l.empty.Stop() {
			l.remove()
		}
		l.mu.Unlock()
	}
}

// listenFor sets whose news counts from now on.
func (l *line) listenFor(waiter string) {
	if l.subscription != nil { // which the line may have from a waiter before
		l.subscription.listenFor(waiter)
	}
}

// refused is why Redis does not let this process listen; nil if it does.
func (l *line) refused() error {
	if l.subscription == nil {
		return nil
	}
	return l.subscription.told().refused
}

// woken receives when the waiter should ask again: it was called, or a message may have been
// missed. Nil if the store cannot wake waiters.
func (l *line) woken(waiter string) <-chan struct{} {
	if s := l.subscription; s != nil && (s.moved() || l.refused() != nil) {
		s.close()
		l.subscription = nil
	}
	if l.subscription == nil {
		l.subscription = l.lines.subscribe(l.channel, waiter)
	}
	if l.subscription == nil {
		return nil
	}
	return l.subscription.wake
}
