// Package faulty breaks one thing in front of a real server, so that tests need no imitation of the rest.
package faulty

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// ErrBroken is what a client sees of a broken connection.
var ErrBroken = errors.New("faulty: connection broken on purpose")

// Fault is what happens to one command.
type Fault int

const (
	None        Fault = iota
	LoseRequest       // the server never sees it
	LoseReply         // the server acts on it, the client does not learn of it
	Hang              // the server never sees it, and nothing comes back until the command's context ends
)

// Redis is a [redis.Hook] that passes commands on, or does not. The zero value passes everything on.
type Redis struct {
	choose atomic.Pointer[func(redis.Cmder) Fault]
	owed   atomic.Bool // a reply to lose, since the script was unknown and had to be sent in full first
}

// Set decides the fate of each script call from now on; other commands are left alone. A pipeline shares the fate of its first command.
func (f *Redis) Set(choose func(redis.Cmder) Fault) { f.choose.Store(&choose) }

// Always gives all script calls from now on the same fate.
func (f *Redis) Always(fault Fault) { f.Set(func(redis.Cmder) Fault { return fault }) }

// Next gives the next n script calls that fate, and none to those that follow.
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

// First gives each script call that fate the first time it is sent; the same call sent again passes. Calls are told
// apart by their texts, not by their numbers, which may count the attempts.
func (f *Redis) First(fault Fault) {
	var seen sync.Map
	f.Set(func(cmd redis.Cmder) Fault {
		var call strings.Builder
		for _, arg := range cmd.Args()[2:] { // without the script: by digest and in full are the same call
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

func (f *Redis) fate(cmd redis.Cmder) Fault {
	choose := f.choose.Load()
	if choose == nil || !strings.HasPrefix(cmd.Name(), "eval") {
		return None
	}
	if f.owed.CompareAndSwap(true, false) {
		return LoseReply
	}
	return (*choose)(cmd)
}

func (f *Redis) apply(ctx context.Context, fault Fault, pass func() error) error {
	switch fault {
	case LoseRequest:
		return ErrBroken
	case LoseReply:
		if err := pass(); redis.HasErrorPrefix(err, "NOSCRIPT") {
			f.owed.Store(true)
			return err
		}
		return ErrBroken
	case Hang:
		<-ctx.Done()
		return ctx.Err()
	}
	return pass()
}

// DialHook implements [redis.Hook].
func (f *Redis) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

// ProcessHook implements [redis.Hook].
func (f *Redis) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := f.apply(ctx, f.fate(cmd), func() error { return next(ctx, cmd) })
		cmd.SetErr(err)
		return err
	}
}

// ProcessPipelineHook implements [redis.Hook].
func (f *Redis) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		fault := f.fate(cmds[0])
		err := f.apply(ctx, fault, func() error { return next(ctx, cmds) })
		if fault != None {
			for _, cmd := range cmds {
				cmd.SetErr(err)
			}
		}
		return err
	}
}
