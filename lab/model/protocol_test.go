// Package model is a model of the protocol of fencedb, small enough that a test visits every state
// of it. The README beside it says what is modelled, what was found, and what is left out.
package model

import "fmt"

// holders is how many processes there are at most.
const holders = 3

// Rules are the protocol. The zero value with Holders set is a protocol without any guard; Right is
// the one of this project. A mutant is Right with one rule changed.
type Rules struct {
	Holders      int  // processes, each with one lease after the other
	Acquisitions int  // of each
	Transactions int  // under each lease, one after the other
	Seals        bool // a holder is sealed before it learns that it holds
	Levels       bool // transactions may run at REPEATABLE READ too

	Fence        bool // Postgres refuses stale tokens
	EntersFirst  bool // before it reads; otherwise just before it writes
	ComparesID   bool // an equal token of another lease is stale
	Floor        bool // the token is at least Redis's clock; otherwise the last one plus one
	NewIDs       bool // each acquisition has a lease id of its own; otherwise each process uses one again and again
	TokenInEnd   bool // a release names the token, and not only the lease id
	SealsRR      bool // above READ COMMITTED, the token enters in a transaction before the one that reads
	AsksOutcome  bool // after a lost COMMIT the server is asked; otherwise the transaction is repeated
	KnowsEpoch   bool // an answer counts only if the server has run on since
	EndsLate     bool // the server ends a transaction whose lease is over
	Guards       bool // a write that has not entered is refused
	ReadsOutside bool // what is written follows from a read before the transaction
	Strict       bool // the order of holders is judged even where it is not promised

	Losses, ClockBack, Cuts, Crashes, Deaths, Forgeries uint8 // how often each fault may happen
}

// Right is the protocol, with two holders.
func Right() Rules {
	return Rules{
		Holders: 2, Acquisitions: 2, Transactions: 1,
		Fence: true, EntersFirst: true, ComparesID: true, Floor: true, NewIDs: true, TokenInEnd: true, SealsRR: true,
		AsksOutcome: true, KnowsEpoch: true, EndsLate: true, Guards: true,
	}
}

// What a process is about to do.
const (
	idle     uint8 = iota // acquire, if it may once more
	granted               // seal, if holders are sealed
	ready                 // begin
	snapped               // enter; it is above READ COMMITTED and has its snapshot
	begun                 // read; only if it enters late
	entered               // read
	read                  // write, or enter first if that is late
	written               // COMMIT
	asking                // find out what became of a COMMIT
	finished              // release
	dead
)

// holder is one process. All numbers are small.
type holder struct {
	at       uint8
	left     uint8 // acquisitions that it may still make
	todo     uint8 // transactions that it will still make under this lease
	token    uint8
	gen      uint8 // which of all holders that learnt of their lease it is, from 1
	trusts   bool  // by its own clock, the lease is not over
	unheard  uint8 // the token that Redis has granted in a reply that was lost; 0: none
	rr       bool  // the transaction is above READ COMMITTED
	lock     uint8 // on the fence: none, shared, exclusive (and the new token is written)
	snapTok  uint8 // the snapshot: the fence
	snapID   uint8
	snapData uint8
	value    uint8 // what it has read
	outside  bool  // value is from before the transaction
	applied  uint8 // how often its work has committed
	epoch    uint8 // of the server when it entered
	release  uint8 // the token in a release that is on its way; 0: none
	healed   bool  // it has acquired anew because its token was behind
}

const (
	none uint8 = iota
	shared
	exclusive
)

// State is everything: Redis, Postgres, the processes, and what may still go wrong.
type State struct {
	owner, ownerToken, last, clock uint8 // Redis; owner is a process plus one, and its lease id
	saved                          bool  // there is a snapshot of Redis
	savedOwner, savedToken         uint8
	savedLast                      uint8
	lost, back                     bool // Redis has lost data, its clock has gone back: some promises are then off
	issued                         uint8

	fence, fenceID, data, epoch uint8 // Postgres
	topToken, topID, topGen     uint8 // of what has committed
	gens                        uint8

	p [holders]holder

	losses, clockBack, cuts, crashes, deaths, forgeries uint8
}

func (r Rules) start() State {
	s := State{
		clock: 3, losses: r.Losses, clockBack: r.ClockBack, cuts: r.Cuts, crashes: r.Crashes, deaths: r.Deaths,
		forgeries: r.Forgeries,
	}
	for i := range s.p {
		if i < r.Holders {
			s.p[i].left = uint8(r.Acquisitions)
		}
	}
	return s
}

