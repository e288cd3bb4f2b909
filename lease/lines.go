package lease

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/fencedb/fencedb/internal/protocol"
)

// lines are the queues inside this process, one for each resource with waiters. Only the front of a
// line is in Redis's queue, so many goroutines cost Redis one waiter and one subscription.
type lines struct {
	subscribe func(channel, waiter string) *subscription // nil: waiters cannot be woken now

	mu        sync.Mutex       // locked before the mu of a line
	byChannel map[string]*line // guarded by mu
}

// line is the queue for one resource. The waiter at the front asks Redis; the others wait until
// they come to the front. An empty line is kept for a moment, with its subscription, so a resource
// under steady contention does not need a new subscription at each turn.
type line struct {
	lines   *lines
	channel string

	subscription *subscription // only the waiter at the front uses it

	mu    sync.Mutex
	later []*place    // of the waiters after the front; guarded by mu
	gone  int         // how many of later have given up; guarded by mu
	empty *time.Timer // removes the line; nil while there is a front; guarded by mu and the mu of the lines

	// unanswered is since when Redis has not answered the front of the line, zero if it has
	// answered; why is the latest error. A line waits through an outage for one TTL. Its waiters
	// share that time, and do not spend it one after the other. Guarded by mu.
	unanswered time.Time
	why        error
}

// place is the place of a waiter after the front of a line. A waiter that gives up only marks its
// place. If each searched for its place to remove it, thousands that are cancelled at once would
// wait for each other.
type place struct {
	front chan struct{} // closed when the waiter comes to the front
	gone  bool          // guarded by the mu of the line
}

// asks notes that the front asks Redis now.
func (l *line) asks() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unanswered.IsZero() {
		l.unanswered = time.Now()
	}
}

// note records the outcome of the front's request, and returns it with what earlier requests found
// out. An error after the end of ctx is about this caller and says nothing about Redis.
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

// silent returns since when Redis has not answered the front, counted from the time when the waiter
// came, and the latest error. If Redis has answered, it returns the present time.
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

// join returns when the caller is at the front; or when ctx ends before that, with the cause. If it
// has to wait, it calls busy first.
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
			l.leave() // the caller came to the front at that moment
		}
		return l, context.Cause(ctx)
	}
}

// enter returns the line and the caller's place in it; the place is nil if the caller is at the
// front.
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
	l.later = append(l.later, p)
	return l, p
}

// quit gives up a place. It returns false if the waiter has come to the front by now.
func (l *line) quit(p *place) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-p.front:
		return false
	default:
	}
	p.gone = true
	if l.gone++; l.gone > len(l.later)/2 { // so a removal moves fewer places than have given up
		l.later = slices.DeleteFunc(l.later, func(p *place) bool { return p.gone })
		l.gone = 0
	}
	return true
}

// next lets the next waiter come to the front. It returns false if there is none. The caller holds
// mu.
func (l *line) next() bool {
	for len(l.later) > 0 {
		p := l.later[0]
		l.later = l.later[1:]
		if !p.gone {
			close(p.front)
			return true
		}
		l.gone--
	}
	return false
}

// leave is called by the front. It lets the next waiter come to the front. If there is none, the
// line ends; if it has a subscription, it is kept for the time linger first.
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
	case l.next(): // a waiter came meanwhile
	case l.subscription == nil:
		l.remove()
	default:
		var empty *time.Timer
		empty = time.AfterFunc(linger, func() {
			ls.mu.Lock()
			defer ls.mu.Unlock()
			l.mu.Lock()
			defer l.mu.Unlock()
			if l.empty == empty { // otherwise a waiter came as the timer fired
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

// close removes empty lines at once. It is called after the last caller has joined.
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

// listenFor sets the waiter whose news counts from now on.
func (l *line) listenFor(waiter string) {
	if l.subscription != nil { // an earlier front has made it
		l.subscription.listenFor(waiter)
	}
}

// refused is why Redis does not allow this process to listen; nil if it does.
func (l *line) refused() error {
	if l.subscription == nil {
		return nil
	}
	return l.subscription.latest().refused
}

// woken returns a channel that receives when there is news for the waiter, or a message may have
// been missed. It subscribes if necessary. Nil: the waiter cannot be woken now.
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
