package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/internal/protocol"
)

// wait stands in this process's line and then in Redis's queue. It is for one resource.
func (s *step) wait(asking, waiting context.Context) (leases Leases, err error) {
	defer func() { s.endWait(leases, err) }()
	came := time.Now()
	l, err := s.core.lines.join(waiting, s.keys[0].Channel.(string), s.beginWait)
	if err != nil {
		held := s.still(waiting, l, came, &HeldError{Resource: s.resources[0], permit: s.core.cfg.permits > 0})
		if held.silent != nil {
			held.silent = fmt.Errorf("in line behind a caller of this process: %w", held.silent)
		}
		return nil, held
	}
	defer l.leave()
	leases, err = s.queue(asking, waiting, l, came)
	if err != nil {
		s.withdraw()
	}
	return leases, err
}

// still is the refusal of a step whose waiting has ended. It says who does not answer the front of
// the line, if that is so: then nobody knows who holds.
func (s *step) still(waiting context.Context, l *line, came time.Time, refused *HeldError) *HeldError {
	refused.Cause = context.Cause(waiting)
	since, why := l.silent(came)
	switch {
	case time.Since(since) <= protocol.Grace:
	case errors.Is(why, ErrRefused):
		refused.silent = protocol.Ended(waiting, why)
	default:
		refused.silent = protocol.Latest(why, s.core.store.redis.Unanswered(waiting, s.keys[0].Owner.(string), since))
	}
	return refused
}

// beginWait notes that the resource was found taken.
func (s *step) beginWait(ctx context.Context) {
	if s.waits == nil {
		t := s.core.trace(ctx, TraceStart{Op: OpWait, Resource: s.resources[0], LeaseID: s.id})
		s.waits = &t
	}
}

// endWait notes that the waiting is over, if there was any.
func (s *step) endWait(leases Leases, err error) {
	if s.waits != nil {
		if l := leases.first(); l != nil {
			s.waits.start.LeaseID, s.waits.start.Token = l.id, l.term.token
		}
		s.waits.end(0, byCaller(s.waits.ctx, err))
	}
}

// queue asks whenever it is woken, and after the retry-after of the latest refusal.
func (s *step) queue(asking, waiting context.Context, l *line, came time.Time) (Leases, error) {
	var last *HeldError
	if s.waits != nil { // the callers in front of it have found it taken
		last = &HeldError{Resource: s.resources[0], permit: s.core.cfg.permits > 0}
	}
	for backoff := pollFirst; ; backoff = min(2*backoff, pollLast) {
		l.listenFor(s.name.(string))
		l.asks()
		left := l.silence.left(came, s.core.cfg.TTL)
		if left <= 0 {
			return nil, cmp.Or(l.silence.why, error(protocol.NoAnswer(s.core.cfg.TTL)))
		}
		leases, err := s.ask(asking, modeWait, left)
		if asking.Err() != nil {
			<-waiting.Done() // which ends with asking, a moment later
		}
		err = l.note(waiting, err)
		refused, held := errors.AsType[*HeldError](err)
		switch {
		case err == nil:
			return leases, nil
		case held:
			s.beginWait(waiting)
			last = refused
			s.sleep(waiting, l, last.RetryAfter, backoff)
			err = l.refused()
		case protocol.Transient(err) && !errors.Is(err, redis.ErrClosed): // which no waiting ends
			left = l.silence.left(came, s.core.cfg.TTL)
			if left > 0 && protocol.Sleep(waiting, min(protocol.Jitter(backoff), max(left/2, pollFirst))) {
				err = nil
			}
		}
		switch {
		case waiting.Err() != nil && last != nil:
			return nil, s.still(waiting, l, came, last)
		case err != nil:
			return nil, protocol.Ended(waiting, err)
		}
	}
}

