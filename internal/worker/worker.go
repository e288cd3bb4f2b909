// Package worker runs workers in processes of their own, which are stopped, woken and killed: a
// goroutine cannot be stopped with SIGSTOP. It is how the demos, the chaos suite and tests start
// processes.
//
// Orders go in and events come out as JSON, a value a line. A worker ends with its orders, and so
// with the process that started it, however that ends. If it is stopped at that moment and cannot
// notice, the kernel ends it: it is in a process group of its own, which is then an orphan with a
// stopped member, and gets SIGHUP and SIGCONT. The group also keeps Ctrl-C in a terminal away.
package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9/logging"
)

// Process is a worker seen from outside, which tells events of type E.
type Process[E any] struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	events chan E

	mu     sync.Mutex
	orders *json.Encoder // guarded by mu
}

// Spawn runs command and returns when it has told its first event: that it is ready. Its events
// must be read from then on, or it waits to tell more. Cancelling ctx ends the waiting, and with it
// the worker; after the return it has no influence.
func Spawn[E any](ctx context.Context, command *exec.Cmd) (*Process[E], error) {
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Stderr = os.Stderr
	stdin, err := command.StdinPipe()
	stdout, err2 := command.StdoutPipe()
	if err := errors.Join(err, err2); err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, err
	}
	p := &Process[E]{cmd: command, stdin: stdin, orders: json.NewEncoder(stdin), events: make(chan E, 16)}
	go func() {
		defer close(p.events)
		events := json.NewDecoder(stdout)
		for e := new(E); events.Decode(e) == nil; e = new(E) {
			p.events <- *e
		}
	}()
	if _, err := p.Next(ctx); err != nil {
		p.Kill()
		return nil, fmt.Errorf("start a worker: %w", err)
	}
	return p, nil
}

// PID is the process id.
func (p *Process[E]) PID() int { return p.cmd.Process.Pid }

// Order tells the worker something and does not wait for it. One that is stopped finds it when it
// wakes.
func (p *Process[E]) Order(order any) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.orders.Encode(order)
}

// EndOrders ends the orders, as the end of this process would. The worker has to end then.
func (p *Process[E]) EndOrders() { _ = p.stdin.Close() }

// Events are what the worker tells; closed when it has ended.
func (p *Process[E]) Events() <-chan E { return p.events }

// Next waits for what the worker tells next.
func (p *Process[E]) Next(ctx context.Context) (E, error) {
	var none E
	select {
	case e, ok := <-p.events:
		if !ok {
			return none, fmt.Errorf("worker %d has ended", p.PID())
		}
		return e, nil
	case <-ctx.Done():
		return none, fmt.Errorf("waiting for worker %d: %w", p.PID(), context.Cause(ctx))
	}
}

// Stop freezes the process with SIGSTOP and returns when all of it stands still.
func (p *Process[E]) Stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	var status syscall.WaitStatus
	err := error(syscall.EINTR)
	for err == syscall.EINTR {
		_, err = syscall.Wait4(p.PID(), &status, syscall.WUNTRACED, nil)
	}
	if err == nil && !status.Stopped() {
		err = errors.New("it has ended")
	}
	if err != nil {
		err = fmt.Errorf("stop worker %d: %w", p.PID(), err)
	}
	return err
}

// Continue wakes a stopped process.
func (p *Process[E]) Continue() error { return p.cmd.Process.Signal(syscall.SIGCONT) }

// Abort ends the process with SIGKILL, stopped or not. What it told before still comes from Events;
// when that is closed, Kill returns at once.
func (p *Process[E]) Abort() { _ = p.cmd.Process.Kill() } // fails only if it has ended

// Kill ends the process with SIGKILL, stopped or not, and returns when it is gone. Again
// it does nothing.
func (p *Process[E]) Kill() {
	p.Abort()
	p.EndOrders()
	for range p.events { // until the other end of the pipe is closed, which comes before Wait
	}
	_ = p.cmd.Wait()
}

// selfVar makes this program a worker: its value is a kind, a space and the worker's configuration.
// It is a variable and not an argument, because a URL may hold a password, and ps shows arguments
// to everybody.
const selfVar = "FENCEDB_WORKER"

// Start runs this very program as a worker of a kind and returns when it is ready. The program, or
// the test binary, must call [Become] first thing. What [Spawn] says holds.
func Start[E any](ctx context.Context, kind string, config any) (*Process[E], error) {
	self, err := os.Executable()
	text, err2 := json.Marshal(config)
	if err := errors.Join(err, err2); err != nil {
		return nil, err
	}
	command := exec.Command(self)
	command.Env = append(os.Environ(), selfVar+"="+kind+" "+string(text))
	return Spawn[E](ctx, command)
}

// Life is what a worker of a kind does, until its orders end. Its first event says that it is
// ready.
type Life func(ctx context.Context, self *Self) error

// Become makes this process a worker and ends it, if [Start] has started it as one. Otherwise it
// does nothing.
func Become(kinds map[string]Life) {
	kind, config, ok := strings.Cut(os.Getenv(selfVar), " ")
	if !ok {
		return
	}
	logging.Disable() // the Redis client would write to the terminal that a Redis is down, where a demo has shut it down
	err := fmt.Errorf("there is no worker of kind %q", kind)
	if life := kinds[kind]; life != nil {
		self := &Self{config: config, orders: json.NewDecoder(os.Stdin), out: json.NewEncoder(os.Stdout)}
		err = life(context.Background(), self)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Self is a worker seen from inside. It is safe for concurrent use, except Order.
type Self struct {
	config string
	orders *json.Decoder

	mu  sync.Mutex
	out *json.Encoder // guarded by mu
}

// Config reads what the worker was started with.
func (s *Self) Config(config any) error { return json.Unmarshal([]byte(s.config), config) }

// Order waits for the next order. io.EOF says that there will be none: the worker has to end.
func (s *Self) Order(order any) error { return s.orders.Decode(order) }

// Tell sends an event. It cannot fail in a way that matters: when nobody listens any more, the
// orders end too.
func (s *Self) Tell(event any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.out.Encode(event)
}

// Sleep takes time, or returns why ctx has ended before.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Gate is a point at which a worker can be held. It is made with room for one: make(Gate, 1).
type Gate chan struct{}

// Go lets the one who is held go on.
func (g Gate) Go() {
	select {
	case g <- struct{}{}:
	default: // told already
	}
}

// Hold tells that somebody is held, and waits for Go or the end of ctx. A Go that came before does
// not count: whoever wakes a process also lets it go on.
func (g Gate) Hold(ctx context.Context, tell func()) {
	select {
	case <-g:
	default:
	}
	tell()
	select {
	case <-g:
	case <-ctx.Done():
	}
}
