package model

import "fmt"

// sessions is how many connections there are, and resources how many fences.
const (
	sessions  = 3
	resources = 2
)

// Guard is what a transaction says of itself, and what the guard of a table makes of it. The zero
// value believes everything. A mutant is RightGuard with one rule changed.
type Guard struct {
	Leases [sessions]uint8            // of each session; two of them may have one lease
	Tokens [sessions][resources]uint8 // what it has acquired; 0: not that resource
	Turns  [sessions]uint8            // how many transactions it makes
	Before bool                       // session A has entered resource 1 before

	Transaction bool // what was entered counts in the transaction that entered it, and in no later one
	LeaseID     bool // the lease that has the fence is the one that entered
	Hash        bool // and what was entered is this resource, with this token
	Locks       bool // the guard locks the fence
	Key         bool // what was judged last counts if a guard has written it
	PutsBack    bool // who goes back to a savepoint may put back what a guard has written before it

	Forgeries uint8 // how often somebody writes a setting by hand
}

// RightGuard is that of this project. Session A has an older lease of resource 1, B and C have one
// newer lease of both resources, as AcquireAll gives it.
func RightGuard() Guard {
	return Guard{
		Leases: [sessions]uint8{1, 2, 2}, Tokens: [sessions][resources]uint8{{0, 1}, {2, 2}, {2, 2}},
		Turns: [sessions]uint8{1, 1, 1}, Before: true,
		Transaction: true, LeaseID: true, Hash: true, Locks: true, Key: true, Forgeries: 1,
	}
}

// said is what a session has in its settings.
type said struct {
	tx      uint8 // the transaction that entered
	entered uint8 // bits, one for each resource
	judged  uint8 // the resource that was judged last, plus one
	signed  bool  // with the key
}

// session is one connection. Each transaction reads and writes one resource.
type session struct {
	left    uint8 // transactions
	tx      uint8 // the number of the one that is open; 0: none
	about   uint8 // the resource
	lock    [resources]uint8
	said    said
	former  said  // as it was before the transaction went back to a savepoint
	entered uint8 // bits: what the transaction has entered at any time
	read    bool  // while it had the fence
	changed bool  // another lease has committed since
	wrote   bool
}

// GuardState is the ledger, the rows and the sessions.
type GuardState struct {
	token, lease       [resources]uint8 // the ledger
	topToken, topLease [resources]uint8 // of what has committed
	s                  [sessions]session
	forgeries          uint8
}

func (g Guard) start() GuardState {
	s := GuardState{forgeries: g.Forgeries}
	if g.Before {
		s.token[1], s.lease[1] = g.Tokens[0][1], g.Leases[0]
	}
	for i := range s.s {
		s.s[i].left = g.Turns[i]
	}
	return s
}

func (Guard) done(s GuardState) bool {
	for _, p := range s.s {
		if p.tx > 0 || p.left > 0 {
			return false
		}
	}
	return true
}

func (g Guard) moves(s GuardState, yield func(Move[GuardState])) {
	for i := range s.s {
		m := connection{g, s, i, yield}
		m.move()
	}
}

// connection yields the moves of one session.
type connection struct {
	Guard
	s     GuardState
	i     int
	yield func(Move[GuardState])
}

func (m *connection) emit(name, text string, fault bool, change func(*GuardState, *session) (broken string)) {
	n := m.s
	broken := change(&n, &n.s[m.i])
	m.yield(Move[GuardState]{Name: name, Who: m.i, Text: text, Fault: fault, Broken: broken, Next: n})
}

func (m *connection) move() {
	p := m.s.s[m.i]
	if p.tx == 0 {
		for r := range resources {
			if p.left > 0 && m.Tokens[m.i][r] > 0 {
				m.emit("open", fmt.Sprintf("begins a transaction about resource %d", r), false, func(_ *GuardState, q *session) string {
					*q = session{left: q.left - 1, tx: q.left, about: uint8(r), said: q.said}
					return ""
				})
			}
		}
		return
	}
	m.emit("roll back", "rolls back", false, func(_ *GuardState, q *session) string {
		*q = session{left: q.left}
		return ""
	})
	if p.wrote {
		m.commit(p)
		return
	}
	for r := range resources {
		m.enter(p, r)
	}
	if about := int(p.about); !p.read && p.lock[about] != none {
		m.emit("look at", fmt.Sprintf("reads resource %d", about), false, func(_ *GuardState, q *session) string {
			q.read = true
			return ""
		})
	}
	m.write(p)
	m.settings(p)
}

func bit(r int) uint8 { return 1 << r }

// free says whether no other transaction has a lock that is in the way.
func (m *connection) free(r int, wanted uint8) bool {
	for i, other := range m.s.s {
		if i != m.i && (other.lock[r] == exclusive || other.lock[r] == shared && wanted == exclusive) {
			return false
		}
	}
	return true
}

