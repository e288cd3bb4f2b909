package lease

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	protocol "github.com/fencedb/fencedb/lease/internal/redis"
)

// standing is what a waiter knows from the latest answer that let it go on waiting.
type standing struct {
	sent    time.Time // when the request was
	request int64     // its number
}

// news is a message to a waiter, as queue.lua publishes them.
type news struct {
	call    string        // for whom; "" if it says nothing
	granted *grantedTo    // nil: ask
	look    time.Duration // ask after that time; 0: now
}

// grantedTo is the news that the waiter holds.
type grantedTo struct {
	request int64 // the one that is answered by it
	token   int64
	lasts   time.Duration // from the moment at which Redis answered that request
}

// readNews reads "free <call>", "look <call> <ms>" or "granted <call> <request> <token> <ms>". Whatever else begins
// with a word and a call is a reason to ask.
func readNews(message string) news {
	words := strings.Fields(message)
	if len(words) < 2 {
		return news{}
	}
	n := news{call: words[1]}
	var numbers []int64
	for _, word := range words[2:] {
		number, err := strconv.ParseInt(word, 10, 64)
		if err != nil || number < 1 {
			return n
		}
		numbers = append(numbers, number)
	}
	switch {
	case words[0] == "granted" && len(numbers) == 3:
		n.granted = &grantedTo{numbers[0], numbers[1], time.Duration(numbers[2]) * time.Millisecond}
	case words[0] == "look" && len(numbers) == 1:
		n.look = time.Duration(numbers[0]) * time.Millisecond
	}
	return n
}

// handedOver is the lease that a release has given to this waiter, if it can be believed in without another request.
//
// When it was granted cannot be known; that it was after the latest refusal can, by the number of the request that
// stands in the queue:
//
//	t0  the waiter sends request 2; refused; it waits in the queue, with the number 2
//	t1  the holder's release grants, for a second; the news says: to request 2, for 4.2 s from its answer, 3.2 s ago
//	t2  the news arrives, late perhaps. Redis answered request 2 after t0, so trusting until t0 + 4.2 s - margin is safe
//
// It is the trust window of every lease, with Redis's clock running from the answer to request 2. News for another
// request is no more than a reason to ask: that Redis has lost its data since, or that a request was overtaken by the
// next, changes nothing about it.
//
// A grant of which too little is left, or which replicas have to confirm, is asked for as well. Otherwise the lease is
// full as soon as its first renewal is answered.
func (a *acquisition) handedOver(ctx context.Context, t *turn) Leases {
	i, last := a.issuer, a.standing
	granted := t.granted()
	if granted == nil || granted.request != last.request || ctx.Err() != nil || i.cfg.Replicas > 0 {
		return nil
	}
	until := last.sent.Add(granted.lasts - i.marginOf(granted.lasts))
	if !time.Now().Before(until) {
		return nil
	}
	return Leases{newProvisional(a.caller, i, a.resources[0], a.term(a.keys[0], granted.token), until)}
}

// marginOf is the margin for another time than the TTL: clocks that run at different speeds come apart by as much less,
// or more.
func (i *Issuer) marginOf(d time.Duration) time.Duration {
	return time.Duration(float64(i.cfg.Margin) * float64(d) / float64(i.cfg.TTL))
}

const (
	settleAfter = 50 * time.Millisecond  // a lease that was handed over is made full, unless someone needs to know its validity before
	settleTry   = 250 * time.Millisecond // for one attempt
)

// provisional is the state of a lease that was handed over, until its first renewal is answered.
type provisional struct {
	wanted  chan struct{} // holds one token when someone wants to know how long the lease lasts
	settled chan struct{} // closed when that is known: a renewal has succeeded, or the lease is over
	once    sync.Once     // closes settled
}

// newProvisional starts the life of a lease that was handed over and may be believed in until the time given.
func newProvisional(ctx context.Context, i *Issuer, resource string, t term, until time.Time) *Lease {
	l := startLease(ctx, i, resource, t, until, time.Now(), &provisional{wanted: make(chan struct{}, 1), settled: make(chan struct{})})
	go l.settle()
	return l
}

// settle makes the lease last for its TTL, beside the work. Work that is done before costs no request for it.
func (l *Lease) settle() {
	p := l.provisional
	timer := time.NewTimer(settleAfter)
	defer timer.Stop()
	select {
	case <-p.wanted:
	case <-timer.C:
	case <-l.ctx.Done():
		return
	}
	for p.pending() {
		ctx, cancel := protocol.Within(l.ctx, settleTry)
		err := l.Extend(ctx)
		cancel()
		if !protocol.Transient(err) {
			p.settle()
		}
	}
}

// settle says that it is known how long the lease lasts.
func (p *provisional) settle() {
	if p != nil {
		p.once.Do(func() { close(p.settled) })
	}
}

// await waits until it is known how long the lease lasts, for one attempt to find out.
func (p *provisional) await() {
	select {
	case p.wanted <- struct{}{}:
	default:
	}
	timer := time.NewTimer(settleTry)
	defer timer.Stop()
	select {
	case <-p.settled:
	case <-timer.C:
	}
}

// pending is true until then. A lease that was not handed over has none.
func (p *provisional) pending() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.settled:
		return false
	default:
		return true
	}
}
