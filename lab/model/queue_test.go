package model

import "fmt"

// Times, in ticks. Their order is that of common.lua, their ratios are not.
const (
	fresh    = 1 // how long after its request a waiter may take until it listens
	answer   = 1 // how long a waiter that was called keeps its right of way
	patience = 3 // a waiter asks again at least this often
	grace    = 1 // how late it may be with that before it counts as dead
	ttl      = 4
	forever  = patience + grace + ttl // nothing lasts longer
)

// How many there are at most.
const (
	mostClients   = 3
	mostResources = 2
)

// Queue is how waiters wait: their queue in Redis, calls, news and withdrawal. RightQueue is
// the queue of this project. A mutant is RightQueue with one rule changed.
type Queue struct {
	Clients   int
	Calls     int // of each client, one after the other
	Resources int // each call takes all of them, one after the other

	NewIDs        bool // each call has a lease id of its own; otherwise each client uses one again and again
	SameOrder     bool // all clients take the resources in the same order
	KeepsTurns    bool // what is free goes to the first of the queue, not to whoever asks
	SkipsDead     bool // a waiter that is dead, or does not listen, is skipped
	Lapses        bool // a waiter that does not come when it is called loses its right of way
	Floor         bool // a token is at least Redis's clock; otherwise the last one plus one
	FromRequest   bool // trust in a lease counts from the request, not from when the answer arrives
	AsksAgain     bool // a waiter asks again after a while, whatever it hears
	TokenInEnd    bool // a release names the token
	CallInEnd     bool // a withdrawal names the call
	AwaitsRelease bool // a client uses its lease id again when its release is answered, not before

	Stops, Cuts, News, Losses, GivesUp, Slow uint8 // how often each fault may happen
}

// RightQueue is the queue, with two clients and one resource.
func RightQueue() Queue {
	return Queue{
		Clients: 2, Calls: 1, Resources: 1,
		NewIDs: true, SameOrder: true, KeepsTurns: true, SkipsDead: true,
		Lapses: true, Floor: true, FromRequest: true, AsksAgain: true,
		TokenInEnd: true, CallInEnd: true, AwaitsRelease: true,
	}
}

// What a request asks for.
const (
	nothing uint8 = iota
	ask
	withdrawal
	release
)

// request is on its way to Redis.
type request struct {
	kind, resource, call uint8
	token                uint8 // of a release
}

// reply is the answer to an ask.
type reply struct {
	there bool
	token uint8 // 0: refused
	wait  uint8 // then: ask again after that time
}

// news is what has come for a waiter since it last looked.
type news struct {
	ask  bool  // now
	look uint8 // ask after that time
}

// entry is a waiter in the queue.
type entry struct {
	who    uint8 // a client plus one
	call   uint8
	asked  uint8 // how long ago it has asked
	till   uint8 // for how long it counts as alive
	called bool  // since it has asked
	turn   uint8 // for how long it has right of way then
}

// record is what Redis has of one resource.
type record struct {
	owner, id, calls uint8 // a client plus one, its lease id, and the calls that have asked for it, as bits
	token, left      uint8
	last             uint8
	queue            [mostClients + 1]entry
}

// What a client is about to do.
const (
	away   uint8 = iota // it may call
	asks                // its request is on its way, or the answer
	waits               // it was refused
	holds               // everything
	leaves              // it withdraws, or releases
)

// client is a process with one call after the other.
type client struct {
	at      uint8
	left    uint8 // calls that it may still make
	call    uint8 // the number of this one, from 1
	step    uint8 // how many resources it has
	stopped bool

	out   request // at asks and leaves: not carried out yet
	late  request // cut off, or a copy: it arrives at any time, or never
	reply reply
	sent  uint8 // how long ago its latest request was sent

	timer uint8 // until it asks again
	hears [mostResources]bool
	news  news

	token, trust [mostResources]uint8 // of what it has, and for how long it trusts that
	back         uint8                // resources that it still has to release, as bits
}

