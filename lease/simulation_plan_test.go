package lease_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	"github.com/fencedb/fencedb/lease"
)

// plan is what a seed stands for: the processes, the faults, and how the network treats messages.
// What the processes do follows from it, and from what they are answered.
type plan struct {
	seed      uint64
	ttl       time.Duration
	margin    time.Duration // 0: the default
	retention time.Duration
	passive   bool // leases are not renewed by themselves
	resources int
	speed     float64       // of Redis's clock, against everybody else's
	until     time.Duration // nobody begins new work after that
	processes []processPlan
	faults    []fault
	odds      [odds]float64 // of each message
	slowest   time.Duration
}

type processPlan struct {
	workers      int // 0: it does not run
	starts, dies time.Duration
	silent       bool // Redis does not learn that it died
}

// kind is what goes wrong once, at a time.
type kind int

// Faults. Those before flush concern one process.
const (
	stop   kind = iota // it does nothing, and gets nothing
	cut                // nothing passes between it and Redis; it comes through later
	cutOut             // the same for its requests
	cutIn              // the same for answers and news
	reset              // its connections break
	loseNews
	flush         // all data is lost
	evict         // keys of one kind are lost
	restore       // Redis returns to a snapshot, as after a crash or a fail-over
	restart       // Redis starts again with its data, but without scripts and connections
	forgetScripts // the same, with connections
	clockForward
	clockBack
	hang   // Redis executes nothing
	refuse // Redis answers with an error
	kinds  // how many there are
)

var kindNames = [kinds]string{"stop", "cut", "cut of requests", "cut of answers", "reset", "lost news", "FLUSHALL", "eviction", "return to a snapshot", "restart",
	"SCRIPT FLUSH", "clock forward", "clock back", "hang", "refusal"}

func (k kind) ofRedis() bool { return k >= flush }

// losesLeases reports whether a lease may end before its holder knows.
func (k kind) losesLeases() bool {
	return k == flush || k == evict || k == restore || k == clockForward
}

type fault struct {
	kind    kind
	process int // whose, -1 for Redis
	at      time.Duration
	lasts   time.Duration // or how far the clock goes, or how old the snapshot is
	field   string        // which keys, or which error
}

func (f fault) String() string {
	who := "Redis"
	if f.process >= 0 {
		who = string(rune('A' + f.process))
	}
	return strings.TrimSpace(fmt.Sprintf("%s of %s, %v %s", kindNames[f.kind], who, f.lasts, f.field))
}

// odd is what may go wrong with any message.
type odd int

const (
	fateless       odd = iota
	slowly             // it is under way for long
	loseRequest        // the connection breaks before Redis gets it
	loseReply          // the connection breaks after Redis has executed it
	swallowRequest     // it vanishes, and all that follows on the connection
	swallowReply       // it is executed, and the answer vanishes, with all that follows
	repeat             // it is executed once more, later
	newsLost
	newsLate
	newsTwice
	odds
)

func (o odd) String() string {
	return [odds]string{"", "slow", "lost with its connection", "reply lost with its connection", "swallowed", "reply swallowed", "repeated later",
		"news lost", "news late", "news twice"}[o]
}

// planOf is the plan of a seed. Each plan has only some of all that can go wrong, so that one fault
// does not hide what another brings to light; one in ten has none, and in another one processes
// only die.
func planOf(seed uint64) plan {
	d := newDice(mix(seed))
	p := plan{seed: seed, speed: 1, retention: 24 * time.Hour,
		until: d.between(4*time.Second, 16*time.Second), slowest: d.between(time.Millisecond, 3*time.Second)}
	once := newDice(mix(seed, 1))
	p.passive = once.is(0.2)
	p.ttl = []time.Duration{300 * time.Millisecond, time.Second, 3 * time.Second, 8 * time.Second}[d.upTo(4)]
	p.resources = 1 + d.upTo(2)
	if d.is(0.3) {
		p.speed = 1 + (float64(d.upTo(17))-8)/1000 // the margin is a hundredth
	}
	if d.is(0.2) {
		p.retention = p.ttl
	}
	for range 2 + d.upTo(3) {
		one := processPlan{workers: 1 + d.upTo(2)}
		if d.is(0.3) {
			one.starts = d.between(0, p.until)
		}
		p.processes = append(p.processes, one)
	}
	calm := d.upTo(10)
	if calm == 0 {
		return p
	}
	for range d.upTo(3) {
		n := d.upTo(len(p.processes))
		p.processes[n].dies = d.between(p.processes[n].starts, p.until)
		p.processes[n].silent = d.is(0.5)
	}
	if calm == 1 { // only processes die
		return p
	}
	enabled := d.next()
	for range d.upTo(7) {
		f := fault{kind: kind(d.upTo(int(kinds))), process: -1,
			at: d.between(0, p.until), lasts: d.between(time.Millisecond, 2*p.ttl+2*time.Second)}
		if enabled>>f.kind&1 == 0 {
			continue
		}
		if !f.kind.ofRedis() {
			f.process = d.upTo(len(p.processes))
		}
		switch f.kind {
		case evict:
			f.field = []string{":owner", ":fence", ":queue", ":alive", ":ended"}[d.upTo(5)]
		case refuse:
			f.field = []string{"LOADING Redis is loading the dataset in memory", "READONLY You can't write against a read only replica.", "BUSY Redis is busy running a script."}[d.upTo(3)]
		case hang:
			f.lasts /= 2
		}
		p.faults = append(p.faults, f)
	}
	for o := range p.odds {
		if o > 0 && d.is(0.3) {
			p.odds[o] = []float64{0.01, 0.04, 0.15}[d.upTo(3)]
		}
	}
	return p
}

