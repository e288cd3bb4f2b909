package faulty

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/redis/go-redis/v9"
)

// ErrBroken is what a client sees of a broken connection.
var ErrBroken = errors.New("faulty: connection broken on purpose")

// Fault is what happens to one command.
type Fault int

// The faults of a command.
const (
	None        Fault = iota
	LoseRequest       // the server never sees it
	LoseReply         // the server acts on it, and the client gets ErrBroken
	Hang              // the server never sees it, and the call blocks until its context ends
)

// Redis is a [redis.Hook] that can break the calls of scripts. The zero value passes everything.
type Redis struct {
	choose atomic.Pointer[func(Request) (fault Fault, unspent func())]
}

// Request is what is sent at once: one call of a script, or those of a pipeline, which share a
// connection and so a fault.
type Request []Call

// Is reports whether one of the calls is that, see [Call.Is].
func (r Request) Is(script, resource string) bool {
	return slices.ContainsFunc(r, func(c Call) bool { return c.Is(script, resource) })
}

// Set sets the function that chooses the fault of each request. Commands that call no script pass.
func (f *Redis) Set(choose func(Request) Fault) {
	f.set(func(r Request) (Fault, func()) { return choose(r), func() {} })
}

func (f *Redis) set(choose func(Request) (Fault, func())) { f.choose.Store(&choose) }

// Always sets the same fault for all requests.
func (f *Redis) Always(fault Fault) { f.Set(func(Request) Fault { return fault }) }

// Next sets the fault for the next n requests with a call of that script about that resource, see
// [Call.Is]. All others pass.
func (f *Redis) Next(script, resource string, n int64, fault Fault) {
	var left atomic.Int64
	left.Store(n)
	f.set(func(r Request) (Fault, func()) {
		if !r.Is(script, resource) || left.Add(-1) < 0 {
			return None, nil
		}
		return fault, func() { left.Add(1) }
	})
}

// First sets the fault for each request when it is sent for the first time. The same request passes
// when it is sent again. Requests are compared by the text arguments of their first call, because
// their numbers may count the attempts.
func (f *Redis) First(fault Fault) {
	var seen sync.Map
	f.set(func(r Request) (Fault, func()) {
		call := strings.Join(r[0].words, " ")
		if _, again := seen.LoadOrStore(call, true); again {
			return None, nil
		}
		return fault, func() { seen.Delete(call) }
	})
}

// fault is that of commands that are sent together. unspent is called if it had nothing to strike.
func (f *Redis) fault(cmds []redis.Cmder) (fault Fault, unspent func()) {
	var r Request
	for _, cmd := range cmds {
		if call, ok := callOf(cmd.Args()); ok {
			r = append(r, call)
		}
	}
	choose := f.choose.Load()
	if choose == nil || len(r) == 0 {
		return None, nil
	}
	return (*choose)(r)
}

// apply carries out the fault of commands that are sent together. pass sends them.
func (f *Redis) apply(ctx context.Context, cmds []redis.Cmder, pass func() error) error {
	err := ErrBroken
	switch fault, unspent := f.fault(cmds); fault {
	case None:
		return pass()
	case LoseReply:
		if answer := pass(); redis.HasErrorPrefix(answer, "NOSCRIPT") { // no script ran: it will be sent in full
			unspent()
			err = answer
		}
	case Hang:
		<-ctx.Done()
		err = ctx.Err()
	}
	for _, cmd := range cmds {
		cmd.SetErr(err)
	}
	return err
}

// DialHook implements [redis.Hook].
func (*Redis) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements [redis.Hook].
func (f *Redis) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return f.apply(ctx, []redis.Cmder{cmd}, func() error { return next(ctx, cmd) })
	}
}

// ProcessPipelineHook implements [redis.Hook].
func (f *Redis) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return f.apply(ctx, cmds, func() error { return next(ctx, cmds) })
	}
}

// Breakpoint runs a function just before pgx writes a prepared statement, or a batch of them, to
// the network: after the last look of this side at anything, and before the server sees it. It is
// safe for concurrent use.
type Breakpoint struct {
	armed atomic.Pointer[func()]
}

// Arm has f run before the next statement or batch, once.
func (b *Breakpoint) Arm(f func()) { b.armed.Store(&f) }

// Watch is for [pgconn.Config].AfterNetConnect.
func (b *Breakpoint) Watch(_ context.Context, _ *pgconn.Config, conn net.Conn) (net.Conn, error) {
	return watched{conn, b}, nil
}

type watched struct {
	net.Conn
	*Breakpoint
}

func (c watched) Write(messages []byte) (int, error) {
	if messages[0] == 'B' { // Bind
		if f := c.armed.Swap(nil); f != nil {
			(*f)()
		}
	}
	return c.Conn.Write(messages)
}