// QueueState is everything: Redis, the clients, and what may still go wrong.
type QueueState struct {
	r      [mostResources]record
	p      [mostClients]client
	issued uint8 // the highest token
	lost   uint8 // the same when Redis lost its data: what was granted before, nobody can know
	shaken bool  // a fault has happened

	stops, cuts, news, losses, givesUp, slow uint8
}

func (q Queue) start() QueueState {
	s := QueueState{stops: q.Stops, cuts: q.Cuts, news: q.News, losses: q.Losses, givesUp: q.GivesUp, slow: q.Slow}
	for i := range q.Clients {
		s.p[i].left = uint8(q.Calls)
	}
	return s
}

// done says that no process that runs wants anything. Who is stopped is a case of its own when it
// goes on.
func (q Queue) done(s QueueState) bool {
	for i := range q.Clients {
		if p := &s.p[i]; p.at != away && !p.stopped {
			return false
		}
	}
	return true
}

// id is the lease id of a call.
func (q Queue) id(call uint8) uint8 {
	if q.NewIDs {
		return call
	}
	return 1
}

// resource is what the client takes at that step.
func (q Queue) resource(i int, step uint8) uint8 {
	if !q.SameOrder && i%2 == 1 {
		return uint8(q.Resources) - 1 - step
	}
	return step
}

// of names a resource, if there are several.
func (q Queue) of(r uint8) string {
	if q.Resources == 1 {
		return ""
	}
	return fmt.Sprintf(" for the resource %c", 'X'+r)
}

func ticks(n uint8) string {
	if n == 1 {
		return "1 tick"
	}
	return fmt.Sprintf("%d ticks", n)
}

// QueueMove is what can happen next.
type QueueMove = Move[QueueState]

// moves calls yield with everything that can happen in s.
func (q Queue) moves(s QueueState, yield func(QueueMove)) {
	q.tick(s, yield)
	if s.losses > 0 {
		n := s
		n.losses--
		n.r, n.lost, n.shaken = [mostResources]record{}, s.issued, true
		yield(QueueMove{Name: "lose", Who: -1, Text: "Redis loses its data", Fault: true, Next: n})
		n = s
		n.losses--
		n.r[0].last, n.shaken = 0, true
		yield(QueueMove{Name: "evict", Who: -1, Text: "Redis loses the last token, and nothing else", Fault: true, Next: n})
	}
	for i := range q.Clients {
		v := queueMover{Queue: q, s: s, i: i, yield: yield}
		v.faults()
		v.move()
	}
}

// tick is time that passes. What is due comes before: a message takes less than a tick, unless it
// is slow, which is a fault.
func (q Queue) tick(s QueueState, yield func(QueueMove)) {
	n := s
	m := QueueMove{Name: "time passes", Who: -1, Text: "time passes", Time: 1}
	for i := range q.Clients {
		if q.due(s, i) {
			m.Fault = true
		}
		if p := &s.p[i]; p.at == holds && !p.stopped {
			m.Time = 0 // somebody works
		}
		n.p[i].tick()
	}
	if m.Fault {
		if s.slow == 0 {
			return
		}
		n.slow--
		n.shaken = true
		m.Text = "time passes, and what is due is late"
	}
	for r := range n.r {
		n.r[r].tick()
	}
	if n != s {
		m.Broken, m.Next = q.judge(n), n
		yield(m)
	}
}

func (p *client) tick() {
	for r := range p.trust {
		p.trust[r] = less(p.trust[r])
	}
	switch p.at {
	case asks:
		p.sent = min(p.sent+1, forever)
	case waits:
		p.timer = less(p.timer)
	}
}

func (r *record) tick() {
	if r.left = less(r.left); r.left == 0 {
		r.owner, r.id, r.calls, r.token = 0, 0, 0, 0
	}
	for n := range r.queue {
		if e := &r.queue[n]; e.who > 0 {
			e.till, e.turn = less(e.till), less(e.turn)
			e.asked = min(e.asked+1, forever)
		}
	}
}

