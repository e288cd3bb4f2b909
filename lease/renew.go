package lease

import (
	"container/heap"
	"context"
	"sync"
	"time"

	protocol "github.com/fencedb/fencedb/lease/internal/redis"
)

// renewal is an extension that was begun.
type renewal struct {
	extension
	sent  time.Time
	trace tracing
}

// watchdog renews the leases of one issuer from a single loop. The loop runs while there are
// leases.
//
// Lock order: a lease's mu before the watchdog's. So the loop never calls a lease while it holds
// its own.
type watchdog struct {
	store store
	cfg   Config
	wake  chan struct{} // holds one token when the loop has to look again

	mu      sync.Mutex
	due     schedule                // guarded by mu
	places  map[*Lease]*appointment // the entries of due; guarded by mu
	running bool                    // guarded by mu
}

func newWatchdog(s store, cfg Config) *watchdog {
	return &watchdog{store: s, cfg: cfg, wake: make(chan struct{}, 1), places: make(map[*Lease]*appointment)}
}

const (
	batchLimit = 256 // renewals in one request
	// A batch is gathered from what is due within this part of the interval.
	batchWindow = 16
)

// watch schedules the next renewal of a lease that was granted or renewed by a request sent at that
// time. The caller holds the lease's mu, and the lease is not over.
func (w *watchdog) watch(l *Lease, sent time.Time) {
	w.schedule(l, sent.Add(protocol.Jitter(w.cfg.RenewEvery)))
}

// retry schedules the next attempt for a lease whose renewal failed. The caller holds the lease's
// mu, and the lease is not over.
func (w *watchdog) retry(l *Lease) {
	w.schedule(l, time.Now().Add(protocol.Jitter(w.cfg.RenewEvery/4)))
}

func (w *watchdog) schedule(l *Lease, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, known := w.places[l]; known || w.cfg.RenewEvery == Never {
		return
	}
	a := &appointment{lease: l, at: at}
	w.places[l] = a
	heap.Push(&w.due, a)
	if !w.running {
		w.running = true
		go w.run()
	} else if w.due[0] == a {
		w.signal()
	}
}

// forget cancels the renewal of a lease that is over.
func (w *watchdog) forget(l *Lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if a, known := w.places[l]; known {
		heap.Remove(&w.due, a.index)
		delete(w.places, l)
		if len(w.due) == 0 {
			w.signal() // so that the loop ends
		}
	}
}

func (w *watchdog) signal() {
	select {
	case w.wake <- struct{}{}:
	default: // the token is there
	}
}

// run is the loop. Requests are sent beside it, so that one that hangs does not hold up the others.
func (w *watchdog) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		batch, next, ok := w.take(time.Now())
		if len(batch) > 0 {
			go w.renew(batch)
			continue
		}
		if !ok {
			return
		}
		timer.Reset(time.Until(next))
		select {
		case <-timer.C:
		case <-w.wake:
		}
	}
}

// take removes what is due, and says when to look again. It answers false if nothing is left; the
// loop then has to end.
func (w *watchdog) take(now time.Time) (batch []*Lease, next time.Time, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.due) > 0 && !w.due[0].at.After(now) {
		window := now.Add(w.cfg.RenewEvery / batchWindow)
		for len(w.due) > 0 && len(batch) < batchLimit && !w.due[0].at.After(window) {
			a := heap.Pop(&w.due).(*appointment)
			delete(w.places, a.lease)
			batch = append(batch, a.lease)
		}
		return batch, time.Time{}, true
	}
	if len(w.due) == 0 {
		w.running = false
		return nil, time.Time{}, false
	}
	return nil, w.due[0].at, true
}

// renew sends one request for all leases of the batch that are still alive, and makes their next
// appointments.
func (w *watchdog) renew(leases []*Lease) {
	now := time.Now()
	var batch []extension
	var begun []*renewal
	var alive []*Lease
	for _, l := range leases {
		if r, _ := l.beginRenewal(l.ctx, now); r != nil { // the error is why there is none
			batch, begun, alive = append(batch, r.extension), append(begun, r), append(alive, l)
		}
	}
	if len(batch) == 0 {
		return
	}
	ctx, cancel := protocol.Within(context.Background(), w.cfg.RenewTimeout)
	defer cancel()
	for i, answer := range w.store.extend(ctx, batch) {
		_ = alive[i].endRenewal(begun[i], answer)
	}
}

// appointment is when a lease is to be renewed.
type appointment struct {
	lease *Lease
	at    time.Time
	index int // in the schedule
}

// schedule is a heap of appointments, the earliest first.
type schedule []*appointment

func (s schedule) Len() int { return len(s) }

func (s schedule) Less(i, j int) bool { return s[i].at.Before(s[j].at) }

func (s schedule) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].index, s[j].index = i, j
}

// Push implements [heap.Interface].
func (s *schedule) Push(x any) {
	a := x.(*appointment)
	a.index = len(*s)
	*s = append(*s, a)
}

// Pop implements [heap.Interface].
func (s *schedule) Pop() any {
	old := *s
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*s = old[:len(old)-1]
	return last
}
