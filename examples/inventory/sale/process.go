package sale

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// process is a worker seen from outside.
type process struct {
	name   string
	cmd    *exec.Cmd
	orders io.WriteCloser
	told   chan report   // ready and holding
	ended  chan struct{} // closed when it has nothing more to say

	mu   sync.Mutex
	last report // guarded by mu
}

// startWorker runs this very program as a worker and waits until it is ready. The worker ends with its orders, and so with
// this process, however that ends.
func startWorker(ctx context.Context, s settings) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	told, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), WorkerVar+"="+string(told))
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
	p := &process{name: s.Name, cmd: cmd, orders: orders,
		told: make(chan report, 1), ended: make(chan struct{})}
	go p.listen(out)
	if _, err := p.next(ctx); err != nil {
		p.kill()
		return nil, err
	}
	return p, nil
}

func (p *process) listen(out io.Reader) {
	defer close(p.ended)
	for reports := json.NewDecoder(out); ; {
		var r report
		if reports.Decode(&r) != nil {
			return
		}
		switch r.Kind {
		case "ready", "holding":
			p.told <- r
		default:
			p.mu.Lock()
			p.last = r
			p.mu.Unlock()
		}
	}
}

func (p *process) now() report {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}

// next waits for what the worker tells apart from its tally.
func (p *process) next(ctx context.Context) (report, error) {
	select {
	case r := <-p.told:
		return r, nil
	case <-p.ended:
		return report{}, fmt.Errorf("worker %s has ended too early", p.name)
	case <-ctx.Done():
		return report{}, context.Cause(ctx)
	}
}

func (p *process) order(what string) error {
	_, err := fmt.Fprintln(p.orders, what)
	return err
}

// pause stops the process when one of its buyers is about to write to some SKUs, until that function returns, and lets both go on.
func (p *process) pause(ctx context.Context, until func(skus []string) error) error {
	if err := p.order(orderHold); err != nil {
		return err
	}
	held, err := p.next(ctx)
	if err != nil {
		return fmt.Errorf("hold a buyer of %s: %w", p.name, err)
	}
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	err = until(held.SKUs)
	return errors.Join(err, p.order(orderGo), p.cmd.Process.Signal(syscall.SIGCONT))
}

// end lets the buyers finish and returns what they were told in all.
func (p *process) end(ctx context.Context) (report, error) {
	if err := p.order(orderEnd); err != nil {
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

// kill ends the worker with SIGKILL, stopped or not, and returns when it is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // fails only if it has ended
	_ = p.orders.Close()
	<-p.ended
	_ = p.cmd.Wait()
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
