// Package matrix plays cells: each is one call under one fault. Package writes has the cells of the
// write layer and leases those of the leases. Each judges its own by what its servers have
// afterwards; how cells are played, and when one is played again, is the same for both.
package matrix

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// Full is whether all cells are played, as make matrix does, or a sample that is always the same.
var Full = os.Getenv("FENCEDB_MATRIX") == "full"

// Cell is one call under one fault, and a subtest.
type Cell struct {
	Name string
	Play func(t *testing.T)
}

// Table plays cells beside each other. Most of their time they wait.
type Table struct {
	turns  chan struct{}
	others sync.RWMutex // a cell that is played again writes, so as to be alone
	late   atomic.Int32 // cells that were late in every attempt
}

// NewTable returns a table of which some cells are played at once.
func NewTable(atOnce int) *Table { return &Table{turns: make(chan struct{}, atOnce)} }

// Play plays the cells, and returns when all have been played.
func (b *Table) Play(t *testing.T, cells []Cell) {
	var all sync.WaitGroup
	for _, cell := range cells {
		b.turns <- struct{}{}
		all.Go(func() {
			defer func() { <-b.turns }()
			t.Run(cell.Name, cell.Play)
		})
	}
	all.Wait()
}

// Attempt is a T that keeps what a cell finds.
type Attempt struct {
	*testing.T
	mu    sync.Mutex
	found []string // under mu
	late  bool
}

// Errorf is of testing.T.
func (a *Attempt) Errorf(format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.found = append(a.found, fmt.Sprintf(format, args...))
}

// FailNow is of testing.T.
func (*Attempt) FailNow() { runtime.Goexit() }

// Late says that what is found may be the machine's fault.
func (a *Attempt) Late() { a.late = true }

// attempts are the most that a cell is played. After mostLate cells that were late in all of them,
// the first attempt counts.
const attempts, mostLate = 6, 20

// Try plays until what is found counts. An attempt that was late beside others is repeated with the
// machine to itself. It reports whether nothing was found.
func (b *Table) Try(t *testing.T, play func(*Attempt)) bool {
	t.Helper()
	turn := b.others.RLocker()
	for n := 1; ; n++ {
		a := &Attempt{T: t}
		var played sync.WaitGroup
		turn.Lock()
		played.Go(func() { play(a) })
		played.Wait()
		turn.Unlock()
		turn = &b.others
		switch {
		case len(a.found) == 0:
			return true
		case a.late && n < attempts && b.late.Load() < mostLate:
			t.Log("The machine may be at fault, so this does not count:", a.found)
			continue
		case a.late:
			b.late.Add(1)
		}
		t.Error(strings.Join(a.found, "\n"))
		return false
	}
}
