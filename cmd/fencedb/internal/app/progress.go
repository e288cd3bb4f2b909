package app

import (
	"fmt"
	"sync"
	"time"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/term"
)

// Patience is how long a person at a terminal waits without a word, unwatched how long a script or
// a person behind a pipe does, and repeated is the time between two words.
const Patience, unwatched, repeated = time.Second, 5 * time.Second, 10 * time.Second

// Waits reports on stderr what the command waits for, if that takes longer than Patience, until
// over is called. A wait within another one is not reported.
func (a *State) Waits(what func() string) (over func()) {
	if a.waiting {
		return func() {}
	}
	first := unwatched
	if a.Watched {
		first = Patience
	}
	a.waiting = true
	began, next, stop, stopped := time.Now(), time.NewTimer(first), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		defer next.Stop()
		for {
			select {
			case <-next.C:
				text := what()
				fmt.Fprintf(a.ErrOut, "fencedb: %s: waiting for %s\n", term.Span(time.Since(began)), text)
				next.Reset(repeated)
			case <-stop:
				return
			}
		}
	}()
	return sync.OnceFunc(func() {
		close(stop)
		<-stopped
		a.waiting = false
	})
}
