package model

import (
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
)

// machine is what a search visits: S is everything that is true at one moment.
type machine[S comparable] interface {
	start() S
	moves(s S, yield func(Move[S]))
	done(s S) bool // nobody who runs wants anything
}

// Move is what can happen next.
type Move[S any] struct {
	Name   string // of the kind, as in the table of the README
	Who    int    // -1: nobody
	Text   string
	Fault  bool   // it need not happen
	Broken string // the promise that it breaks, and how
	Next   S
}

// Found is what a search has found.
type Found[S any] struct {
	States int
	Broken string    // "" if no promise is broken
	Trace  []Move[S] // to where it is broken, the shortest
	Steps  int       // how much it takes at most until all are done, without faults; -1: some never are
	Stuck  []Move[S] // then: how to get there
}

// search is the states in the order in which they were found, nearest first.
type search[S comparable] struct {
	machine[S]
	all   []S
	from  []int32
	moved [][2]int32 // moves that are no faults: from, to
}

// visit visits every state. It stops at the first broken promise whose text begins with one of the
// words; with none, at any.
func visit[S comparable](m machine[S], promises ...string) (*search[S], Found[S]) {
	w := &search[S]{machine: m}
	seen, seed := map[uint64]int32{}, maphash.MakeSeed()
	add := func(s S, parent int32) int32 {
		hash := maphash.Comparable(seed, s)
		at, known := seen[hash]
		for ; known && w.all[at] != s; at, known = seen[hash] {
			hash++ // taken by another state
		}
		if !known {
			at = int32(len(w.all))
			seen[hash] = at
			w.all, w.from = append(w.all, s), append(w.from, parent)
		}
		return at
	}
	add(m.start(), -1)
	for at := int32(0); int(at) < len(w.all); at++ {
		var broken *Move[S]
		m.moves(w.all[at], func(m Move[S]) {
			if m.Broken != "" && broken == nil && matches(m.Broken, promises) {
				broken = &m
			}
			next := add(m.Next, at)
			if !m.Fault {
				w.moved = append(w.moved, [2]int32{at, next})
			}
		})
		if broken != nil {
			return w, Found[S]{States: len(w.all), Broken: broken.Broken, Trace: append(w.trace(at), *broken)}
		}
	}
	return w, Found[S]{States: len(w.all)}
}

func matches(broken string, promises []string) bool {
	for _, p := range promises {
		if strings.HasPrefix(broken, p) {
			return true
		}
	}
	return len(promises) == 0
}

// Search visits every state, and shows that from each all can be done, in at most so many moves.
func Search[S comparable](m machine[S], promises ...string) Found[S] {
	w, found := visit(m, promises...)
	if found.Broken == "" {
		found.Steps, found.Stuck = w.possible()
	}
	return found
}

// trace is the way to a state, from the beginning.
func (w *search[S]) trace(at int32) (moves []Move[S]) {
	for ; w.from[at] >= 0; at = w.from[at] {
		var step *Move[S]
		w.moves(w.all[w.from[at]], func(m Move[S]) {
			if m.Next == w.all[at] && step == nil {
				step = &m
			}
		})
		moves = append(moves, *step)
	}
	slices.Reverse(moves)
	return moves
}

// before lists for each state the moves into it: those of state n are before[first[n]:first[n+1]].
func (w *search[S]) before() (first, before []int32) {
	first = make([]int32, len(w.all)+1)
	for _, b := range w.moved {
		first[b[1]+1]++
	}
	for i := range w.all {
		first[i+1] += first[i]
	}
	before = make([]int32, len(w.moved))
	next := slices.Clone(first)
	for _, b := range w.moved {
		before[next[b[1]]] = b[0]
		next[b[1]]++
	}
	return first, before
}

// possible goes backwards from the states in which all are done. A state that it does not reach is
// one from which work never ends, even if nothing goes wrong any more.
func (w *search[S]) possible() (steps int, stuck []Move[S]) {
	first, before := w.before()
	distance := make([]int32, len(w.all))
	var queue []int32
	for i, s := range w.all {
		distance[i] = -1
		if w.done(s) {
			distance[i] = 0
			queue = append(queue, int32(i))
		}
	}
	for ; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		steps = max(steps, int(distance[at]))
		for _, from := range before[first[at]:first[at+1]] {
			if distance[from] < 0 {
				distance[from] = distance[at] + 1
				queue = append(queue, from)
			}
		}
	}
	for i := range w.all {
		if distance[i] < 0 {
			return -1, w.trace(int32(i))
		}
	}
	return steps, nil
}

// Text is a trace for people.
func Text[S any](moves []Move[S]) string {
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
