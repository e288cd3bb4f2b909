package worker

import (
	"context"
	"os/exec"

	"github.com/fencedb/fencedb/internal/process"
)

// Process is a worker seen from outside. Its methods may be called by several goroutines.
type Process struct{ *process.Process[Event] }

// Start runs command, which must end up in [Serve], and waits until it is ready. Events must be read from then on.
func Start(ctx context.Context, command *exec.Cmd) (*Process, error) {
	p, err := process.Start[Event](ctx, command)
	if err != nil {
		return nil, err
	}
	return &Process{p}, nil
}

// Reserve orders a reservation and does not wait for anything.
func (p *Process) Reserve(r Reservation) error { return p.Order(order{Reserve: &r}) }

// Go lets the write that is held go on. A worker that is stopped finds the word when it wakes.
func (p *Process) Go() error { return p.Order(order{}) }