// done says that no process has anything to do any more.
func (Rules) done(s State) bool {
	for _, p := range s.p {
		if p.at != dead && (p.at != idle || p.left > 0) {
			return false
		}
	}
	return true
}

// Step is what can happen next.
type Step = Move[State]

// moves calls yield with everything that can happen in s.
func (r Rules) moves(s State, yield func(Step)) {
	r.redis(s, yield)
	r.postgres(s, yield)
	for i := range r.Holders {
		m := mover{Rules: r, s: s, i: i, yield: yield}
		m.move()
	}
}

// redis is what Redis and what happens to it does.
func (r Rules) redis(s State, yield func(Step)) {
	fault := func(name, text string, change func(*State)) {
		n := s
		change(&n)
		yield(Step{Name: name, Who: -1, Text: text, Fault: true, Next: n})
	}
	if s.owner > 0 {
		n := s
		n.owner, n.ownerToken = 0, 0
		if s.ownerToken == n.p[s.owner-1].token {
			n.p[s.owner-1].trusts = false // its clock has ended its trust before: the trust window
		}
		if s.savedOwner == s.owner && s.savedToken == s.ownerToken && !s.back {
			n.savedOwner, n.savedToken = 0, 0 // Redis saves the time at which a key expires
		}
		yield(Step{Name: "expire", Who: int(s.owner) - 1, Text: "its lease expires", Next: n})
	}
	if s.losses > 0 {
		fault("lose", "Redis loses its data", func(n *State) {
			n.losses--
			n.owner, n.ownerToken, n.last, n.lost = 0, 0, 0, true
		})
		if !s.saved {
			fault("save", "Redis saves a snapshot", func(n *State) {
				n.saved, n.savedOwner, n.savedToken, n.savedLast = true, s.owner, s.ownerToken, s.last
			})
		} else {
			fault("restore", "Redis returns to its snapshot", func(n *State) {
				n.losses--
				n.owner, n.ownerToken, n.last, n.lost = s.savedOwner, s.savedToken, s.savedLast, true
			})
		}
	}
	if s.clockBack > 0 {
		for _, to := range []uint8{s.clock - 1, 1} { // a little, and so far that old tokens come again
			fault("clock back", fmt.Sprintf("Redis's clock goes back from %d to %d", s.clock, to), func(n *State) {
				n.clockBack--
				n.clock, n.back = to, true
			})
		}
	}
}

// postgres is what happens to the server and what strangers do.
func (r Rules) postgres(s State, yield func(Step)) {
	if s.crashes > 0 {
		n := s
		n.crashes--
		n.epoch++
		for i := range n.p {
			p := &n.p[i]
			switch p.at {
			case snapped, begun, entered, read:
				p.end(finished) // its connection is gone before COMMIT: nothing was written
			case written:
				p.end(asking)
			}
		}
		yield(Step{Name: "crash", Who: -1, Text: "Postgres crashes and recovers; open transactions are gone", Fault: true, Next: n})
	}
	if s.forgeries > 0 {
		n := s
		n.forgeries--
		m := Step{Name: "forge", Who: -1, Fault: true, Text: "somebody writes without a token, and is refused"}
		if !r.Guards {
			n.data++
			m.Text, m.Broken = "somebody writes without a token", "S4: a write without a token has committed"
		}
		m.Next = n
		yield(m)
	}
}

// end ends the transaction of a process.
func (p *holder) end(at uint8) {
	p.at, p.lock, p.rr = at, none, false
	p.snapTok, p.snapID, p.snapData = 0, 0, 0
}

// mover yields the moves of one process.
type mover struct {
	Rules
	s     State
	i     int
	yield func(Step)
}

func (m *mover) emit(name, text string, change func(*State, *holder) (broken string)) {
	n := m.s
	broken := change(&n, &n.p[m.i])
	m.yield(Step{Name: name, Who: m.i, Text: text, Broken: broken, Next: n})
}

func (m *mover) fault(name, text string, change func(*State, *holder) (broken string)) {
	n := m.s
	broken := change(&n, &n.p[m.i])
	m.yield(Step{Name: name, Who: m.i, Text: text, Fault: true, Broken: broken, Next: n})
}