// String says what is different from a run in which nothing goes wrong.
func (p plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "ttl %v, %d resources, work until %v", p.ttl, p.resources, p.until)
	if p.passive {
		b.WriteString(", no renewals")
	}
	if p.speed != 1 {
		fmt.Fprintf(&b, ", Redis's clock runs %.3f times as fast", p.speed)
	}
	for n, one := range p.processes {
		if one.workers > 0 {
			fmt.Fprintf(&b, "\n  %c: %d workers from %v", 'A'+n, one.workers, one.starts)
			if one.dies > 0 {
				fmt.Fprintf(&b, ", dies at %v, and Redis learns of it: %v", one.dies, !one.silent)
			}
		}
	}
	for _, f := range p.faults {
		fmt.Fprintf(&b, "\n  at %v: %v", f.at, f)
	}
	for o, odds := range p.odds {
		if odds > 0 {
			fmt.Fprintf(&b, "\n  %v of a hundred messages: %v", 100*odds, odd(o))
		}
	}
	return b.String()
}

// smaller are the plans with one thing less, the most promising first. The promise was broken at
// that time.
func (p plan) smaller(broken time.Duration) []plan {
	var all []plan
	change := func(is bool, do func(q *plan)) {
		if is {
			q := p
			q.processes, q.faults = slices.Clone(p.processes), slices.Clone(p.faults)
			do(&q)
			all = append(all, q)
		}
	}
	for n := range p.faults {
		change(true, func(q *plan) { q.faults = slices.Delete(q.faults, n, n+1) })
	}
	for o := range p.odds {
		change(p.odds[o] > 0, func(q *plan) { q.odds[o] = 0 })
	}
	for n, one := range p.processes {
		change(one.workers > 0, func(q *plan) { q.processes[n].workers = 0 })
		change(one.workers > 1, func(q *plan) { q.processes[n].workers = 1 })
		change(one.dies > 0, func(q *plan) { q.processes[n].dies = 0 })
	}
	change(broken < p.until, func(q *plan) { q.until = broken })
	change(true, func(q *plan) { q.until = p.until / 2 })
	change(p.resources > 1, func(q *plan) { q.resources = 1 })
	change(p.speed != 1, func(q *plan) { q.speed = 1 })
	change(p.retention < 24*time.Hour, func(q *plan) { q.retention = 24 * time.Hour })
	return all
}

// dice are random numbers from a seed.
type dice uint64

func newDice(seed uint64) dice { return dice(seed) }

func (d *dice) next() uint64 {
	*d += 0x9e3779b97f4a7c15
	return scramble(uint64(*d))
}

func (d *dice) upTo(n int) int    { return int(d.next() % uint64(n)) }
func (d *dice) is(p float64) bool { return float64(d.next()>>11)/(1<<53) < p }
func (d *dice) between(a, b time.Duration) time.Duration {
	if b <= a {
		return a
	}
	return a + time.Duration(d.next()%uint64(b-a))
}

func scramble(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// mix makes one number of several.
func mix(all ...uint64) uint64 {
	sum := uint64(0)
	for _, n := range all {
		sum = scramble(sum + 0x9e3779b97f4a7c15 + n)
	}
	return sum
}

func textHash(s string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s))
	return h.Sum64()
}

// Work --------------------------------------------------------------------------------------------

