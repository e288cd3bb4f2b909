package main

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// patience is how long a person at a terminal waits without a word, unwatched how long a script or
// a person behind a pipe does, and repeated is the time between two words.
const patience, unwatched, repeated = time.Second, 5 * time.Second, 10 * time.Second

// waits tells on stderr what the command waits for, if that takes longer than patience, until it is
// called that it is over. A wait within another one is not told.
func (a *app) waits(what string, args ...any) (over func()) {
	if a.waiting {
		return func() {}
	}
	first := unwatched
	if a.watched {
		first = patience
	}
	a.waiting = true
	began, next, stop, stopped := time.Now(), time.NewTimer(first), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		defer next.Stop()
		for {
			select {
			case <-next.C:
				fmt.Fprintf(a.errOut, "fencedb: %s: waiting for %s\n", span(time.Since(began)), fmt.Sprintf(what, args...))
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

// bounded limits one exchange with the servers by --timeout. The time that a person takes to answer
// does not count.
func (a *app) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	answered := a.waits("the servers, for %s at most (--timeout)", span(a.timeout))
	return ctx, func() { answered(); cancel() }
}