func less(n uint8) uint8 { return n - min(n, 1) }

// due says whether something happens to the client in no time.
func (q Queue) due(s QueueState, i int) bool {
	p := &s.p[i]
	if p.out.kind != nothing {
		return true
	}
	if p.stopped {
		return false
	}
	for step := range p.step {
		if p.trust[q.resource(i, step)] == 1 && p.at != leaves {
			return true // renew, or release
		}
	}
	switch p.at {
	case asks:
		return p.reply.there
	case waits:
		return p.news != news{} || q.AsksAgain && p.timer == 0 || !p.hears[q.resource(i, p.step)]
	case holds:
		return p.over(q, i)
	}
	return false
}

// over says whether the trust in something that it has is over.
func (p *client) over(q Queue, i int) bool {
	for step := range p.step {
		if p.trust[q.resource(i, step)] == 0 {
			return true
		}
	}
	return false
}

// judge is L1 and L5: whoever trusts a lease has it in Redis.
func (q Queue) judge(s QueueState) (broken string) {
	for i := range q.Clients {
		p := &s.p[i]
		for step := range p.step {
			r := q.resource(i, step)
			if p.at == leaves || p.trust[r] == 0 || p.token[r] <= s.lost {
				continue
			}
			if has := &s.r[r]; has.owner == 0 {
				return fmt.Sprintf("L5: %c trusts its lease with token %d, and in Redis nobody has it", 'A'+i, p.token[r])
			} else if int(has.owner) != i+1 || has.token != p.token[r] {
				return fmt.Sprintf("L5: %c trusts its lease with token %d, and in Redis %c has it with token %d", 'A'+i, p.token[r], 'A'+has.owner-1, has.token)
			}
		}
	}
	return ""
}

// queueMover yields the moves of one client.
type queueMover struct {
	Queue
	s     QueueState
	i     int
	yield func(QueueMove)
}

// to yields a move of the client. change answers what it breaks.
func (v *queueMover) to(name, text string, change func(*QueueState, *client) (broken string)) {
	n := v.s
	broken := change(&n, &n.p[v.i])
	v.yield(QueueMove{Name: name, Who: v.i, Text: text, Broken: or(broken, v.judge(n)), Next: n})
}

// fault yields one that need not happen.
func (v *queueMover) fault(name, text string, change func(*QueueState, *client) (broken string)) {
	n := v.s
	n.shaken = true
	broken := change(&n, &n.p[v.i])
	v.yield(QueueMove{Name: name, Who: v.i, Text: text, Fault: true, Broken: or(broken, v.judge(n)), Next: n})
}

func (v *queueMover) faults() {
	p := v.s.p[v.i]
	if v.s.stops > 0 && p.at != away && !p.stopped {
		v.fault("stop", "is stopped, and its connection seems to stand", func(n *QueueState, p *client) string {
			n.stops--
			p.stopped = true
			return ""
		})
		v.fault("break off", "is stopped, and its connection has broken", func(n *QueueState, p *client) string {
			n.stops--
			p.stopped = true
			p.hears, p.news = [mostResources]bool{}, news{}
			return ""
		})
	}
	if p.stopped {
		v.fault("go on", "goes on", func(_ *QueueState, p *client) string {
			p.stopped = false
			return ""
		})
	}
	if v.s.news > 0 && p.news != (news{}) {
		v.fault("news are lost", "does not get its news, which are lost", func(n *QueueState, p *client) string {
			n.news--
			p.news = news{}
			return ""
		})
	}
	v.network(p)
	if v.s.givesUp > 0 && !p.stopped && (p.at == asks || p.at == waits) {
		v.fault("give up", "gives up, and sends its withdrawal", func(n *QueueState, p *client) string {
			n.givesUp--
			if p.out.kind == ask {
				p.late = p.out // it may arrive after the withdrawal
			}
			v.leave(p, request{kind: withdrawal, resource: v.resource(v.i, p.step), call: p.call})
			return ""
		})
	}
}

