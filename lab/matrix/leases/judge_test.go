package leases

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/lease"
)

// facts are what the servers have on one resource.
type facts struct {
	holders map[string]time.Duration // what is left of each, by "<lease id>:<token>"
	last    int64                    // token
	waiters int64
}

func holder(l *lease.Lease) string {
	return l.LeaseID().String() + ":" + strconv.FormatInt(l.Token(), 10)
}

// look asks the server about the resources.
func (c *leaseCell) look() map[string]facts {
	found := make(map[string]facts)
	for _, resource := range c.resources {
		f, err := lookAt(c.direct, c.key(resource))
		if err != nil {
			c.Errorf("look at %s: %v", resource, err)
		}
		found[resource] = f
	}
	return found
}

// lookAt reads the keys of one resource at once.
func lookAt(server redis.UniversalClient, prefix string) (f facts, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	pipe := server.TxPipeline()
	now, last, waiters := pipe.Time(ctx), pipe.Get(ctx, prefix+"fence"), pipe.ZCount(ctx, prefix+"queue", "0", "+inf")
	owner, left := pipe.Get(ctx, prefix+"owner"), pipe.PTTL(ctx, prefix+"owner")
	places := pipe.ZRangeWithScores(ctx, prefix+"owner", 0, -1)
	_, _ = pipe.Exec(ctx) // each has its own error, and the owner's key is of one type or the other
	if err := cmp.Or(now.Err(), waiters.Err(), left.Err()); err != nil {
		return f, err
	}
	f.holders = make(map[string]time.Duration)
	if owner.Err() == nil {
		f.holders[idAndToken(owner.Val())] = left.Val()
	}
	for _, place := range places.Val() {
		if left := time.UnixMicro(int64(place.Score)).Sub(now.Val()); left > 0 {
			f.holders[idAndToken(place.Member.(string))] = left
		}
	}
	f.last, _ = strconv.ParseInt(last.Val(), 10, 64)
	f.waiters = waiters.Val()
	return f, nil
}

// idAndToken leaves out what the scripts note beside them.
func idAndToken(holder string) string {
	words := strings.SplitN(holder, ":", 3)
	return strings.Join(words[:min(2, len(words))], ":")
}

// awaitWaiter reports whether somebody waits for the last of the resources before done is closed.
func (c *leaseCell) awaitWaiter(done <-chan struct{}) bool {
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for {
		select {
		case <-done:
			return false
		case <-again.C:
		}
		if c.look()[c.resources[len(c.resources)-1]].waiters > 0 {
			return true
		}
	}
}

// judgeTime: a context bounds the call, and without one its own bound does.
func (c *leaseCell) judgeTime(back time.Time) {
	ended := c.endedAt.Load()
	if ended != nil {
		if late := back.Sub(*ended); late > 50*time.Millisecond+c.lag() {
			c.Errorf("returned %v after the end of its context: %v", late, c.err)
		}
		return
	}
	if bound := time.Duration(c.call.ttls)*c.ttl + c.call.more; c.took > bound+c.lag() {
		c.Errorf("took %v, more than %v: %v", c.took, bound, c.err)
	}
}

// judge is the only one.
func (c *leaseCell) judge() {
	c.judgeError()
	if c.left != nil {
		c.left()
	}
	if c.fault.stops {
		c.proxy.Go()
	}
	c.judgeBeliefs()
	c.judgeNothingChanged()
	c.judgeRest()
	if c.call.check != nil {
		c.call.check(c)
	}

	// Now all is well again.
	c.proxy.OnScript(nil)
	c.judgeBeliefs()
	overdue := c.end.name == endings[0].name || len(c.doubtful) > 0
	c.releaseAll()
	if overdue {
		c.deliver() // while nobody holds
		c.judgeRest()
	}
	c.judgeSuccessor()
}

// wanted is the error of every call that has no rule of its own.
func (c *leaseCell) wanted() error {
	if c.fault.outlasted() {
		return c.call.base
	}
	return c.fault.want
}

