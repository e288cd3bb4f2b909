package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// patience is how long a person at a terminal waits without a word, unwatched how long a script or
// a person behind a pipe does, and repeated is the time between two words.
const patience, unwatched, repeated = time.Second, 5 * time.Second, 10 * time.Second

// waits reports on stderr what the command waits for, if that takes longer than patience, until
// over is called. A wait within another one is not reported.
func (a *app) waits(what func() string) (over func()) {
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
				text := what()
				fmt.Fprintf(a.errOut, "fencedb: %s: waiting for %s\n", span(time.Since(began)), text)
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
// does not count. While it waits, it reports which transactions hold these fences.
func (s *servers) bounded(ctx context.Context, fences ...string) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	answered := s.waits(func() string {
		return fmt.Sprintf("the servers, for %s at most (--timeout)", span(s.timeout)) + s.inTheWay(ctx, fences)
	})
	return ctx, func() { cancel(); answered() }
}

// inTheWay names the transactions that hold these fences, as far as Postgres says so at once. The
// command's own sessions wait as well, and are not named.
func (s *servers) inTheWay(ctx context.Context, fences []string) string {
	if len(fences) == 0 || s.pool == nil || s.postgresAway != nil {
		return ""
	}
	asking, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	all, err := readTransactions(asking, s.pool, fences...)
	all = slices.DeleteFunc(all, func(t transaction) bool { return t.Application == applicationName })
	if err != nil || len(all) == 0 {
		return ""
	}
	return "; open transactions are in the way: " + named(all)
}
