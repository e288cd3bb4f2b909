package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"

	process "github.com/fencedb/fencedb/internal/demo/worker"
)

// workerProcess is one process of the demo, seen from outside.
type workerProcess struct {
	*process.Process[event]
	name string
}

// startWorker runs this program as a worker and waits until it is ready.
func startWorker(ctx context.Context, name, postgresURL, redisURL, namespace string) (*workerProcess, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), workerVar+"="+name, postgresVar+"="+postgresURL, redisVar+"="+redisURL, namespaceVar+"="+namespace)
	p, err := process.Spawn[event](ctx, cmd)
	if err != nil {
		return nil, err
	}
	return &workerProcess{p, name}, nil
}

// tells waits for what the worker tells next, which has to be of that kind.
func (p *workerProcess) tells(ctx context.Context, kind string) (event, error) {
	e, err := p.Next(ctx)
	switch {
	case err != nil:
		return event{}, fmt.Errorf("%s, who has to tell %s: %w", p.name, kind, err)
	case e.Kind != kind:
		return e, fmt.Errorf("%s tells %+v, instead of %s", p.name, e, kind)
	}
	return e, nil
}