// judgeError: there is one error for each fault, and the context's if that has ended.
func (c *leaseCell) judgeError() {
	sent, seen := c.requests()
	want := c.call.base
	if (seen > 0 || c.fault.stops) && !c.call.behind(c.script) {
		if want = c.wanted(); c.call.want != nil {
			want = c.call.want(c)
		}
	}
	ended := c.endedAt.Load() != nil
	if c.end.name == "before" && !c.call.detached {
		if !errors.Is(c.err, context.Canceled) || sent > 0 {
			c.Errorf("the context was over; %d requests were sent, and the error is %v", sent, c.err)
		}
		return
	}
	switch {
	case is(c.err, want):
	case c.fault.either && (is(c.err, c.call.base) || is(c.err, c.fault.want)):
	case c.fault.followed && c.fault.times > 0 && c.leaseWorld.deployment.name == "cluster" && is(c.err, c.call.base):
	case c.call.impatient && c.fault.name != leaseFaults[0].name && errors.Is(c.err, context.DeadlineExceeded):
	case ended && (c.err == nil || errors.Is(c.err, context.Canceled) || errors.Is(c.err, context.DeadlineExceeded)):
	default:
		c.Errorf("want %v, got %v, after %v", want, c.err, c.took)
	}
}

func is(err, want error) bool {
	switch want {
	case nil:
		return err == nil
	case errAny:
		return err != nil
	}
	return errors.Is(err, want)
}

// judgeBeliefs: whoever believes to hold does, for as long as it believes. So two never do.
func (c *leaseCell) judgeBeliefs() {
	type belief struct {
		*lease.Lease
		until time.Time
	}
	var believed []belief
	for _, l := range slices.Concat(c.mine, c.theirs) {
		if l.Err() == nil {
			believed = append(believed, belief{l, l.ValidUntil()})
		}
	}
	found := c.look()
	now := time.Now()
	for _, b := range believed {
		left, holds := found[b.Resource()].holders[holder(b.Lease)]
		switch {
		case b.Err() != nil: // by now
		case !holds:
			c.Errorf("believes to hold %s for another %v, and Redis has %v", holder(b.Lease), time.Until(b.until), found[b.Resource()])
		case b.until.After(now.Add(left + 2*time.Millisecond)):
			c.Errorf("believes to hold for another %v, and Redis says %v", time.Until(b.until), left)
		}
	}
}

// judgeNothingChanged: what never reached a server has not changed anything there, and a refusal
// has not anyway.
func (c *leaseCell) judgeNothingChanged() {
	unheard := c.err != nil && c.fault.times == 0 && (c.script == anyScript || c.script == c.call.scripts[0]) &&
		(c.fault.verdict.Fate == faulty.Answer || c.fault.verdict.Fate == faulty.Cut || c.fault.verdict.Fate == faulty.Reset)
	if !unheard && !errors.Is(c.err, lease.ErrHeld) || c.left != nil || len(c.resources) > 1 {
		return
	}
	for resource, now := range c.look() {
		before := c.before[resource]
		if now.last != before.last {
			c.Errorf("the last token was %d and is %d: %v", before.last, now.last, c.err)
		}
		for holder, left := range now.holders {
			if was, held := before.holders[holder]; !held || left > was {
				c.Errorf("%s had %v left and has %v: %v", holder, was, left, c.err)
			}
		}
	}
}

// judgeRest: nobody holds who does not believe so, and nobody waits; after the time that giving
// back may take.
func (c *leaseCell) judgeRest() {
	within := time.Second
	if errors.Is(c.err, lease.ErrUnreachable) || c.fault.stops || c.script == "release" || c.call.renews || c.givesUp() {
		within = c.ttl
	}
	if c.fault.stops || c.late {
		within = max(c.ttl, unasked)
	}
	within += c.lag()
	begin := time.Now()
	for {
		rest := c.rest()
		if rest == "" {
			return
		}
		if time.Since(begin) > within {
			c.Errorf("after %v: %s: %v", within, rest, c.err)
			return
		}
		<-time.After(25 * time.Millisecond)
	}
}

