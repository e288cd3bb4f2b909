package model

import "fmt"

// sessions is how many connections there are, and resources how many fences.
const (
	sessions  = 3
	resources = 2
)

// Guard is how a transaction notes what it has entered, and what the guard of a table makes of it.
// The zero value believes everything. A mutant is RightGuard with one rule changed.
type Guard struct {
	Leases [sessions]uint8            // of each session; two of them may have one lease
	Tokens [sessions][resources]uint8 // what it has acquired; 0: not that resource
	Turns  [sessions]uint8            // how many transactions it makes
	Before bool                       // session A has entered resource 1 before
	May    [sessions]bool             // whether its login may enter

	Locks       bool // enter locks the fence, and then writes the list
	Local       bool // the list goes back with a savepoint, as the lock does
	Transaction bool // the list counts in the transaction that wrote it, and in no later one
	Resource    bool // and for the resources in it
	Right       bool // whoever may not enter may not write, whatever is in the list
	Lies        bool // whoever may enter writes the list by hand as well

	Forgeries uint8 // how often somebody writes the list by hand
}

// RightGuard is that of this project. Session A has an older lease of resource 1, B a newer lease
// of both resources, as AcquireAll gives it; C may not enter.
func RightGuard() Guard {
	return Guard{
		Leases: [sessions]uint8{1, 2, 3}, Tokens: [sessions][resources]uint8{{0, 1}, {2, 2}, {}},
		May: [sessions]bool{true, true, false}, Turns: [sessions]uint8{1, 1, 1}, Before: true,
		Locks: true, Local: true, Transaction: true, Resource: true, Right: true, Forgeries: 1,
	}
}

// list is what a session has in its setting.
type list struct {
	tx      uint8 // the transaction that it is of
	entered uint8 // bits, one for each resource
}

// session is one connection. Each transaction reads and writes one resource.
type session struct {
	left    uint8 // transactions
	tx      uint8 // the number of the one that is open; 0: none
	about   uint8 // the resource
	lock    [resources]uint8
	list    list
	back    bool  // the transaction went back to a savepoint
	entered uint8 // bits: what the transaction has entered, and not given back
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
			if p.left > 0 && (m.Tokens[m.i][r] > 0 || !m.May[m.i]) {
				m.emit("open", fmt.Sprintf("begins a transaction about resource %d", r), false, func(_ *GuardState, q *session) string {
					*q = session{left: q.left - 1, tx: q.left, about: uint8(r), list: q.list}
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
	if token == 0 || p.list.tx == p.tx && p.list.entered&bit(r) > 0 || m.Locks && !m.free(r, lock) ||
		token < m.s.token[r] || lock == shared && m.Leases[m.i] != m.s.lease[r] { // stale: it rolls back
		return
	}
	m.emit("pass", fmt.Sprintf("enters resource %d with token %d", r, token), false, func(_ *GuardState, q *session) string {
		if q.list.tx != q.tx {
			q.list = list{tx: q.tx}
		}
		q.lock[r] = lock
		q.list.entered |= bit(r)
		q.entered |= bit(r)
		return ""
	})
}

// settings is what a session can do to its list. Whoever may run any statement can write it.
func (m *connection) settings(p session) {
	if p.list.tx == p.tx && !p.back {
		m.emit("go back", "goes back to a savepoint, which takes the locks, and the list", false, func(_ *GuardState, q *session) string {
			q.back, q.lock, q.entered, q.read, q.changed = true, [resources]uint8{}, 0, false, false
			if m.Local {
				q.list = list{}
			}
			return ""
		})
	}
	if m.s.forgeries == 0 {
		return
	}
	if p.list.entered > 0 && p.left > 0 {
		m.emit("keep", "makes the list that of its session, and commits", true, func(n *GuardState, q *session) string {
			n.forgeries--
			m.end(n, q)
			q.list = p.list
			return ""
		})
	}
	if (m.Lies || !m.May[m.i]) && p.list.entered&bit(int(p.about)) == 0 {
		m.emit("forge", fmt.Sprintf("writes resource %d into the list by hand", p.about), true, func(n *GuardState, q *session) string {
			n.forgeries--
			q.list = list{tx: q.tx, entered: q.list.entered | bit(int(q.about))}
			return ""
		})
	}
}

// admits is the guard of a row, which relies on no guard of statements. It does not look at the
// ledger.
func (m *connection) admits(p session) bool {
	return p.list.entered > 0 && (m.May[m.i] || !m.Right) && (p.list.tx == p.tx || !m.Transaction) &&
		(p.list.entered&bit(int(p.about)) > 0 || !m.Resource)
}

func (m *connection) write(p session) {
	if !m.admits(p) {
		return // refused: it rolls back
	}
	m.emit("admit", fmt.Sprintf("writes resource %d", p.about), false, func(_ *GuardState, q *session) string {
		q.wrote = true
		return ""
	})
}

// commit is where the promises are judged.
func (m *connection) commit(p session) {
	about := int(p.about)
	token, lease := m.Tokens[m.i][about], m.Leases[m.i]
	m.emit("end", fmt.Sprintf("commits with token %d", token), false, func(n *GuardState, q *session) (broken string) {
		switch {
		case p.entered&bit(about) == 0:
			broken = fmt.Sprintf("S4: it writes resource %d, and has not entered it", about)
		case token < n.topToken[about]:
			broken = fmt.Sprintf("S2: token %d commits after %d", token, n.topToken[about])
		case token == n.topToken[about] && lease != n.topLease[about]:
			broken = fmt.Sprintf("S1: two leases commit with token %d", token)
		case p.read && p.changed:
			broken = "S3: another lease has written over what it has read"
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
