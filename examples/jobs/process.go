package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
)

// process is a worker seen from outside.
type process struct {
	name   string
	cmd    *exec.Cmd
	orders io.WriteCloser
	events chan event
}

// startWorker runs this program as a worker and waits until it is ready. The worker ends with its orders, and so with
// this process, however that ends.
func startWorker(ctx context.Context, name, postgresURL, redisURL, namespace string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), workerVar+"="+name, postgresVar+"="+postgresURL, redisVar+"="+redisURL, namespaceVar+"="+namespace)
	cmd.Stderr = os.Stderr
	// A group of its own: should this process end while the worker is stopped, the kernel ends the worker.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	orders, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{name, cmd, orders, make(chan event, 16)}
	go p.listen(out)
	if _, err := p.next(ctx, "Ready"); err != nil {
		p.kill()
		return nil, err
	}
	return p, nil
}

func (p *process) listen(out io.Reader) {
	defer close(p.events)
	for events := json.NewDecoder(out); ; {
		var e event
		if events.Decode(&e) != nil {
			return
		}
		p.events <- e
	}
}

func (p *process) order(what string) error {
	_, err := fmt.Fprintln(p.orders, what)
	return err
}

// next waits for what the worker tells next, which has to be of that kind.
func (p *process) next(ctx context.Context, kind string) (event, error) {
	select {
	case e, ok := <-p.events:
		if !ok {
			return event{}, fmt.Errorf("worker %s has ended, instead of telling %s", p.name, kind)
		}
		if e.Kind != kind {
			return e, fmt.Errorf("worker %s tells %+v, instead of %s", p.name, e, kind)
		}
		return e, nil
	case <-ctx.Done():
		return event{}, fmt.Errorf("waiting for worker %s to tell %s: %w", p.name, kind, context.Cause(ctx))
	}
}

func (p *process) stop() error   { return p.cmd.Process.Signal(syscall.SIGSTOP) }
func (p *process) resume() error { return p.cmd.Process.Signal(syscall.SIGCONT) }

// kill ends the worker with SIGKILL, stopped or not, and returns when it is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // fails only if it has ended
	_ = p.orders.Close()
	for range p.events { // until the other end of the pipe is closed, which comes before Wait
	}
	_ = p.cmd.Wait()
}