func (m *mover) move() {
	p := m.s.p[m.i]
	if m.s.deaths > 0 && p.at != idle && p.at != dead {
		m.fault("die", "stops for ever", func(n *State, q *holder) string {
			n.deaths--
			q.at = dead
			return ""
		})
	}
	if p.release > 0 {
		m.lateRelease(p)
	}
	if p.trusts && (int(m.s.owner) != m.i+1 || m.s.ownerToken != p.token) {
		m.emit("trust ends", "its lease is over by its own clock", func(_ *State, q *holder) string {
			q.trusts = false
			return ""
		})
	}
	if m.EndsLate && p.lock != none && !p.trusts && p.at != asking {
		m.emit("time limit", "its transaction is ended by the server: its lease is over", func(_ *State, q *holder) string {
			at := finished
			if p.at == dead {
				at = dead
			}
			q.end(at)
			return ""
		})
	}
	switch p.at {
	case idle:
		m.acquire(p)
	case granted:
		m.seal(p)
	case ready:
		m.begin(p)
	case snapped:
		m.enterSnapped(p)
	case begun, entered:
		m.read(p)
	case read:
		m.write(p)
	case written:
		m.commit(p)
	case asking:
		m.ask(p)
	case finished:
		m.emit("release", "sends a release", func(_ *State, q *holder) string {
			*q = holder{left: q.left, release: q.token}
			return ""
		})
	}
}

// lateRelease arrives at any time, or never.
func (m *mover) lateRelease(p holder) {
	m.emit("release arrives", fmt.Sprintf("its release of token %d arrives", p.release), func(n *State, q *holder) (broken string) {
		q.release = 0
		if int(n.owner) != m.i+1 || (m.TokenInEnd || m.NewIDs) && n.ownerToken != p.release {
			return ""
		}
		if n.ownerToken != p.release && q.trusts {
			broken = "L4: a release of an old lease has ended a newer one, which its holder trusts"
		}
		n.owner, n.ownerToken = 0, 0
		return broken
	})
	m.fault("release is lost", "its release is lost", func(_ *State, q *holder) string {
		q.release = 0
		return ""
	})
}

