package sale

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fencedb/fencedb/internal/demo/worker"
)

// crowdProcess is a crowd seen from outside.
type crowdProcess struct {
	*worker.Process[report]
	name  string
	told  chan report   // that a buyer is held
	ended chan struct{} // closed when it has nothing more to say

	mu   sync.Mutex
	last report // guarded by mu
}

// startWorker starts a worker and waits until it is ready.
func startWorker(ctx context.Context, s settings) (*crowdProcess, error) {
	running, err := worker.Start[report](ctx, "sale", s)
	if err != nil {
		return nil, err
	}
	p := &crowdProcess{Process: running, name: s.Name, told: make(chan report, 1), ended: make(chan struct{})}
	go p.listen()
	return p, nil
}

func (p *crowdProcess) listen() {
	defer close(p.ended)
	for r := range p.Events() {
		if r.Kind == "holding" {
			p.told <- r
			continue
		}
		p.mu.Lock()
		p.last = r
		p.mu.Unlock()
	}
}

func (p *crowdProcess) now() report {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}

// holds waits until one of its buyers is held.
func (p *crowdProcess) holds(ctx context.Context) (report, error) {
	select {
	case r := <-p.told:
		return r, nil
	case <-p.ended:
		return report{}, fmt.Errorf("worker %s has ended too early", p.name)
	case <-ctx.Done():
		return report{}, context.Cause(ctx)
	}
}

// pause stops the process when one of its buyers is about to write to some SKUs, until that
// function returns, and lets both go on.
func (p *crowdProcess) pause(ctx context.Context, until func(skus []string) error) error {
	if err := p.Order(orderHold); err != nil {
		return err
	}
	held, err := p.holds(ctx)
	if err != nil {
		return fmt.Errorf("hold a buyer of %s: %w", p.name, err)
	}
	if err := p.Stop(); err != nil {
		return err
	}
	err = until(held.SKUs)
	return errors.Join(err, p.Order(orderGo), p.Continue())
}

// end lets the buyers finish and returns what they were told in all.
func (p *crowdProcess) end(ctx context.Context) (report, error) {
	if err := p.Order(orderEnd); err != nil {
		return report{}, err
	}
	select {
	case <-p.ended:
	case <-ctx.Done():
		return report{}, fmt.Errorf("worker %s does not end: %w", p.name, context.Cause(ctx))
	}
	r := p.now()
	if r.Kind != "done" {
		return r, fmt.Errorf("worker %s has died", p.name)
	}
	return r, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
