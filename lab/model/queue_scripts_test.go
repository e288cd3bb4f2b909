package model

import "fmt"

// carryOut is what Redis does with a request of the client, in one step: the scripts.
func (v *queueMover) carryOut(n *QueueState, m request) (broken string, answer reply) {
	switch m.kind {
	case ask:
		return v.acquire(n, m)
	case withdrawal:
		return v.withdraw(n, m), reply{}
	}
	return v.release(n, m), reply{}
}

// acquire is acquire.lua with mode wait.
func (v *queueMover) acquire(n *QueueState, m request) (broken string, answer reply) {
	r := &n.r[m.resource]
	mine := int(r.owner) == v.i+1 && r.id == v.id(m.call)
	wait := uint8(0)
	switch {
	case r.owner > 0 && !mine:
		wait = r.left
	case r.owner == 0 && v.KeepsTurns:
		wait = v.before(n, r, m)
	}
	if wait > 0 {
		wait = min(wait, patience)
		r.enqueue(entry{who: uint8(v.i) + 1, call: m.call, till: wait + grace})
		return "", reply{there: true, wait: wait}
	}
	if mine {
		r.left = ttl
		r.calls |= 1 << m.call
	} else {
		broken = v.grant(n, m.resource, v.i, m.call, v.token(n, r))
	}
	r.leave(uint8(v.i)+1, m.call)
	return broken, reply{there: true, token: r.token}
}

// token is the next one.
func (v *queueMover) token(n *QueueState, r *record) uint8 {
	if v.Floor {
		return max(r.last, n.issued) + 1 // the clock is above all that was issued
	}
	return r.last + 1
}

// grant judges L2 and L6.
func (v *queueMover) grant(n *QueueState, resource uint8, who int, call, token uint8) (broken string) {
	r := &n.r[resource]
	if token <= n.issued && v.Resources == 1 {
		broken = fmt.Sprintf("L2: token %d is issued after %d", token, n.issued)
	}
	for _, e := range r.queue {
		if e.who == uint8(who)+1 && e.call == call {
			break
		}
		if e.who > 0 && e.till > 0 && !n.shaken {
			broken = fmt.Sprintf("L6: %c gets it, and %c has waited for longer", 'A'+who, 'A'+e.who-1)
			break
		}
	}
	r.owner, r.id, r.calls, r.token, r.left, r.last = uint8(who)+1, v.id(call), 1<<call, token, ttl, token
	n.issued = max(n.issued, token)
	return broken
}

// release is release.lua.
func (v *queueMover) release(n *QueueState, m request) (broken string) {
	r := &n.r[m.resource]
	match := int(r.owner) == v.i+1 && r.id == v.id(m.call) && (r.token == m.token || !v.TokenInEnd)
	if match && r.token != m.token {
		broken = "L4: a release of an old lease ends a newer one"
	}
	if match {
		r.free()
		v.wake(n, m.resource)
	}
	return broken
}

// withdraw is withdraw.lua.
func (v *queueMover) withdraw(n *QueueState, m request) (broken string) {
	r := &n.r[m.resource]
	if int(r.owner) == v.i+1 && r.id == v.id(m.call) {
		left := r.calls &^ (1 << m.call)
		switch {
		case left == r.calls && !v.CallInEnd:
			broken = "L4: the withdrawal of an old call ends the lease of a newer one"
			r.free()
		case left == 0 || !v.CallInEnd:
			r.free()
		default:
			r.calls = left
		}
	}
	r.leave(uint8(v.i)+1, m.call)
	if r.owner == 0 {
		v.wake(n, m.resource)
	}
	return broken
}

func (r *record) free() { r.owner, r.id, r.calls, r.token, r.left = 0, 0, 0, 0, 0 }

// enqueue puts a waiter at the end, or leaves it at its place.
func (r *record) enqueue(e entry) {
	for n := range r.queue {
		if at := &r.queue[n]; at.who == 0 || at.who == e.who && at.call == e.call {
			*at = e
			return
		}
	}
	panic("the queue is too short")
}

func (r *record) leave(who, call uint8) {
	for n, e := range r.queue {
		if e.who == who && e.call == call {
			copy(r.queue[n:], r.queue[n+1:])
			r.queue[len(r.queue)-1] = entry{}
			return
		}
	}
}

// walk visits the living waiters in order until visit stops or one is mine, takes out the dead, and
// passes over those whose turn has lapsed.
func (v *queueMover) walk(r *record, mine func(*entry) bool, visit func(e *entry) (stop bool)) {
	for n := 0; n < len(r.queue) && r.queue[n].who > 0; {
		e := &r.queue[n]
		switch {
		case mine(e):
			return
		case e.till == 0 && v.SkipsDead:
			r.leave(e.who, e.call)
			continue
		case e.called && e.turn == 0 && v.Lapses:
		default:
			if visit(e) {
				return
			}
		}
		n++
	}
}

func nobody(*entry) bool { return false }

// tell sends news. It answers whether the waiter listens. News of a call that is over are not taken
// in.
func (v *queueMover) tell(n *QueueState, e *entry, resource uint8, change func(*news)) bool {
	p := &n.p[e.who-1]
	if !p.hears[resource] {
		return false
	}
	if p.call == e.call && (p.at == asks || p.at == waits) && v.resource(int(e.who)-1, p.step) == resource {
		change(&p.news)
	}
	return true
}

// freshly is for how long a waiter that does not listen has right of way.
func (v *queueMover) freshly(e *entry) uint8 {
	if !v.SkipsDead {
		return answer
	}
	return fresh - min(e.asked, fresh)
}

// invite calls the waiter. It answers for how long that one has right of way, 0 if it has none.
func (v *queueMover) invite(n *QueueState, e *entry, resource uint8) uint8 {
	if !v.tell(n, e, resource, func(it *news) { it.ask = true }) {
		return v.freshly(e)
	}
	if !e.called || !v.Lapses {
		e.called, e.turn = true, answer
	}
	return e.turn
}

// before is for how long another waiter has right of way, 0 if it is the turn of the call.
func (v *queueMover) before(n *QueueState, r *record, m request) (wait uint8) {
	mine := func(e *entry) bool { return int(e.who) == v.i+1 && e.call == m.call }
	v.walk(r, mine, func(e *entry) (stop bool) {
		wait = v.invite(n, e, m.resource)
		return wait > 0
	})
	return wait
}

// wake calls the first waiter that listens, and tells those behind when to look.
func (v *queueMover) wake(n *QueueState, resource uint8) {
	var wait uint8
	v.walk(&n.r[resource], nobody, func(e *entry) (stop bool) {
		if wait == 0 {
			wait = v.invite(n, e, resource)
			return false
		}
		look := min(wait, less(e.till))
		v.tell(n, e, resource, func(it *news) { it.look, it.ask = look, it.ask || look == 0 })
		return false
	})
}