// unasked is for how long a waiter that does not ask stands in the queue.
const unasked = 6 * time.Second

// givesUp: nothing can be taken back while the fault lasts. Then the lease runs out, and a waiter
// is dropped within seconds or when its turn comes.
func (c *leaseCell) givesUp() bool {
	return (c.script == "withdraw" || c.script == anyScript) && (c.fault.times == 0 || !c.fault.passing)
}

// rest is what is left of holders and waiters that nobody stands for.
func (c *leaseCell) rest() string {
	believed := make(map[string]bool)
	for _, l := range slices.Concat(c.mine, c.theirs) {
		believed[holder(l)] = l.Err() == nil
	}
	for _, l := range c.doubtful {
		believed[holder(l)] = true
	}
	for resource, now := range c.look() {
		if now.waiters > 0 && !c.givesUp() {
			return fmt.Sprintf("%d wait for %s, and nobody does", now.waiters, resource)
		}
		for holder, left := range now.holders {
			if !believed[holder] {
				return fmt.Sprintf("%s holds %s for another %v, and nobody believes so", holder, resource, left)
			}
		}
	}
	return ""
}

// deliver lets the server have what was late.
func (c *leaseCell) deliver() {
	c.late = true
	if err := c.proxy.Deliver(); err != nil {
		c.Errorf("deliver: %v", err)
	}
}

func (c *leaseCell) releaseAll() {
	for _, l := range slices.Concat(c.mine, c.theirs) {
		believed, until := l.Err() == nil, l.ValidUntil()
		if err := l.Release(context.Background()); believed && err != nil && time.Now().Before(until) {
			c.Errorf("release: %v", err)
		}
	}
	_ = c.doubtful.Release(context.Background())
	c.doubtful = nil
}

// judgeSuccessor: the next holder gets the resources at once, with a greater token, and keeps them
// when late requests arrive.
func (c *leaseCell) judgeSuccessor() {
	last := c.floor
	for _, l := range slices.Concat(c.mine, c.theirs) {
		last = max(last, l.Token())
	}
	var next lease.Leases
	for _, resource := range c.resources {
		l, err := c.successor(resource)
		if err != nil {
			c.Errorf("the next holder: %v", err)
			continue
		}
		if before := max(last, c.before[resource].last); l.Token() <= before {
			c.Errorf("token %d follows %d", l.Token(), before)
		}
		next = append(next, l)
	}
	c.theirs = next
	before := c.look()
	c.deliver()
	c.judgeBeliefs()
	for resource, now := range c.look() {
		for holder, left := range now.holders {
			if was := before[resource].holders[holder]; was > 0 && left > was {
				c.Errorf("a late request has moved the end of %s on", holder)
			}
		}
	}
	c.judgeRest()
	c.releaseAll()
}

func (c *leaseCell) successor(resource string) (*lease.Lease, error) {
	next := c.rival.Acquire
	if c.kind == "semaphore" {
		next = c.semaphore(true).Acquire
	}
	within := c.lag()
	if c.givesUp() { // what arrives late is not taken back either
		within += c.ttl
	}
	return next(context.Background(), resource, lease.WaitAtMost(within))
}

// reap requires that a cell has left nothing in this process or on the servers: each connection is
// back in its pool, no subscription is left. It runs behind the cells, since a subscription
// lingers.
func (w *leaseWorld) reap(c *leaseCell) {
	c.proxy.Go()
	c.proxy.OnScript(nil)
	w.reapers.Go(func() {
		defer c.client.Close()
		begin := time.Now()
		for {
			s := c.client.PoolStats()
			if s.TotalConns == s.IdleConns && s.PubSubStats.Active == 0 {
				return
			}
			if time.Since(begin) > 10*time.Second+c.lag() {
				w.t.Errorf("%s leaves %d connections, %d of them idle, %d subscribed", c.name, s.TotalConns, s.IdleConns, s.PubSubStats.Active)
				return
			}
			<-time.After(100 * time.Millisecond)
		}
	})
}