func (m *mover) acquire(p holder) {
	s := m.s
	switch {
	case p.left == 0:
		return
	case p.unheard > 0 && int(s.owner) == m.i+1 && (!m.NewIDs || s.ownerToken == p.unheard):
		m.emit("acquire again", fmt.Sprintf("asks again with its lease id, and gets the same token %d", s.ownerToken), func(n *State, q *holder) string {
			return m.hold(n, q, s.ownerToken)
		})
		return
	case s.owner != 0:
		return // refused, which changes nothing: L3
	}
	token := s.last + 1
	clock := s.clock + 1
	if m.Floor {
		token = max(token, clock)
	}
	grant := func(n *State) (broken string) {
		n.owner, n.ownerToken, n.last, n.clock = uint8(m.i)+1, token, token, clock
		if token <= s.issued && !s.back {
			broken = fmt.Sprintf("L2: token %d is issued after %d", token, s.issued)
		}
		n.issued = max(n.issued, token)
		return broken
	}
	m.emit("acquire", fmt.Sprintf("acquires the lease with token %d", token), func(n *State, q *holder) string {
		return or(grant(n), m.hold(n, q, token))
	})
	if s.cuts > 0 {
		m.fault("reply is lost", fmt.Sprintf("is granted token %d, and the reply is lost", token), func(n *State, q *holder) string {
			n.cuts--
			q.unheard = token
			return grant(n)
		})
	}
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// hold makes the process a holder; it learns of it here, or when it is sealed.
func (m *mover) hold(n *State, q *holder, token uint8) (broken string) {
	for i, other := range n.p {
		if i != m.i && other.trusts && !n.lost {
			broken = "L1: two hold at once, and both trust it"
		}
	}
	*q = holder{at: granted, left: q.left - 1, todo: uint8(m.Transactions), token: token, trusts: true,
		release: q.release, healed: q.healed}
	if !m.Seals {
		q.at = ready
		n.gens++
		q.gen = n.gens
	}
	return broken
}

// stale says whether Postgres refuses a token by what is stored.
func (m *mover) stale(token, fence, id uint8) bool {
	return m.Fence && (token < fence || token == fence && m.ComparesID && int(id) != m.i+1)
}

// free says whether no other transaction has a lock that is in the way.
func (m *mover) free(wanted uint8) bool {
	for i, other := range m.s.p {
		if i != m.i && (other.lock == exclusive || other.lock == shared && wanted == exclusive) {
			return false
		}
	}
	return true
}

// seal is a transaction of its own.
func (m *mover) seal(p holder) {
	if m.refused(p, m.s.fence, m.s.fenceID) {
		return
	}
	wanted := exclusive
	if p.token == m.s.fence {
		wanted = shared
	}
	if !m.free(wanted) {
		return
	}
	m.emit("seal", fmt.Sprintf("seals token %d", p.token), func(n *State, q *holder) string {
		n.fence, n.fenceID = p.token, uint8(m.i)+1
		q.at = ready
		if q.gen == 0 {
			n.gens++
			q.gen = n.gens
		}
		return ""
	})
}

// refused yields what becomes of a stale holder: it drops its work; if Redis still says that it
// holds, Redis has gone back, and it acquires anew.
func (m *mover) refused(p holder, fence, id uint8) bool {
	if !m.stale(p.token, fence, id) {
		return false
	}
	if int(m.s.owner) == m.i+1 && m.s.ownerToken == p.token && p.trusts && !p.healed {
		m.emit("heal", fmt.Sprintf("is refused with token %d, and still holds: Redis is raised to %d, and the lease given back", p.token, fence), func(n *State, q *holder) string {
			n.last = max(n.last, fence)
			n.owner, n.ownerToken = 0, 0
			*q = holder{left: q.left + 1, release: q.release, healed: true} // the work begins anew
			return ""
		})
		return true
	}
	m.emit("refuse", fmt.Sprintf("is refused: token %d, stored %d", p.token, fence), func(_ *State, q *holder) string {
		q.end(finished)
		return m.toldNothing(*q)
	})
	return true
}

func (m *mover) toldNothing(q holder) string {
	if q.applied > 0 {
		return "S6: it is told that nothing was written, and it was"
	}
	return ""
}

func (m *mover) begin(p holder) {
	s := m.s
	if m.ReadsOutside && !p.outside {
		m.emit("read outside", fmt.Sprintf("reads %d, before its transaction", s.data), func(_ *State, q *holder) string {
			q.value, q.outside = s.data, true
			return ""
		})
		return
	}
	if m.Levels {
		if m.SealsRR && (s.fence != p.token || int(s.fenceID) != m.i+1) {
			m.seal(p) // and then begins; below it may also begin at READ COMMITTED
		} else {
			m.emit("snapshot", "begins at REPEATABLE READ: its snapshot is as of now", func(_ *State, q *holder) string {
				q.at, q.rr = snapped, true
				q.snapTok, q.snapID, q.snapData = s.fence, s.fenceID, s.data
				return ""
			})
		}
	}
	if !m.EntersFirst {
		m.emit("begin", "begins without entering", func(_ *State, q *holder) string {
			q.at = begun
			return ""
		})
		return
	}
	m.enter(p, "begins and enters", entered)
}

// enter is the statement at READ COMMITTED: it waits, and judges what is stored then.
func (m *mover) enter(p holder, text string, then uint8) {
	s := m.s
	if !m.Fence {
		m.emit("enter", text+", without a fence", func(n *State, q *holder) string {
			q.at, q.epoch = then, n.epoch
			return ""
		})
		return
	}
	if m.refused(p, s.fence, s.fenceID) {
		return
	}
	lock := exclusive
	if p.token == s.fence {
		lock = shared
	}
	if !m.free(lock) {
		return
	}
	m.emit("enter", fmt.Sprintf("%s with token %d", text, p.token), func(n *State, q *holder) string {
		q.at, q.lock, q.epoch = then, lock, n.epoch
		return ""
	})
}

// enterSnapped is the same statement above READ COMMITTED. Postgres refuses to lock a row that was
// updated since the snapshot, with 40001, and does not mind one that was only locked.
func (m *mover) enterSnapped(p holder) {
	s := m.s
	lock := exclusive
	if p.token == p.snapTok && int(p.snapID) == m.i+1 {
		lock = shared
	}
	if m.stale(p.token, p.snapTok, p.snapID) {
		m.refused(p, p.snapTok, p.snapID)
		return
	}
	if !m.free(lock) {
		return
	}
	if s.fence != p.snapTok || s.fenceID != p.snapID || m.SealsRR && lock == exclusive {
		m.emit("conflict", "gets 40001, and begins again", func(_ *State, q *holder) string {
			q.end(ready)
			return ""
		})
		return
	}
	m.emit("enter", fmt.Sprintf("enters with token %d, by its snapshot", p.token), func(n *State, q *holder) string {
		q.at, q.lock, q.epoch = entered, lock, n.epoch
		return ""
	})
}

func (m *mover) read(p holder) {
	value := m.s.data
	switch {
	case p.outside:
		value = p.value
	case p.rr:
		value = p.snapData
	}
	text := fmt.Sprintf("reads %d", value)
	if p.outside {
		text = fmt.Sprintf("goes by the %d that it has read before", value)
	}
	m.emit("read", text, func(_ *State, q *holder) string {
		q.at, q.value = read, value
		return ""
	})
}

func (m *mover) write(p holder) {
	if !m.EntersFirst && p.lock == none && m.Fence {
		m.enter(p, "enters late", written)
		return
	}
	m.emit("write", fmt.Sprintf("writes %d", p.value+1), func(_ *State, q *holder) string {
		q.at = written
		return ""
	})
}

// commit has three ends: told, carried out but not told, and neither.
func (m *mover) commit(p holder) {
	text := fmt.Sprintf("commits %d with token %d", p.value+1, p.token)
	m.emit("commit", text, func(n *State, q *holder) string {
		broken := m.apply(n, q)
		m.next(q)
		return broken
	})
	if m.s.cuts == 0 {
		return
	}
	m.fault("answer is lost", text+", and the answer is lost", func(n *State, q *holder) string {
		n.cuts--
		broken := m.apply(n, q)
		q.end(asking)
		return broken
	})
	m.fault("commit is lost", "sends COMMIT, which is lost", func(n *State, q *holder) string {
		n.cuts--
		q.end(asking)
		return ""
	})
}

// next goes on after a transaction that has committed.
func (m *mover) next(q *holder) {
	q.todo--
	q.end(finished)
	if q.todo > 0 {
		q.at, q.applied, q.outside = ready, 0, false
	}
}

// apply is where the promises about Postgres are judged.
func (m *mover) apply(n *State, q *holder) (broken string) {
	switch {
	case q.applied > 0:
		broken = "S6: its work has committed twice"
	case q.value != n.data && m.ReadsOutside:
		broken = fmt.Sprintf("S8: what it has read under its lease was changed meanwhile, from %d to %d", q.value, n.data)
	case q.value != n.data:
		broken = fmt.Sprintf("S3: it has read %d, and writes over %d", q.value, n.data)
	case q.token < n.topToken:
		broken = fmt.Sprintf("S1, S2: token %d commits after %d", q.token, n.topToken)
	case q.token == n.topToken && int(n.topID) != m.i+1:
		broken = fmt.Sprintf("S1: two leases commit with token %d", q.token)
	case q.gen < n.topGen && (m.Strict || m.Seals || !n.back && m.NewIDs):
		broken = "order: an earlier holder commits after a later one"
	}
	q.applied++
	n.data = q.value + 1
	n.topToken, n.topID, n.topGen = max(n.topToken, q.token), uint8(m.i)+1, max(n.topGen, q.gen)
	if q.lock == exclusive {
		n.fence, n.fenceID = q.token, uint8(m.i)+1
	}
	return broken
}

func (m *mover) ask(p holder) {
	if !m.AsksOutcome {
		m.emit("repeat", "believes that nothing was sent, and begins again", func(_ *State, q *holder) string {
			q.at = ready
			return ""
		})
		return
	}
	committed := func(_ *State, q *holder) string {
		q.at = finished
		if q.applied == 0 {
			return "S6: it is told that its work has committed, and it has not"
		}
		return ""
	}
	nothing := func(_ *State, q *holder) string {
		q.at = finished
		return m.toldNothing(*q)
	}
	switch {
	case p.epoch == m.s.epoch && p.applied > 0:
		m.emit("ask", "asks, and is told: committed", committed)
	case p.epoch == m.s.epoch:
		m.emit("ask", "asks, and is told: nothing was written", nothing)
	case m.KnowsEpoch:
		m.emit("ask", "asks, and is told: unknown, for the server has crashed since", func(_ *State, q *holder) string {
			q.at = finished
			return ""
		})
	default: // the id may be that of another transaction by now
		m.emit("ask", "asks, and is told of another transaction: committed", committed)
		m.emit("ask", "asks, and is told of another transaction: nothing was written", nothing)
	}
}