// network is what happens to requests.
func (v *queueMover) network(p client) {
	if p.late.kind != nothing {
		v.fault("late request", "its old "+p.late.text()+" arrives late", func(n *QueueState, p *client) string {
			late := p.late
			p.late = request{}
			broken, _ := v.carryOut(n, late)
			return broken
		})
	}
	if v.s.cuts == 0 {
		return
	}
	if p.out.kind == withdrawal && p.late.kind == nothing && p.back == 0 {
		v.fault("behind", "gives its call an end, while its withdrawal goes on behind", func(n *QueueState, p *client) string {
			n.cuts--
			p.late = p.out
			v.next(p)
			return ""
		})
	}
	if p.out.kind != nothing && p.late.kind == nothing {
		v.fault("copy", "its "+p.out.text()+" is repeated by the network, and the copy stays on its way", func(n *QueueState, p *client) string {
			n.cuts--
			p.late = p.out
			return ""
		})
	}
	if p.at != asks || p.stopped || p.out.kind != nothing && p.late.kind != nothing {
		return
	}
	text := "its connection breaks before the answer comes, and it asks again"
	if p.out.kind != nothing {
		text = "its connection breaks while a request is on its way, and it asks again"
	}
	v.fault("cut", text, func(n *QueueState, p *client) string {
		n.cuts--
		if p.out.kind != nothing {
			p.late = p.out
		}
		v.ask(p)
		return ""
	})
}

func (m request) text() string {
	switch m.kind {
	case ask:
		return "request"
	case withdrawal:
		return "withdrawal"
	}
	return fmt.Sprintf("release of token %d", m.token)
}

// ask sends the next request.
func (v *queueMover) ask(p *client) {
	p.at, p.sent, p.timer, p.reply = asks, 0, 0, reply{}
	p.out = request{kind: ask, resource: v.resource(v.i, p.step), call: p.call}
}

// leave gives everything back, beginning with that request.
func (v *queueMover) leave(p *client, first request) {
	p.at, p.out, p.reply, p.news = leaves, first, reply{}, news{}
	for step := range p.step {
		if r := v.resource(v.i, step); first.kind != release || r != first.resource {
			p.back |= 1 << r
		}
	}
}

func (v *queueMover) releaseOf(p *client, r uint8) request {
	return request{kind: release, resource: r, call: p.call, token: p.token[r]}
}

func (v *queueMover) move() {
	p := v.s.p[v.i]
	if p.out.kind != nothing {
		v.execute(p)
	}
	if p.stopped {
		return
	}
	for step := range p.step {
		r := v.resource(v.i, step)
		if p.at != leaves && p.at != holds && p.trust[r] == 1 {
			v.renew(r)
		}
	}
	switch p.at {
	case away:
		// The clients are alike: the first to call is A.
		if p.left > 0 && (v.i == 0 || v.s.p[v.i-1].call > 0) {
			n := v.s
			q := &n.p[v.i]
			q.left--
			q.call++
			v.ask(q)
			v.yield(QueueMove{Name: "call", Who: v.i, Text: "calls, and asks for the lease", Fault: true, Next: n})
		}
	case asks:
		if p.reply.there {
			v.answered(p)
		}
	case waits:
		v.wait(p)
	case holds:
		r := v.resource(v.i, 0)
		v.to("release", fmt.Sprintf("releases token %d", p.token[r]), func(_ *QueueState, p *client) string {
			if v.AwaitsRelease {
				v.leave(p, v.releaseOf(p, r))
			} else {
				p.late = v.releaseOf(p, r)
				v.next(p)
			}
			return ""
		})
	}
}

// renew is one request with its answer. A holder that waits for the next resource renews what it
// has.
func (v *queueMover) renew(r uint8) {
	if has := v.s.r[r]; int(has.owner) != v.i+1 || has.token != v.s.p[v.i].token[r] {
		v.to("renew", "learns from its renewal that its lease is lost", func(_ *QueueState, p *client) string {
			p.trust[r] = 0
			return ""
		})
		return
	}
	v.to("renew", fmt.Sprintf("renews token %d", v.s.r[r].token)+v.of(r), func(n *QueueState, p *client) string {
		n.r[r].left = ttl
		p.trust[r] = ttl
		return ""
	})
}

