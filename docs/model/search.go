package model

import (
	"fmt"
	"strings"
)

// Found is what a search has found.
type Found struct {
	States int
	Broken string // "" if no promise is broken
	Trace  []Move // to where it is broken, the shortest
	Steps  int    // how many moves without a fault it takes at most until all processes are done; -1: some never are
	Stuck  []Move // then: how to get there
}

// Search visits every state, nearest first. It stops at the first broken promise whose text begins
// with one of the words; with none, at any.
func (r Rules) Search(promises ...string) Found {
	seen := map[State]int32{}
	var all []State
	var from []int32
	var back [][2]int32 // moves that are no faults, from the later state
	visit := func(s State, parent int32) int32 {
		if at, ok := seen[s]; ok {
			return at
		}
		at := int32(len(all))
		seen[s] = at
		all, from = append(all, s), append(from, parent)
		return at
	}
	visit(r.start(), -1)
	for at := int32(0); int(at) < len(all); at++ {
		var broken *Move
		r.moves(all[at], func(m Move) {
			if m.Broken != "" && broken == nil && matches(m.Broken, promises) {
				broken = &m
			}
			next := visit(m.Next, at)
			if !m.Fault {
				back = append(back, [2]int32{next, at})
			}
		})
		if broken != nil {
			return Found{States: len(all), Broken: broken.Broken, Trace: append(r.trace(all, from, at), *broken)}
		}
	}
	f := Found{States: len(all)}
	f.Steps, f.Stuck = r.progress(all, from, back)
	return f
}

func matches(broken string, promises []string) bool {
	for _, p := range promises {
		if strings.HasPrefix(broken, p) {
			return true
		}
	}
	return len(promises) == 0
}

// trace is the way to a state, from the beginning.
func (r Rules) trace(all []State, from []int32, at int32) (moves []Move) {
	for ; from[at] >= 0; at = from[at] {
		var step *Move
		r.moves(all[from[at]], func(m Move) {
			if m.Next == all[at] && step == nil {
				step = &m
			}
		})
		moves = append([]Move{*step}, moves...)
	}
	return moves
}

// progress goes backwards from the states in which every process is done, by moves that are no
// faults. A state that it does not reach is one from which work never ends, even if nothing goes
// wrong any more.
func (r Rules) progress(all []State, from []int32, back [][2]int32) (steps int, stuck []Move) {
	first := make([]int32, len(all)+1) // where the moves into a state begin in before
	for _, b := range back {
		first[b[0]+1]++
	}
	for i := range all {
		first[i+1] += first[i]
	}
	before, next := make([]int32, len(back)), append([]int32(nil), first...)
	for _, b := range back {
		before[next[b[0]]] = b[1]
		next[b[0]]++
	}
	distance := make([]int32, len(all))
	var queue []int32
	for i, s := range all {
		distance[i] = -1
		if s.done() {
			distance[i] = 0
			queue = append(queue, int32(i))
		}
	}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		steps = max(steps, int(distance[at]))
		for _, b := range before[first[at]:first[at+1]] {
			if distance[b] < 0 {
				distance[b] = distance[at] + 1
				queue = append(queue, b)
			}
		}
	}
	for i := range all {
		if distance[i] < 0 {
			return -1, r.trace(all, from, int32(i))
		}
	}
	return steps, nil
}

// done says that no process has anything to do any more.
func (s State) done() bool {
	for _, p := range s.p {
		if p.at != dead && (p.at != idle || p.left > 0) {
			return false
		}
	}
	return true
}

// Text is a trace for people.
func Text(moves []Move) string {
	var out strings.Builder
	for n, m := range moves {
		text := m.Text
		if m.Who >= 0 {
			who := string(rune('A' + m.Who))
			if rest, its := strings.CutPrefix(text, "its "); its {
				text = who + "'s " + rest
			} else {
				text = who + " " + text
			}
		}
		fmt.Fprintf(&out, "%2d. %s\n", n+1, text)
	}
	if last := moves[len(moves)-1].Broken; last != "" {
		fmt.Fprintf(&out, "    %s\n", last)
	}
	return out.String()
}
