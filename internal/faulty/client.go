package faulty

import (
	"context"
	"errors"
	"net"
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
	choose atomic.Pointer[func(redis.Cmder) Fault]
	owed   atomic.Bool // a LoseReply that met NOSCRIPT and applies to the next call instead
}

// Set sets the function that chooses the fault of each call of a script. Other commands pass. A
// pipeline has the fault of its first command.
func (f *Redis) Set(choose func(redis.Cmder) Fault) { f.choose.Store(&choose) }

// Always sets the same fault for all calls of scripts.
func (f *Redis) Always(fault Fault) { f.Set(func(redis.Cmder) Fault { return fault }) }

// Next sets the fault for the next n calls of scripts only.
func (f *Redis) Next(n int64, fault Fault) {
	var left atomic.Int64
	left.Store(n)
	f.Set(func(redis.Cmder) Fault {
		if left.Add(-1) < 0 {
			return None
		}
		return fault
	})
}

// First sets the fault for each call of a script when it is sent for the first time. The same call
// passes when it is sent again. Calls are compared by their text arguments, because their numbers
// may count the attempts.
func (f *Redis) First(fault Fault) {
	var seen sync.Map
	f.Set(func(cmd redis.Cmder) Fault {
		var call strings.Builder
		for _, arg := range cmd.Args()[2:] { // without EVAL or EVALSHA and the script
			if text, ok := arg.(string); ok {
				call.WriteString(text + " ")
			}
		}
		if _, again := seen.LoadOrStore(call.String(), true); again {
			return None
		}
		return fault
	})
}

func (f *Redis) fault(cmd redis.Cmder) Fault {
	choose := f.choose.Load()
	if choose == nil || !strings.HasPrefix(cmd.Name(), "eval") {
		return None
	}
	if f.owed.CompareAndSwap(true, false) {
		return LoseReply
	}
	return (*choose)(cmd)
}

// apply carries out the fault of commands that are sent together. pass sends them.
func (f *Redis) apply(ctx context.Context, cmds []redis.Cmder, pass func() error) error {
	err := ErrBroken
	switch f.fault(cmds[0]) {
	case None:
		return pass()
	case LoseReply:
		if answer := pass(); redis.HasErrorPrefix(answer, "NOSCRIPT") {
			f.owed.Store(true)
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