// worker is a goroutine of a process that acquires, works and releases, again and again.
type worker struct {
	p    *process
	name string
	d    dice
}

func newWorker(p *process, n int) *worker {
	return &worker{p: p, name: fmt.Sprintf("%s%d", p.name, n+1), d: newDice(mix(p.s.seed, 77, uint64(p.n), uint64(n)))}
}

func resourceName(n int) string { return string(rune('x' + n)) }

func (w *worker) run() {
	for {
		w.sleep(w.d.between(0, []time.Duration{20 * time.Millisecond, 500 * time.Millisecond, 2 * time.Second}[w.d.upTo(3)]))
		if w.p.dead() || w.p.s.now() > w.p.s.until {
			return
		}
		w.act()
	}
}

// sleep is time that passes in the process, which stands still while it is stopped.
func (w *worker) sleep(d time.Duration) {
	pass(w.p.ctx, d)
	w.resume()
}

// resume returns when the process is not stopped.
func (w *worker) resume() {
	now := w.p.s.now()
	if at := w.p.held(now, stop); at > now {
		pass(w.p.ctx, at-now+w.d.between(0, 100*time.Microsecond)) // no two workers at once
	}
}

func pass(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// act is one piece of work.
func (w *worker) act() {
	n := w.d.upTo(w.p.s.resources)
	switch x := w.d.upTo(100); {
	case x < 45:
		w.hold(w.acquire(n))
	case x < 65:
		for more := true; more && !w.p.dead(); more = w.d.is(0.5) {
			w.again(n)
		}
	case x < 84:
		w.hold(w.try(n))
	case x < 92:
		w.both()
	default:
		w.revoke(n)
	}
}

// acquire waits for a while.
func (w *worker) acquire(n int) *lease.Lease {
	bound := w.d.between(time.Millisecond, []time.Duration{time.Second, 3 * time.Second, 15 * time.Second}[w.d.upTo(3)])
	var opts []lease.Option
	ctx := w.p.ctx
	if w.d.is(0.3) {
		opts = append(opts, lease.WaitAtMost(bound))
		bound = max(bound, 250*time.Millisecond) // for the first answer
	} else {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, bound)
		defer cancel()
	}
	c := w.calls("Acquire", n, bound)
	c.waits = true
	l, err := w.p.issuer.Acquire(c.in(ctx), resourceName(n), opts...)
	w.returns(c, l, err)
	return l
}

// try does not wait.
func (w *worker) try(n int) *lease.Lease {
	c := w.calls("Acquire NoWait", n, w.p.s.ttl)
	l, err := w.p.issuer.Acquire(c.in(w.p.ctx), resourceName(n), lease.NoWait())
	w.returns(c, l, err)
	return l
}

// again asks for a short time. If the outcome is unknown, it asks once more, as a program does that
// wants a lease after all.
func (w *worker) again(n int) {
	most := []time.Duration{5 * time.Millisecond, 100 * time.Millisecond, 2 * time.Second}
	bound := w.d.between(time.Millisecond, most[w.d.upTo(3)])
	for range 3 {
		ctx, cancel := context.WithTimeout(w.p.ctx, bound)
		c := w.calls("Acquire again", n, bound)
		c.waits = true
		l, err := w.p.issuer.Acquire(c.in(ctx), resourceName(n))
		cancel()
		w.returns(c, l, err)
		if l != nil {
			w.hold(l)
			return
		}
		if !errors.Is(err, lease.ErrUnreachable) {
			return
		}
	}
}

// both needs several resources at once.
func (w *worker) both() {
	var names []string
	for n := range w.p.s.resources {
		names = append(names, resourceName(n))
	}
	bound := w.d.between(time.Millisecond, 4*time.Second)
	ctx, cancel := context.WithTimeout(w.p.ctx, bound)
	defer cancel()
	c := w.calls("AcquireAll", -1, bound)
	c.waits = true
	leases, err := w.p.issuer.AcquireAll(c.in(ctx), names)
	w.returns(c, nil, err)
	for _, l := range leases {
		w.p.s.judge.granted(c, l)
	}
	if err != nil {
		return
	}
	w.sleep(w.d.between(0, w.p.s.ttl))
	for _, l := range leases {
		w.write(l)
		w.release(l)
	}
}

func (w *worker) revoke(n int) {
	if !w.d.is(0.7) {
		return
	}
	c := w.calls("Revoke", n, 5*time.Second)
	r, err := w.p.issuer.Revoke(w.p.ctx, resourceName(n))
	w.returns(c, nil, err)
	if err == nil {
		w.p.s.judge.seal(r.Resource(), r.Token(), r.LeaseID())
	}
}