// answered takes the reply in.
func (v *queueMover) answered(p client) {
	trust := ttl - min(p.sent, ttl)
	if !v.FromRequest {
		trust = ttl
	}
	switch {
	case p.reply.token == 0:
		v.to("refused", "learns that it has to wait", func(_ *QueueState, p *client) string {
			p.at, p.timer = waits, p.reply.wait
			p.reply, p.sent = reply{}, 0
			return ""
		})
	case trust == 0:
		v.to("too late", "gets an answer that is older than its lease, and asks again", func(_ *QueueState, p *client) string {
			v.ask(p)
			return ""
		})
	default:
		v.to("granted", fmt.Sprintf("learns that it has token %d", p.reply.token)+v.of(v.resource(v.i, p.step)), func(_ *QueueState, p *client) string {
			v.hold(p, p.reply.token, trust)
			return ""
		})
	}
}

// hold takes a resource in, and goes on to the next, or gives back if it has lost an earlier one
// meanwhile.
func (v *queueMover) hold(p *client, token, trust uint8) {
	r := v.resource(v.i, p.step)
	p.token[r], p.trust[r] = token, trust
	p.step++
	p.news, p.reply, p.sent, p.timer = news{}, reply{}, 0, 0
	switch {
	case p.over(v.Queue, v.i):
		v.leave(p, v.releaseOf(p, r))
	case int(p.step) < v.Resources:
		v.ask(p)
	default:
		p.at = holds
	}
}

func (v *queueMover) wait(p client) {
	if !p.hears[v.resource(v.i, p.step)] {
		v.to("listen", "begins to listen, and asks again", func(_ *QueueState, p *client) string {
			p.hears[v.resource(v.i, p.step)] = true
			p.news = news{}
			v.ask(p)
			return ""
		})
		return
	}
	switch {
	case p.news.ask:
		v.to("ask again", "is called, and asks again", func(_ *QueueState, p *client) string {
			p.news = news{}
			v.ask(p)
			return ""
		})
	case p.news.look > 0:
		v.to("look", "hears when to look again", func(_ *QueueState, p *client) string {
			p.timer, p.news = p.news.look, news{}
			return ""
		})
	case p.timer == 0 && v.AsksAgain:
		v.to("ask again", "has heard nothing for a while, and asks again", func(_ *QueueState, p *client) string {
			v.ask(p)
			return ""
		})
	}
}

// execute is what Redis does with the request that the client waits for.
func (v *queueMover) execute(p client) {
	m := p.out
	var text string
	n := v.s
	q := &n.p[v.i]
	q.out = request{}
	broken, got := v.carryOut(&n, m)
	switch {
	case m.kind == ask && got.token > 0:
		q.reply = got
		text = fmt.Sprintf("is granted token %d", got.token) + v.of(m.resource)
	case m.kind == ask:
		q.reply = got
		text = "is refused" + v.of(m.resource) + ", and has to ask again after " + ticks(got.wait)
	default:
		text = "its " + m.text() + " is carried out"
		v.next(q)
	}
	v.yield(QueueMove{Name: m.name(), Who: v.i, Text: text, Broken: or(broken, v.judge(n)), Next: n})
}

func (m request) name() string {
	return [...]string{ask: "acquire", withdrawal: "withdraw", release: "release arrives"}[m.kind]
}

// next goes on giving back, or ends the call.
func (v *queueMover) next(p *client) {
	for r := range uint8(mostResources) {
		if p.back&(1<<r) != 0 {
			p.back &^= 1 << r
			p.out = v.releaseOf(p, r)
			return
		}
	}
	*p = client{left: p.left, call: p.call, late: p.late, hears: p.hears, stopped: p.stopped}
}
