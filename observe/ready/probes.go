package ready

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

var (
	errLate    = errors.New("ready: no answer in time")
	errHanging = errors.New("ready: the check still hangs from before")
	errGone    = errors.New("ready: the check has ended its goroutine")
)

// probes run the checks and keep the results.
type probes struct {
	cfg  Config
	busy []chan struct{} // for each check; full while it runs

	turn chan struct{} // full while the checks run; other requests wait for the same results
	last []error       // for each check; guarded by turn
	till time.Time     // last may be used until then; guarded by turn
}

func newProbes(cfg Config) *probes {
	p := &probes{cfg: cfg, turn: make(chan struct{}, 1)}
	for range cfg.Checks {
		p.busy = append(p.busy, make(chan struct{}, 1))
	}
	return p
}

// results returns one error for each check, in order. The slice is never changed.
func (p *probes) results() []error {
	p.turn <- struct{}{}
	defer func() { <-p.turn }()
	if time.Now().Before(p.till) {
		return p.last
	}
	results := make([]error, len(p.cfg.Checks))
	var all sync.WaitGroup
	for n := range p.cfg.Checks {
		all.Go(func() { results[n] = p.run(n) })
	}
	all.Wait()
	p.last, p.till = results, time.Now().Add(p.cfg.Fresh)
	for n, err := range results {
		if err != nil && p.cfg.Failed != nil {
			p.cfg.Failed(p.cfg.Checks[n].Name, err)
		}
	}
	return results
}

// run does not wait for a check that ignores the end of its context. It does not start that check
// again until it has ended.
func (p *probes) run(n int) error {
	select {
	case p.busy[n] <- struct{}{}:
	default:
		return errHanging
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), p.cfg.Timeout, errLate)
	defer cancel()
	result := make(chan error, 1)
	go func() {
		err := errGone
		defer func() {
			if r := recover(); r != nil { // nothing else recovers it in this goroutine
				err = fmt.Errorf("ready: the check panicked: %v", r)
			}
			<-p.busy[n]
			result <- err
		}()
		err = p.cfg.Checks[n].Run(ctx)
	}()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
