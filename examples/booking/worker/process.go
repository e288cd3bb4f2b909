package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
)

// Process is a worker seen from outside. Its methods are for one goroutine at a time.
type Process struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	orders *json.Encoder
	events chan Event
}

// Start runs command, which must end up in [Serve], and waits until it is ready.
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
	if _, err := p.Next(ctx); err != nil { // Ready comes first
		p.Kill()
		return nil, fmt.Errorf("start a worker: %w", err)
	}
	return p, nil
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

// Reserve orders a reservation and does not wait for anything.
func (p *Process) Reserve(r Request) error { return p.orders.Encode(order{Reserve: &r}) }

// Go lets the request that is held go on. A worker that is stopped finds the word when it wakes.
func (p *Process) Go() error { return p.orders.Encode(order{}) }

// Next waits for what the worker tells next.
func (p *Process) Next(ctx context.Context) (Event, error) {
	select {
	case e, ok := <-p.events:
		if !ok {
			return Event{}, fmt.Errorf("worker %d has ended", p.PID())
		}
		return e, nil
	case <-ctx.Done():
		return Event{}, fmt.Errorf("waiting for worker %d: %w", p.PID(), context.Cause(ctx))
	}
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

// Kill ends the process with SIGKILL, stopped or not, and returns when it is gone.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // fails only if it has ended
	_ = p.stdin.Close()
	for range p.events { // until the other end of the pipe is closed, which comes before Wait
	}
	_ = p.cmd.Wait()
}