// sleep returns when the waiter is woken, or should have been.
func (s *step) sleep(ctx context.Context, l *line, held, backoff time.Duration) {
	woken := l.woken(s.name.(string))
	if woken == nil {
		held = min(held, backoff/2+protocol.Below(backoff))
	}
	timer := time.NewTimer(spread(held))
	defer timer.Stop()
	for {
		select {
		case <-woken:
			news := l.subscription.told()
			if news.ask {
				return
			}
			timer.Reset(spread(news.look))
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// spread makes d a little longer, so that not all waiters ask at once.
func spread(d time.Duration) time.Duration { return d + protocol.Below(d/20+time.Millisecond) }

// How often to ask a store that cannot wake waiters.
const (
	pollFirst = 10 * time.Millisecond
	pollLast  = time.Second
)

// lines are the queues inside this process, one per resource with waiters. Only the first of a line
// stands in Redis's queue, so many goroutines cost Redis one waiter and one subscription.
type lines struct {
	subscribe func(channel, waiter string) *subscription // nil result: the store cannot wake waiters

	mu        sync.Mutex
	byChannel map[string]*line // those with waiters; guarded by mu
}

// line is the queue for one resource. The waiter at the front talks to Redis; the others wait until
// they come to the front. An empty line stays for a moment, with its subscription, so a resource
// under steady contention costs no subscription at each turn.
type line struct {
	lines   *lines
	channel string

	behind       []chan struct{} // closed when its owner comes to the front; guarded by lines.mu
	empty        *time.Timer     // removes the line; nil while someone is at the front; guarded by lines.mu
	subscription *subscription   // belongs to whoever is at the front

	silence silence // belongs to whoever is at the front, who changes it with lines.mu
}

// silence is how long Redis has not answered the front of a line. A line waits through an outage
// for one TTL, and its waiters share that time: they do not spend it one after the other.
type silence struct {
	since time.Time // of the first request without an answer; zero if the latest was answered
	why   error     // nil: there was no attempt
}

// begin counts from now, unless an earlier request was not answered.
func (s *silence) begin() {
	if s.since.IsZero() {
		s.since = time.Now()
	}
}

// left is for how long a waiter that came at that time goes on asking.
func (s *silence) left(came time.Time, patience time.Duration) time.Duration {
	since := s.since
	if came.After(since) {
		since = came
	}
	return time.Until(since.Add(patience))
}

// note takes the outcome of a request in, and adds to it what Redis said before. An error that
// comes when ctx has ended is about this caller and says nothing about Redis.
func (s *silence) note(ctx context.Context, err error) error {
	switch {
	case !protocol.Transient(err):
		*s = silence{}
	case ctx.Err() == nil:
		s.why = protocol.Latest(s.why, err)
		return s.why
	}
	return err
}

// asks and note say what the front does, and what became of it.
func (l *line) asks() {
	l.lines.mu.Lock()
	defer l.lines.mu.Unlock()
	l.silence.begin()
}

func (l *line) note(ctx context.Context, err error) error {
	l.lines.mu.Lock()
	defer l.lines.mu.Unlock()
	return l.silence.note(ctx, err)
}

// silent is since when Redis has not answered the front, for one who came at that time, and what is
// known of it. If it has answered, that is now.
func (l *line) silent(came time.Time) (since time.Time, why error) {
	l.lines.mu.Lock()
	defer l.lines.mu.Unlock()
	switch since := l.silence.since; {
	case since.IsZero():
		return time.Now(), nil
	case came.After(since):
		return came, l.silence.why
	default:
		return since, l.silence.why
	}
}

// join returns when the caller is at the front, or with the cause when ctx ends before that. It
// calls busy before it waits.
func (ls *lines) join(ctx context.Context, channel string, busy func(context.Context)) (*line, error) {
	l, front := ls.enter(channel)
	if front == nil {
		return l, nil
	}
	busy(ctx)
	select {
	case <-front:
		return l, nil
	case <-ctx.Done():
		if !l.quit(front) {
			l.leave() // the caller came to the front at the same moment
		}
		return l, context.Cause(ctx)
	}
}

// enter takes a place, a channel that is closed when it is the front; nil if it is the front
// already.
func (ls *lines) enter(channel string) (l *line, place chan struct{}) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l, known := ls.byChannel[channel]
	switch {
	case !known:
		l = &line{lines: ls, channel: channel}
		ls.byChannel[channel] = l
	case l.empty != nil:
		l.empty.Stop()
		l.empty = nil
	default:
		place = make(chan struct{})
		l.behind = append(l.behind, place)
	}
	return l, place
}

// quit takes a place out of the line. It answers false if that place is the front by now.
func (l *line) quit(place chan struct{}) bool {
	l.lines.mu.Lock()
	defer l.lines.mu.Unlock()
	n := slices.Index(l.behind, place)
	if n >= 0 {
		l.behind = slices.Delete(l.behind, n, n+1)
	}
	return n >= 0
}

// leave lets the next come to the front. When there is none, the line ends, or stays for as long as
// linger with its subscription.
func (l *line) leave() {
	ls := l.lines
	ls.mu.Lock()
	defer ls.mu.Unlock()
	switch {
	case len(l.behind) > 0:
		close(l.behind[0])
		l.behind = l.behind[1:]
	case l.subscription == nil:
		l.remove()
	default:
		var empty *time.Timer
		empty = time.AfterFunc(linger, func() {
			ls.mu.Lock()
			defer ls.mu.Unlock()
			if l.empty == empty { // or someone came as the timer fired
				l.remove()
			}
		})
		l.empty = empty
	}
}

// remove ends the line and its subscription. The caller holds the mu of the lines.
func (l *line) remove() {
	delete(l.lines.byChannel, l.channel)
	if l.subscription != nil {
		l.subscription.close()
	}
}

// close removes empty lines at once. It is called when nobody joins any more.
func (ls *lines) close() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, l := range ls.byChannel {
		if l.empty != nil && l.empty.Stop() {
			l.remove()
		}
	}
}

// listenFor says whose news counts from now on.
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