// hold works under a lease, and ends it.
func (w *worker) hold(l *lease.Lease) {
	if l == nil {
		return
	}
	s := w.p.s
	longest := []time.Duration{20 * time.Millisecond, s.ttl / 2, 2 * s.ttl}[w.d.upTo(3)]
	for range 1 + w.d.upTo(3) {
		w.sleep(w.d.between(0, longest))
		if w.p.dead() {
			return
		}
		switch w.d.upTo(6) {
		case 0:
			l.ValidUntil()
			w.resume()
		case 1:
			c := w.calls("Extend", -1, s.ttl)
			w.returns(c, nil, l.Extend(w.p.ctx))
		case 2:
			c := w.calls("Verify", -1, 5*time.Second)
			standing, err := l.Verify(w.p.ctx)
			w.returns(c, nil, err)
			s.note("%s: %v", w.name, standing)
		default:
			if l = w.write(l); l == nil {
				return
			}
		}
	}
	if w.d.is(0.9) {
		w.release(l) // or it forgets the lease, which is renewed until MaxHold
	}
}

// write is what a fenced transaction does. It gives the lease back that goes on, nil if none does.
func (w *worker) write(l *lease.Lease) *lease.Lease {
	s := w.p.s
	stored := s.judge.write(w.p, l)
	if stored == 0 || l.Err() != nil {
		return l
	}
	bound := w.d.between(time.Millisecond, 2*s.ttl)
	ctx, cancel := context.WithTimeout(w.p.ctx, bound)
	defer cancel()
	c := w.calls(fmt.Sprintf("Raise to %d", stored), -1, bound)
	c.resource = l.Resource()
	_, err := w.p.issuer.Raise(ctx, l.Resource(), stored)
	w.returns(c, nil, err)
	w.release(l)
	if err != nil || w.p.dead() {
		return nil
	}
	fresh := w.try(int(l.Resource()[0] - resourceName(0)[0]))
	if fresh != nil && fresh.Token() <= stored && !s.judge.lostSince(c.began) && s.now()-c.began < s.retention/2 {
		s.judge.breaks("L7", fmt.Sprintf("the last token was raised to %d, and then token %d was issued", stored, fresh.Token()))
	}
	return fresh
}

func (w *worker) release(l *lease.Lease) {
	bound := 5 * time.Second
	if w.d.is(0.5) {
		bound = w.d.between(time.Millisecond, time.Second)
	}
	ctx, cancel := context.WithTimeout(w.p.ctx, bound)
	defer cancel()
	c := w.calls(fmt.Sprintf("Release of %d", l.Token()), -1, bound)
	c.resource = l.Resource()
	w.p.s.judge.releases(l)
	err := l.Release(ctx)
	w.returns(c, nil, err)
}

// calls begins a call of the package; returns ends it.
func (w *worker) calls(what string, n int, bound time.Duration) *asked {
	s := w.p.s
	c := &asked{p: w.p, who: w.name, what: what, began: s.now(), bound: bound}
	if n >= 0 {
		c.resource = resourceName(n)
	}
	s.judge.begins(c)
	return c
}

// in is the context of the call, by which the judge knows it.
func (c *asked) in(ctx context.Context) context.Context {
	return context.WithValue(ctx, asked{}, c)
}

func (w *worker) returns(c *asked, l *lease.Lease, err error) {
	w.p.s.judge.returned(c, err)
	if l != nil {
		w.p.s.judge.granted(c, l)
	}
	w.resume()
}

// finish is what a process does when all faults are over: it acquires each resource once more, and
// closes.
func finish(p *process) {
	w := newWorker(p, 99)
	for n := range p.s.resources {
		bound := p.s.settle() // everything that was left behind has expired
		ctx, cancel := context.WithTimeout(p.ctx, bound)
		c := w.calls("Acquire at the end", n, bound)
		c.waits = true
		l, err := p.issuer.Acquire(c.in(ctx), resourceName(n))
		cancel()
		w.returns(c, l, err)
		if err != nil {
			p.s.judge.breaks("progress", fmt.Sprintf("%s cannot acquire %s at the end: %v", p.name, resourceName(n), err))
			return
		}
		w.release(l)
	}
	c := w.calls("Close", -1, p.s.ttl+10*time.Second)
	p.closing.Store(true)
	err := p.issuer.Close(p.ctx)
	w.returns(c, nil, err)
	p.s.judge.closed(p, err)
}
