package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
)

// Process is a worker seen from outside. Its methods may be called by several goroutines.
type Process struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	events chan Event

	mu     sync.Mutex
	orders *json.Encoder // guarded by mu
}

// Start runs command, which must end up in [Serve], and waits until it is ready. Events must be read from then on.
//
// The worker ends with this process, however that ends: its stdin ends then. Should it be stopped at that moment and
// not able to notice, the kernel ends it: it is in a process group of its own, which is then an orphan with a stopped
// member, and gets SIGHUP and SIGCONT. The group also keeps Ctrl-C in a terminal away from it.
func Start(ctx context.Context, command *exec.Cmd) (*Process, error) {
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Stderr = os.Stderr
	stdin, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, err
	}
	p := &Process{cmd: command, stdin: stdin, orders: json.NewEncoder(stdin), events: make(chan Event, 16)}
	go p.listen(stdout)
	if err := p.awaitReady(ctx); err != nil {
		p.Kill()
		return nil, fmt.Errorf("start a worker: %w", err)
	}
	return p, nil
}

func (p *Process) awaitReady(ctx context.Context) error {
	select {
	case _, ok := <-p.events: // Ready comes first
		if !ok {
			return fmt.Errorf("process %d has ended", p.PID())
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p *Process) listen(stdout io.Reader) {
	defer close(p.events)
	for events := json.NewDecoder(stdout); ; {
		var e Event
		if events.Decode(&e) != nil {
			return
		}
		p.events <- e
	}
}

// PID is the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Events is closed when the worker has ended.
func (p *Process) Events() <-chan Event { return p.events }

// Reserve orders a reservation and does not wait for anything.
func (p *Process) Reserve(r Reservation) error { return p.order(order{Reserve: &r}) }

// Go lets the write that is held go on. A worker that is stopped finds the word when it wakes.
func (p *Process) Go() error { return p.order(order{}) }

func (p *Process) order(o order) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.orders.Encode(o)
}

// Stop freezes the process with SIGSTOP and returns when all of it stands still.
func (p *Process) Stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for {
		var status syscall.WaitStatus
		_, err := syscall.Wait4(p.PID(), &status, syscall.WUNTRACED, nil)
		switch {
		case err == syscall.EINTR:
			continue
		case err != nil:
			return fmt.Errorf("stop worker %d: %w", p.PID(), err)
		case !status.Stopped():
			return fmt.Errorf("stop worker %d: it has ended", p.PID())
		}
		return nil
	}
}

// Continue wakes a stopped process.
func (p *Process) Continue() error { return p.cmd.Process.Signal(syscall.SIGCONT) }

// Kill ends the process with SIGKILL, stopped or not, and returns when it is gone. Call it once.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // fails only if it has ended
	_ = p.stdin.Close()
	for range p.events { // until the other end of the pipe is closed, which comes before Wait
	}
	_ = p.cmd.Wait()
}