func (m *connection) enter(p session, r int) {
	token := m.Tokens[m.i][r]
	lock := exclusive
	if token == m.s.token[r] {
		lock = shared
	}
	if token == 0 || p.lock[r] != none || !m.free(r, lock) ||
		token < m.s.token[r] || lock == shared && m.Leases[m.i] != m.s.lease[r] { // stale: it rolls back
		return
	}
	m.emit("pass", fmt.Sprintf("enters resource %d with token %d", r, token), false, func(_ *GuardState, q *session) string {
		if q.said.tx != q.tx {
			q.said = said{tx: q.tx}
		}
		q.lock[r] = lock
		q.said.entered, q.said.judged = q.said.entered|bit(r), 0
		q.entered |= bit(r)
		return ""
	})
}

// settings is what a session can do to what it says. Somebody who may run any statement can write
// the settings, but not read the key.
func (m *connection) settings(p session) {
	if p.said.tx == p.tx && p.former == (said{}) {
		m.emit("go back", "goes back to a savepoint, which takes locks and settings", false, func(_ *GuardState, q *session) string {
			q.former, q.said, q.lock, q.read, q.changed = q.said, said{}, [resources]uint8{}, false, false
			if !m.PutsBack {
				q.former.judged, q.former.signed = 0, false
			}
			return ""
		})
	}
	if m.s.forgeries == 0 {
		return
	}
	forged := func(name, text string, change func(*session)) {
		m.emit(name, text, true, func(n *GuardState, q *session) string {
			n.forgeries--
			change(q)
			return ""
		})
	}
	if p.former.entered > 0 && p.said == (said{}) {
		forged("put back", "puts the settings back by hand", func(q *session) { q.said = q.former })
	}
	if p.said.entered > 0 && p.left > 0 {
		m.emit("keep", "makes the settings those of its session, and commits", true, func(n *GuardState, q *session) string {
			n.forgeries--
			m.end(n, q)
			q.said = p.said
			return ""
		})
	}
	if p.said.judged != p.about+1 {
		forged("sign", fmt.Sprintf("writes by hand that resource %d was judged last", p.about), func(q *session) {
			q.said.judged, q.said.signed = q.about+1, false
		})
	}
}

// judged says whether the row is of the resource that was judged last.
func (m *connection) judged(p session) bool {
	return p.said.judged == p.about+1 && (p.said.signed && p.said.tx == p.tx || !m.Key)
}

// admits is the guard: of statements first, and then of rows.
func (m *connection) admits(p session) bool {
	if p.said.entered == 0 || m.Transaction && p.said.tx != p.tx {
		return false
	}
	if m.judged(p) {
		return true
	}
	about := int(p.about)
	token, lease := m.s.token[about], m.s.lease[about]
	if p.lock[about] == exclusive { // it sees what it has written itself
		token, lease = m.Tokens[m.i][about], m.Leases[m.i]
	}
	return (!m.LeaseID || lease == m.Leases[m.i]) && (!m.Locks || m.free(about, shared)) &&
		(!m.Hash || p.said.entered&bit(about) > 0 && token == m.Tokens[m.i][about])
}

func (m *connection) write(p session) {
	if !m.admits(p) {
		return // refused: it rolls back
	}
	m.emit("admit", fmt.Sprintf("writes resource %d", p.about), false, func(_ *GuardState, q *session) string {
		if m.Locks && !m.judged(p) && q.lock[q.about] == none {
			q.lock[q.about] = shared
		}
		if !m.judged(p) {
			q.said.judged, q.said.signed = q.about+1, true
		}
		q.wrote = true
		return ""
	})
	if !m.judged(p) {
		m.emit("judge", fmt.Sprintf("writes resource %d, and writes on", p.about), false, func(_ *GuardState, q *session) string {
			if m.Locks && q.lock[q.about] == none {
				q.lock[q.about] = shared
			}
			q.said.judged, q.said.signed = q.about+1, true
			return ""
		})
	}
}

// commit is where the promises are judged.
func (m *connection) commit(p session) {
	about := int(p.about)
	token, lease := m.Tokens[m.i][about], m.Leases[m.i]
	m.emit("end", fmt.Sprintf("commits with token %d", token), false, func(n *GuardState, q *session) (broken string) {
		switch {
		case token < n.topToken[about]:
			broken = fmt.Sprintf("S2: token %d commits after %d", token, n.topToken[about])
		case token == n.topToken[about] && lease != n.topLease[about]:
			broken = fmt.Sprintf("S1: two leases commit with token %d", token)
		case p.read && p.changed:
			broken = "S3: another lease has written over what it has read"
		case p.entered&bit(about) == 0:
			broken = fmt.Sprintf("S4: it writes resource %d, and has not entered it", about)
		}
		n.topToken[about], n.topLease[about] = max(token, n.topToken[about]), lease
		for i := range n.s {
			if o := &n.s[i]; o.read && int(o.about) == about && m.Leases[i] != lease {
				o.changed = true
			}
		}
		m.end(n, q)
		return broken
	})
}

// end is COMMIT: the fences that were advanced are so for everybody.
func (m *connection) end(n *GuardState, q *session) {
	for r := range resources {
		if q.lock[r] == exclusive {
			n.token[r], n.lease[r] = m.Tokens[m.i][r], m.Leases[m.i]
		}
	}
	*q = session{left: q.left}
}

// Search is as of the other models.
func (g Guard) Search(promises ...string) Found[GuardState] {
	w, found := visit(g, promises...)
	if found.Broken == "" {
		found.Steps, found.Stuck = w.possible()
	}
	return found
}
